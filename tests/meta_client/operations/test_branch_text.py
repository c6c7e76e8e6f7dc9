"""A branch's report for people."""

from journal.records.xid import XaKey, Xid
from meta_client.operations.branch_text import show_lines
from meta_client.protocol.branch_report import Report

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


def test_what_is_not_shown_is_counted_and_an_active_branch_ends_by_itself() -> None:
    part = {"topic": "orders", "partition": 0, "messages": 3, "bytes": 30, "last_ms": 6}
    report = ACTIVE | {"partitions": [part], "partitions_total": 1002, "unreadable": "LSN 9:\\n bad"}
    lines = list(show_lines(report, KEY, 10_005, "--broker 0", None))
    assert "           and 1,001 more partitions" in lines
    assert any(line.startswith("unreadable LSN 9:") and line.isprintable() for line in lines)
    assert lines[-1] == "resolve    nothing to do: it is not prepared, and ends with its producer, or its timeout"
