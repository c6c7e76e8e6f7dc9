"""Counts of what is not delivered, by brokers that answer wrongly, late, or not at all."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from meta_client.client import Client
from meta_client.consumer import backlog
from meta_client.consumer.backlog import Backlog
from meta_client.net.connection import Connection
from meta_client.net.opaques import next_opaque
from meta_client.operations.positions import Positions
from meta_client.protocol.requests import Count, Request, Version
from meta_client.protocol.version import version_text
from tests.meta_client.conftest import StartBroker
from tests.meta_client.peer import Handler, Peer, listening, ok
from zk.tree.nodes import Partition

ANSWERS: dict[str, Callable[[Count], bytes]] = {
    "no progress": lambda count: b"%d %d 9000 0" % (count.offset, count.offset),
    "behind": lambda count: b"%d %d 9000 0" % (count.offset, count.offset - 1),
    "huge": lambda count: b"%d %d %d 1" % (count.offset, 2**64, 2**64),
    "text": lambda count: b"many",
}


def answering(answer: Callable[[Count], bytes] | None) -> Handler:
    def handle(request: Request) -> bytes | None:
        if not isinstance(request, Count):
            return ok(request, version_text("9.9", ["count"]).encode() if type(request).__name__ == "Version" else b"")
        return None if answer is None else ok(request, answer(request))

    return handle


@contextmanager
def connected(answer: Callable[[Count], bytes] | None) -> Iterator[tuple[Peer, Connection]]:
    with listening(answering(answer)) as peer:
        connection = Connection.open(peer.url, 60)
        try:
            yield peer, connection
        finally:
            connection.close()


def counting(connection: Connection) -> Backlog:
    """One that has had its broker count from 100 on."""
    messages = Backlog("orders", 0)
    messages.lag(100)
    assert messages.received(0, 100, 1, 9000)
    messages.request_count(connection, 100)
    return messages


def ask(connection: Connection) -> None:
    connection.submit(Version(next_opaque())).wait(60)


def counts(peer: Peer) -> int:
    return sum(isinstance(request, Count) for request in peer.received)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_nonsense_ends_a_count(answer: Callable[[Count], bytes]) -> None:
    with connected(answer) as (peer, connection):
        messages = counting(connection)
        wait_until(lambda: counts(peer) > 0)
        time.sleep(0.1)
        assert counts(peer) == 1
        assert messages.lag(100) is None


def test_an_endless_count_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "COUNT_S_MAX", 600.0)
    with connected(lambda count: b"%d %d %d 1" % (count.offset, count.offset + 1, 2**62)) as (peer, connection):
        counting(connection)
        wait_until(lambda: counts(peer) > 2)
        monkeypatch.setattr(backlog, "COUNT_S_MAX", 0.0)
        ask(connection)  # once it is answered, so is what was asked before
        ask(connection)  # and what an answer on its way had asked for
        asked = counts(peer)
        ask(connection)
        assert counts(peer) == asked


def test_unanswered_counts_take_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection has room for a number of requests, which fetches need."""
    monkeypatch.setattr(backlog, "COUNT_S", 0.0)
    with connected(None) as (peer, connection):
        messages = Backlog("orders", 0)
        messages.lag(100)
        for number in range(20):
            assert messages.received(0, 100 + number, 1, 9000)
            messages.request_count(connection, 100 + number)
        wait_until(lambda: counts(peer) == 20)
        assert len(connection._pending) == 1


def test_what_nobody_has_looked_at_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    with connected(lambda count: b"%d 9000 9000 50" % count.offset) as (_, connection):
        messages = counting(connection)
        wait_until(lambda: messages.lag(100) == 50)
        monkeypatch.setattr(backlog, "LAG_READ_S", 0.0)
        assert not messages.received(100, 200, 5, 20_000), "others may have come, for hours"
        assert messages.lag(200) is None


def test_between_two_counts_what_arrives_is_taken_off() -> None:
    """Between counts, which are a second apart, the number can only get smaller."""
    with connected(lambda count: b"%d 9000 9000 50" % count.offset) as (_, connection):
        messages = counting(connection)
        wait_until(lambda: messages.lag(100) == 50)
        assert not messages.received(100, 200, 5, 9000)
        assert (messages.lag(100), messages.lag(200)) == (50, 45)
        assert not messages.received(200, 300, 45, 9000), "more than were counted: others came since"
        assert messages.lag(300) is None


def test_a_command_ends_with_a_broker_that_makes_no_progress(client: Client, start_broker: StartBroker) -> None:
    broker = start_broker(0, {"orders": 1}, answering(ANSWERS["no progress"]))
    assert Positions(client).messages({("orders", Partition(0, 0)): 100}) == {}
    assert counts(broker.peer) == 1


def test_a_partition_that_can_t_be_counted_hides_no_other(client: Client, start_broker: StartBroker) -> None:
    def handle(request: Request) -> bytes | None:
        if isinstance(request, Count) and request.partition == 0:
            return b"result 503 7 %d\r\nrebuilt" % request.opaque
        return answering(lambda count: b"%d 9000 9000 5" % count.offset)(request)

    start_broker(0, {"orders": 2}, handle)
    told: list[str] = []
    positions = Positions(client, told.append)
    for _ in range(2):  # a group after the other
        offsets = {("orders", Partition(0, number)): 100 for number in range(2)}
        assert positions.messages(offsets) == {("orders", Partition(0, 1)): 5}
    assert told == []
