"""XA return codes, and the text that carries one in a result (spec 2.3)."""

import re
from enum import IntEnum
from typing import NamedTuple


class XaCode(IntEnum):
    """X/Open XA return codes that a broker of the 1.4 line or its client uses."""

    XA_OK = 0
    XA_RDONLY = 3  # vote: nothing was put, the branch is forgotten, don't commit it
    XA_HEURRB = 6
    XA_HEURCOM = 7
    XA_HEURHAZ = 8
    XA_RBOTHER = 104
    XA_RBTIMEOUT = 106
    XAER_RMERR = -3
    XAER_NOTA = -4
    XAER_INVAL = -5
    XAER_PROTO = -6
    XAER_RMFAIL = -7
    XAER_DUPID = -8


class XaFailure(NamedTuple):
    """What an `XAException:` text says. The code is a plain int: a peer may know codes that we don't."""

    code: int
    text: str


_PREFIX = "XAException:"
_CODE_AND_TEXT = re.compile(r"code=(-?[0-9]{1,10}),msg=([^\r\n]*)")


def format_xa_failure(code: int, text: str) -> str:
    """The text of a 500 that refuses a transaction command.

    Line breaks in *text* become spaces: the Java client reads up to the end of the first line.
    """
    return f"{_PREFIX}code={int(code)},msg={' '.join(text.splitlines())}"


def parse_xa_failure(text: str) -> XaFailure | None:
    """Read what format_xa_failure wrote; None for every other text, which is then no XA failure."""
    if not text.startswith(_PREFIX) or (match := _CODE_AND_TEXT.search(text)) is None:
        return None
    return XaFailure(int(match[1]), match[2])
