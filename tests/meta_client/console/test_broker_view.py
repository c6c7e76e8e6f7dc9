"""Faults of a broker as a page tells them, one by one; rates of counters; and too many reads at once."""

import asyncio
import threading

import pytest

from meta_client.console import reads as reads_module
from meta_client.console.broker_view import LAG_S_HIGH, BrokerView, Told, alerts_of, parse_told
from meta_client.console.page import Past
from meta_client.console.reads import Reads, Unknown
from zk.brokers.cluster import BrokerEntry
from zk.brokers.replication import ReplicationNode
from zk.tree.broker_url import BrokerUrl

URL = BrokerUrl("b", 8123)
ENTRY = BrokerEntry(URL, {1: BrokerUrl("s", 8123)})
NODE = ReplicationNode(epoch=2, mode="sync", in_sync=(1,))
DISK = "journal start 0\ndisk free_bytes 500 size_bytes 1000 refuses_writes false"
FOLLOWS = "master mode sync in_sync 1 state in-sync\nslave 1 state follows lag_ms 5"


def told(broker: str = "", replication: str = FOLLOWS, journal: str = DISK) -> Told:
    return parse_told({"": broker, "replication": replication, "journal": journal})


def test_nothing_is_wrong() -> None:
    assert list(alerts_of(BrokerView(0, ENTRY, NODE, told(), {1: told()}))) == []


@pytest.mark.parametrize(
    ("master", "level", "what"),
    [
        (told("unreadable_ranges 2"), "bad", "2 places of its journal can't be read"),
        (told("indexes_rebuilding 3"), "bad", "3 partition indexes are damaged"),
        (told(journal="?"), "unknown", "it does not know `stats journal`"),
        (told(journal="disk refuses_writes true"), "bad", "its disk is full"),
        (told(journal="disk refuses_writes false"), "unknown", "it can't tell the room on its disk"),
        (told(journal=DISK.replace("500", "50")), "warn", "5% of its disk are free"),
        (told(replication=FOLLOWS.replace("in-sync", "degraded")), "warn", "degraded: no slave is waited for"),
        (told(replication=FOLLOWS.replace("state in-sync", "state refusing")), "bad", "refuses writes"),
        (told(replication=FOLLOWS.replace("lag_ms 5", f"lag_ms {int(LAG_S_HIGH * 1000) + 1}")), "warn", "10 s behind"),
        (Unknown("no answer in 3 s"), "unknown", "broker 0: no answer in 3 s"),
    ],
)
def test_each_fault_is_one_alert(master: Told | Unknown, level: str, what: str) -> None:
    entry = ENTRY if isinstance(master, Told) else BrokerEntry(URL, {})
    node = NODE if isinstance(master, Told) else None
    (alert,) = alerts_of(BrokerView(0, entry, node, master))
    assert (alert.level, what in alert.what) == (level, True), alert


def test_a_rate_needs_two_samples_of_the_same_life(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter((10.0, 12.0, 13.0, 15.0))
    monkeypatch.setattr("meta_client.console.page.time.monotonic", lambda: next(now))
    past = Past()
    assert [past.rate("puts", value) for value in (100, 150, None, 40, 60)] == [None, 25.0, None, None, 10.0]


def test_more_than_can_be_asked_at_once_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads_module, "RUNNING_MAX", 1)
    answer = threading.Event()

    async def ask() -> None:
        reads = Reads()
        first = asyncio.create_task(reads.call("a", lambda: answer.wait(60)))
        await asyncio.sleep(0)
        refused = await reads.call("b", lambda: True)
        assert refused == Unknown("this console has too much to ask at once: try again")
        same = asyncio.create_task(reads.call("a", lambda: False))
        await asyncio.sleep(0)
        answer.set()
        assert [await first, await same, await reads.call("b", lambda: True)] == [True, True, True]
        reads.close()

    asyncio.run(ask())
