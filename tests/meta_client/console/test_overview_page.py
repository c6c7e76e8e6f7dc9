"""Brokers on pages: one that does not answer costs its row, and is unknown, never fine."""

import html

import pytest
from starlette.testclient import TestClient

from journal.records.xid import XaKey, Xid
from meta_client.console import overview_page
from meta_client.console.broker_view import NOT_REGISTERED, BrokerView, alerts_of, parse_journal, parse_told
from meta_client.console.brokers import ShownCluster
from meta_client.console.in_doubt import ListedBranch
from meta_client.console.reads import Unknown
from meta_client.console.rendering import clock, count, render, seconds, since, size
from meta_client.doctor.verdicts import Owner
from tests.meta_client.console.conftest import Stack, open_console
from zk.brokers.cluster import BrokerEntry
from zk.brokers.replication import ReplicationNode
from zk.tree.broker_url import BrokerUrl

SILENT = 7


def test_all_is_shown_while_all_is_well(browser: TestClient, stack: Stack) -> None:
    text = browser.get("/").text
    for what in ("async", "follows", "in sync", stack.other.url, "measuring", "1.4.6 metaq/"):
        assert what in text
    assert "nothing was found" in text or "on the ledger" in text
    replication = browser.get("/replication").text
    assert "slave 1" in replication
    assert "nobody is waited for" in replication
    journal = browser.get("/journal").text
    assert "Broker 0, slave 1" in journal
    assert "keeps everything" in journal
    assert "unknown" not in journal


def test_a_broker_that_hangs_costs_its_row(hurried: TestClient, stack: Stack) -> None:
    stack.register_silent(SILENT)
    try:
        text = html.unescape(hurried.get("/").text)
        assert f"broker {SILENT}: " in text
        assert "silent" in text
        assert "nothing was found" not in text
        assert stack.other.url in text
        assert "async" in text
        doubt = html.unescape(hurried.get("/transactions").text)
        assert f"lacks what is in doubt at broker {SILENT}" in doubt
        assert "decision table" in doubt
    finally:
        stack.forget_silent(SILENT)


def test_a_slave_that_is_not_registered_is_unknown() -> None:
    """Its master names it before ZooKeeper does, and where it serves no reads ZooKeeper never does."""
    master, first = BrokerUrl.parse("meta://h:1"), BrokerUrl.parse("meta://h:2")
    said = "master mode sync\nslave 1 lag_ms 1\nslave 2 lag_ms 1 in_sync true"
    told = parse_told({"": "", "replication": said, "journal": ""})
    node = ReplicationNode(epoch=1, in_sync=(3,))
    for entry, found in (
        (BrokerEntry(master, {1: first}), {1: told, 2: NOT_REGISTERED, 3: NOT_REGISTERED}),
        (BrokerEntry(None, {1: first}), {1: told, 3: NOT_REGISTERED}),
        (BrokerEntry(), {3: NOT_REGISTERED}),
    ):
        view = BrokerView(0, entry, node).answered({master: told, first: told})
        assert view.slaves == found
        assert not any(NOT_REGISTERED.why in alert.what for alert in alerts_of(view))
        values = {"cluster": ShownCluster((view,), {}), "rates": {}, "doubt": Unknown("x"), "alerts": []}
        for name in ("overview", "journal"):
            shown = html.unescape(render(f"parts/{name}.html", **values))
            assert shown.count(NOT_REGISTERED.why) == list(found.values()).count(NOT_REGISTERED)


def test_the_stream_sends_the_part_and_then_rates(stack: Stack) -> None:
    with (
        open_console(stack.settings()) as client,
        client.stream("GET", "/", headers={"accept": "text/event-stream"}) as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
        said = []
        for line in answer.iter_lines():
            said.append(line)
            if any("/s</td>" in text for text in said):
                break
    assert said[0] == "event: page"
    assert not any("<html" in line for line in said)


@pytest.mark.parametrize(
    "journal",
    [
        "retention hours 1",
        "retention bytes x policy <b>",
        "journal segments 99999999999999999999",
        "journal segments -",
        "segment 7",
        "checkpoint 1 age_ms 9999999999999999999",
        "disk free_bytes 9 size_bytes 3",
        "retention",
    ],
)
def test_a_strange_broker_breaks_no_page(journal: str) -> None:
    told = parse_told(
        {"": "uptime 99999999999999999999\nversion", "replication": "slave 1 lag_ms x", "journal": journal}
    )
    entry = BrokerEntry(BrokerUrl.parse("meta://h:1"), {1: BrokerUrl.parse("meta://h:2")})
    view = BrokerView(0, entry, None, told, {1: Unknown("<b>")})
    cluster = ShownCluster((view, BrokerView(1, BrokerEntry(), None)), {})
    alerts = list(alerts_of(view))
    assert any(alert.level == "unknown" for alert in alerts)
    values = {"cluster": cluster, "rates": {}, "doubt": Unknown("x"), "alerts": alerts}
    for name in ("overview", "replication", "journal"):
        assert "<b>" not in render(f"parts/{name}.html", **values)


@pytest.mark.parametrize("value", [None, True, "x", 10**400, -(10**400), 1e300, float("inf"), [], {}, "\u0663"])
def test_numbers_of_strangers_are_unknown(value: object) -> None:
    for show in (count, size, seconds, since, clock):
        assert show(value) == "unknown", show


def test_a_branch_of_an_endless_age_is_of_none() -> None:
    report = {"key": "XID:1:61:62:u", "state": "prepared", "messages": 1, "bytes": 1, "prepared_ms": 10**400}
    assert ListedBranch(0, XaKey(Xid(1, b"a", b"b"), "u"), report, Owner.FOREIGN, "u").age_s is None


def test_reports_of_strangers_are_read_without_trust() -> None:
    assert parse_journal("journal\r\nresultCode 1\r\n") is None
    facts = parse_journal(
        "STATS\r\njournal start x end -1 \u0663\r\nsegment 9999999999999999999999 bytes\r\n"
        "segment 0 bytes <b> first_ms 99999999999999999\r\ndisk free_bytes 5 size_bytes 0\r\nretention\r\n"
    )
    assert facts is not None
    assert (facts.disk_free, facts.segments[0][1]["bytes"], len(facts.segments)) == (None, "<b>", 1)
    told = parse_told({"": "x\r\nversion <b> y\r\n", "replication": "master mode", "journal": ""})
    assert told.broker == {"version": "<b> y"}
    assert told.journal is None


def test_what_is_in_doubt_for_long_is_an_alert(browser: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overview_page, "STUCK_S", 0.0)
    assert "in doubt for more than 0 min" in browser.get("/").text
