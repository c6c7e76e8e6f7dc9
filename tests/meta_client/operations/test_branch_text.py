"""A branch's report for people, and reports that no broker of this version sends."""

import pytest

from journal.records.xid import XaKey, Xid
from meta_client.operations.branch_text import show_lines
from meta_client.operations.branches import _checked_finding, _parse, _parse_list
from meta_client.protocol.branch_report import Report
from meta_client.protocol.errors import RemoteProtocolError

KEY = XaKey(Xid.of("g", "b"), "q")
ACTIVE: Report = {
    "key": str(KEY),
    "broker": 0,
    "state": "active",
    "messages": 3,
    "bytes": 30,
    "began_ms": 5,
    "first_lsn": 9,
}
TWO = b'{"key":"k","state":"mixed","messages":3,"bytes":4},{"key":"k","state":"mixed","messages":3,"bytes":4}'


def test_what_is_not_shown_is_counted_and_an_active_branch_ends_by_itself() -> None:
    part = {"topic": "orders", "partition": 0, "messages": 3, "bytes": 30, "last_ms": 6}
    report = ACTIVE | {"partitions": [part], "partitions_total": 1002, "unreadable": "LSN 9:\\n bad"}
    lines = list(show_lines(report, KEY, 10_005, "--broker 0", None))
    assert "           and 1,001 more partitions" in lines
    assert any(line.startswith("unreadable LSN 9:") and line.isprintable() for line in lines)
    assert lines[-1] == "resolve    nothing to do: it is not prepared, and ends with its producer, or its timeout"


@pytest.mark.parametrize(
    "message", [b"{", b"[]", b"7", b'{"key":"k"}', b'{"key":1,"state":2,"messages":3,"bytes":4},7', TWO]
)
def test_what_is_no_report(message: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="report of"):
        _parse(message)


def test_what_is_no_list_and_no_finding() -> None:
    with pytest.raises(RemoteProtocolError, match="is no list of branches"):
        _parse_list(b"{}")
    finding = {"who": "ann", "why": "w", "evidence": "e", "time_ms": 7}
    found = ACTIVE | {"state": "mixed", "finding": finding}
    assert _checked_finding(found) is found
    for wrong in ({"state": "active"}, {"finding": finding | {"time_ms": "7"}}, {"finding": None}):
        with pytest.raises(RemoteProtocolError):
            _checked_finding(found | wrong)
