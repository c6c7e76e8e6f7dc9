"""Reports on branches as brokers send them: read and checked here alone, as those of anybody. Pure."""

from typing import Any, Final, TypeVar

import msgspec

from journal.records.xid import XaKey, parse_key
from meta_client.protocol.answers import BranchStatus
from meta_client.protocol.branch_report import Report
from meta_client.protocol.errors import RemoteProtocolError

T = TypeVar("T")

_STATES: Final = frozenset([*(status.value for status in BranchStatus), "mixed", "hazard"])  # those of the ledger, too


class _Part(msgspec.Struct):
    topic: str
    partition: int
    messages: int
    bytes: int
    last_ms: int


class _First(msgspec.Struct):
    topic: str
    partition: int
    id: int
    bytes: int
    attribute: str | None
    payload: str | None
    is_hidden: bool = False


class _Said(msgspec.Struct):
    who: str
    why: str
    time_ms: int


class _Decision(_Said):
    decision: str


class _Finding(_Said):
    evidence: str


class _Shape(msgspec.Struct):
    """Fields of a report that are used; a broker may leave most out, or send more."""

    key: str
    state: str
    messages: int
    bytes: int
    origin: str | None = None
    began_ms: int | None = None
    prepared_ms: int | None = None
    now_ms: int | None = None
    first_lsn: int | None = None
    partitions: list[_Part] = []
    partitions_total: int = 0
    first_messages: list[_First] = []
    unreadable: str | None = None
    decision: _Decision | None = None
    finding: _Finding | None = None


def parse_report(message: bytes, sender: str) -> Report:
    """Return the report on a branch that *sender* sent. Raises RemoteProtocolError for what is none."""
    return _checked(_decoded(message, dict[str, Any], sender), sender)


def parse_ledger(message: bytes, sender: str) -> list[Report]:
    """Return the entries of a ledger that *sender* sent. Raises RemoteProtocolError for what is none."""
    reports = _decoded(message, list[dict[str, Any]], sender)
    if not all(isinstance(report.get("finding"), dict) for report in reports):
        raise _unread(sender, "an entry of its ledger has no finding")
    return [_checked(report, sender) for report in reports]


def key_of(report: Report) -> XaKey:
    """Return the branch that a report is about."""
    key = parse_key(report["key"])
    assert isinstance(key, XaKey), "local transactions are never in doubt"
    return key


def _decoded(message: bytes, kind: type[T], sender: str) -> T:
    try:
        return msgspec.json.decode(message, type=kind)
    except (ValueError, RecursionError) as error:
        raise _unread(sender, error) from error


def _checked(report: Report, sender: str) -> Report:
    try:
        shape = msgspec.convert(report, _Shape)
        if shape.state not in _STATES:
            raise ValueError(f"no branch is {shape.state[:40]!r}")
        if not isinstance(parse_key(shape.key), XaKey):
            raise ValueError(f"{shape.key[:40]!r} is no XA branch")
    except ValueError as error:  # msgspec's and InvalidXid, too
        raise _unread(sender, error) from error
    return report


def _unread(sender: str, why: object) -> RemoteProtocolError:
    return RemoteProtocolError(f"{sender} tells of a branch what this version of metaq does not read: {why}")
