"""Reports on branches are read only as they were meant."""

import json

import pytest

from journal.records.xid import XaKey, Xid
from meta_client.operations.report_parsing import key_of, parse_ledger, parse_report
from meta_client.protocol.branch_report import Report
from meta_client.protocol.errors import RemoteProtocolError

KEY = XaKey(Xid.of("g", "b"), "q")
REPORT: Report = {"key": str(KEY), "state": "prepared", "messages": 3, "bytes": 30}
PART = {"topic": "orders", "partition": 0, "messages": 1, "bytes": 25, "last_ms": 6}
FINDING = {"who": "ann", "why": "w", "evidence": "e", "time_ms": 7}


@pytest.mark.parametrize("more", [{}, {"origin": None, "partitions": [PART]}, {"of a newer version": [7]}])
def test_a_report_is_kept_as_it_was_sent(more: Report) -> None:
    assert parse_report(json.dumps(REPORT | more).encode(), "broker 3") == REPORT | more
    assert key_of(REPORT) == KEY


@pytest.mark.parametrize("message", [b"{", b"[]", b"7", b'{"key":"k"}', json.dumps([REPORT]).encode(), b"[" * 9_999])
def test_what_is_no_report(message: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match=r"^broker 3 tells of a branch what this version"):
        parse_report(message, "broker 3")


@pytest.mark.parametrize(
    "more",
    [
        {"state": "melancholy"},
        {"key": "TX:s:1"},
        {"key": "nonsense"},
        {"messages": "many"},
        {"prepared_ms": "soon"},
        {"now_ms": "x"},
        {"partitions": [7]},
        {"partitions": [{"topic": "t", "messages": 1}]},
        {"first_messages": "x"},
        {"first_messages": [{"topic": 1}]},
        {"unreadable": 5},
        {"first_messages": [{"topic": "t", "id": 1, "bytes": 2, "attribute": None, "payload": None}]},
        {"decision": {"who": "ann", "why": "w", "time_ms": 7}},
    ],
)
def test_what_a_report_does_not_say(more: Report) -> None:
    with pytest.raises(RemoteProtocolError, match="does not read"):
        parse_report(json.dumps(REPORT | more).encode(), "broker 3")


def test_an_entry_of_a_ledger_has_a_finding() -> None:
    entry = REPORT | {"state": "mixed", "finding": FINDING}
    assert parse_ledger(json.dumps([entry]).encode(), "broker 3") == [entry]
    assert parse_report(json.dumps(entry).encode(), "broker 3") == entry  # asked for by its key
    for wrong in ({"state": "melancholy"}, {"finding": FINDING | {"time_ms": "7"}}, {"finding": None}):
        with pytest.raises(RemoteProtocolError):
            parse_ledger(json.dumps([entry | wrong]).encode(), "broker 3")
    with pytest.raises(RemoteProtocolError):
        parse_ledger(b"{}", "broker 3")
