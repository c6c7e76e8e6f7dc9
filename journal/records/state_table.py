"""Enumerations that are fast to look up, and the function that walks a table of states. Pure.

Stands alone: the tables of three packages use it.
"""

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


class IdentityEnum(Enum):
    """An enumeration hashed by identity: its own hash is a Python call, two of them at each step."""

    __hash__ = object.__hash__


def walk(table: Mapping[S, Mapping[E, S]], state: S, event: E) -> S:
    """Return the state after *event*. A pair that the table lacks is a mistake of this program.

    What a peer or a caller may do wrong, the table's own file refuses.
    """
    after = table[state].get(event)
    assert after is not None, f"{event.name} while {state.name}"
    return after
