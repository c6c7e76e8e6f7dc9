"""Branches that a command is to end, from words, lines or the JSON of `metaq txn list`, `doctor` and `metaq reconcile`.

All of the input is read and checked before anything is done.
"""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any, Final

import msgspec

from journal.records.xid import KEY_BYTES_MAX, InvalidXid, XaKey, Xid, parse_key
from meta_client.protocol.errors import MetaError
from meta_client.protocol.integers import INT32_MAX
from meta_client.transactions.names import name_in

INPUT_BYTES_MAX: Final = 256 * 1024 * 1024
IN_DOUBT: Final = "in doubt"  # state of a branch, for `metaq reconcile`
SHOWN: Final = 60  # characters
_REMEDY: Final = (
    "give lines of branches as `metaq txn list` shows them, or the --json output of metaq txn list, metaq txn doctor "
    "or metaq reconcile; nothing was done"
)


class BadBranches(MetaError):
    """A line of the input names no branch. Nothing was done; the message says which line, and what to give."""


@dataclass(frozen=True, slots=True)
class WantedBranch:
    """A branch in the input. *broker*: None, whichever holds it. *verbs*: those that its source offers; None: any.
    *decision*: of its row, as far as the source tells."""

    name: XaKey | Xid
    broker: int | None = None
    decision: str | None = None
    verbs: tuple[str, ...] | None = None


class _Row(msgspec.Struct):
    """A line of `metaq txn list --json` or `metaq txn doctor --json`; other fields are ignored."""

    key: str | None = None
    broker: int | None = None
    decision: str | None = None
    verbs: tuple[str, ...] | None = None


class _Side(msgspec.Struct):
    broker: int
    state: str


class _Apart(msgspec.Struct):
    """A transaction of `metaq reconcile --json`."""

    kind: str
    name: str
    verbs: tuple[str, ...]
    branches: list[_Side]
    decision: str | None = None


def parse_branch(text: str) -> XaKey | Xid:
    """Return the branch that *text* names. Raises InvalidXid."""
    if not text.startswith("XID:"):
        if len(text) > KEY_BYTES_MAX:
            raise InvalidXid(f"a name of {len(text)} characters is longer than {KEY_BYTES_MAX}")
        return Xid.parse(text)
    key = parse_key(text)
    if not isinstance(key, XaKey):
        raise InvalidXid(f"{text[:SHOWN]!r} is no XA branch")
    return key


def read_branches(source: str, stream: IO[bytes]) -> list[WantedBranch]:
    """Return the branches in *stream*. Raises BadBranches."""
    text = stream.read(INPUT_BYTES_MAX + 1)
    if len(text) > INPUT_BYTES_MAX:
        raise BadBranches(f"{source} is longer than {INPUT_BYTES_MAX} bytes: split it; nothing was done")
    found: list[WantedBranch] = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            found += _in_line(line.strip())
        except (ValueError, InvalidXid, msgspec.MsgspecError, RecursionError) as error:
            raise BadBranches(f"{source}, line {number}: {error}: {_REMEDY}") from error
    return found


def _in_line(line: bytes) -> Iterable[WantedBranch]:
    if not line:
        return ()
    if not line.startswith(b"{"):
        return (WantedBranch(parse_branch(line.decode())),)
    found = msgspec.json.decode(line, type=dict[str, Any])
    if "transactions" in found:
        parts = msgspec.convert(found["transactions"], list[_Apart])
        return itertools.chain.from_iterable(map(_in_doubt, parts))
    row = msgspec.convert(found, _Row)
    if row.key is None:
        if row.verbs == ():
            return ()  # doctor's, of a database or of a side that could not be asked
        raise ValueError("it has no key")
    if row.broker is None:
        raise ValueError("it has no broker")
    return (WantedBranch(_key(row.key), _checked(row.broker), row.decision, row.verbs),)


def _in_doubt(one: _Apart) -> Iterator[WantedBranch]:
    table = name_in(one.name)
    for side in one.branches:
        if one.kind == IN_DOUBT and side.state == IN_DOUBT:
            if table is None:
                raise ValueError(f"{one.name[:SHOWN]!r} is no transaction of a decision table")
            yield WantedBranch(table.key(one.name, _checked(side.broker)), side.broker, one.decision, one.verbs)


def _key(text: str) -> XaKey:
    key = parse_branch(text)
    if not isinstance(key, XaKey):
        raise InvalidXid(f"{text[:SHOWN]!r} is no key of a branch, which begins with XID:")
    return key


def _checked(broker_id: int) -> int:
    if not 0 <= broker_id <= INT32_MAX:
        raise ValueError(f"{broker_id} is no broker's id")
    return broker_id
