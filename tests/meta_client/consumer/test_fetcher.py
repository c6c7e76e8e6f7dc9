"""Every answer a broker can give to a get, and what the listener sees of it."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest

from meta_client.client import Client
from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.consumer import Consumer
from meta_client.consumer.messages.batch import Batch
from meta_client.consumer.offsets import OffsetEntry
from meta_client.consumer.traffic import ConsumedTotals
from meta_client.errors import ConsumerMisuse, OwnershipLost
from meta_client.protocol.messages import encode_frame
from meta_client.protocol.requests import Get, Request
from tests.meta_client.conftest import StartBroker
from tests.meta_client.peer import HANG_UP, ok, opaque_of
from zk.errors import ZooKeeperUnavailable
from zk.groups.offsets import ZooKeeperOffsets
from zk.groups.ownership import Ownership
from zk.tree.claims import Claimed
from zk.tree.nodes import Partition, TopicPartition


class Shelf:
    """One partition that starts at *start*, as a broker serves it; `special` may answer first."""

    def __init__(self, *frames: bytes, start: int = 0) -> None:
        self.data = b"".join(frames)
        self.start = start
        self.special: Callable[[Get], bytes | None] = lambda get: None

    def __call__(self, request: Request) -> bytes:
        if not isinstance(request, Get):
            return ok(request)
        if (answer := self.special(request)) is not None:
            return answer
        position = request.offset - self.start
        if position < 0:
            return result(request, 301, b"%d" % self.start)
        if position > len(self.data):
            return result(request, 301, b"%d" % (self.start + len(self.data)))
        body = self.data[position : position + request.bytes_max]
        if not body:
            return result(request, 404, b"Could not find message at position %d" % request.offset)
        return b"value %d %d\r\n%b" % (len(body), request.opaque, body)


def result(request: Request, status: int, text: bytes = b"") -> bytes:
    return b"result %d %d %d\r\n%b" % (status, len(text), opaque_of(request), text)


class Seen:
    def __init__(self) -> None:
        self.payloads: list[bytes] = []

    def __call__(self, batch: Batch) -> None:
        self.payloads += [message.payload for message in batch.messages]


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def consumer(client: Client, seen: Seen) -> Iterator[Consumer]:
    config = ConsumerConfig(backoff_s_max=0.1, commit_period_s=0.1, runners=2)
    with client.consumer("group", config=config) as it:
        it.subscribe("orders", seen, max_bytes=200)
        yield it


FRAMES = [encode_frame(number, 0, b"%d" % number) for number in range(30)]
EVERYTHING = [b"%d" % number for number in range(30)]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


def test_cut_off_tails_are_fetched_again(consumer: Consumer, seen: Seen, start_broker: StartBroker) -> None:
    start_broker(0, {"orders": 1}, Shelf(*FRAMES))
    consumer.start()
    wait_until(lambda: len(seen.payloads) >= 30)
    assert seen.payloads == EVERYTHING


def test_a_new_group_begins_where_the_broker_does_and_skips_nothing(
    client: Client, consumer: Consumer, seen: Seen, start_broker: StartBroker, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    start_broker(0, {"orders": 1}, Shelf(start=4096))
    consumer.start()
    offsets = ZooKeeperOffsets(client.session, "group")
    wait_until(lambda: (node := offsets.load("orders", Partition(0, 0))) is not None and node.offset == 4096)
    assert seen.payloads == []
    (record,) = [record for record in caplog.records if record.message.startswith("offset moved")]
    assert record.message == "offset moved group=group partition=orders/0-0 from=0 to=4096 skipped=0"
    assert record.levelno == logging.INFO
    assert consumer.totals()["orders"] == ConsumedTotals()


@pytest.mark.parametrize("stored", [0, 96])
def test_what_is_deleted_before_a_group_has_consumed_it_is_said_counted_and_committed(
    client: Client, start_broker: StartBroker, caplog: pytest.LogCaptureFixture, stored: int
) -> None:
    start_broker(0, {"orders": 1}, Shelf(start=4096))
    ledger = Ledger(stored, [])
    with client.consumer("group", ledger, config=ConsumerConfig(commit_period_s=0.1)) as consumer:
        consumer.subscribe("orders")
        consumer.start()
        wait_until(lambda: (4096, False) in ledger.events)
        assert consumer.totals()["orders"] == ConsumedTotals(skipped_bytes=4096 - stored)
    skipped = f"from={stored} to=4096 skipped=up to {4096 - stored} bytes"
    assert f"offset moved group=group partition=orders/0-0 {skipped}" in caplog.text


class Ledger:
    """An OffsetStore that says what it was told, and when."""

    def __init__(self, offset: int, events: list[object]) -> None:
        self.group = "group"
        self.offset = offset
        self.events = events
        self.failures = 2

    def load(self, topic: str, partition: Partition) -> int | None:
        del topic, partition
        return self.offset

    def commit(self, entries: Sequence[OffsetEntry]) -> None:
        for entry in entries:
            if entry.is_reset and self.failures:
                self.failures -= 1
                raise OSError("the database is down")
            self.events.append((entry.offset, entry.is_reset))


def test_when_a_broker_names_an_offset_further_back_it_is_stored_before_anything_is_delivered(
    client: Client, start_broker: StartBroker
) -> None:
    end = sum(map(len, FRAMES))
    shelf = Shelf(*FRAMES)
    start_broker(0, {"orders": 1}, shelf)
    events: list[object] = []
    config = ConsumerConfig(backoff_s_max=0.1, commit_period_s=0.1, runners=2)
    with client.consumer("group", Ledger(9000, events), config=config) as consumer:
        consumer.subscribe("orders", lambda batch: events.append([m.payload for m in batch.messages]))
        consumer.start()
        wait_until(lambda: (end, True) in events)
        shelf.data += encode_frame(30, 0, b"30")
        wait_until(lambda: len(events) == 3)
    assert events == [(end, True), [b"30"], (end + 22, False)]
    with pytest.raises(ConsumerMisuse, match="consumer of group audit was given the offsets of group group"):
        client.consumer("audit", Ledger(0, events))


def test_who_may_have_been_given_up_stores_nothing(
    client: Client, start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A database knows of no owners: after a sleep an operator may have set the group elsewhere."""
    start_broker(0, {"orders": 1}, Shelf(*FRAMES))
    events: list[object] = []
    with client.consumer("group", Ledger(0, events), config=ConsumerConfig(commit_period_s=0.3)) as consumer:
        delivered = threading.Event()

        def on_batch(batch: Batch) -> None:
            monkeypatch.setattr(type(client.session.lease), "is_valid", lambda lease: False)
            events.append(len(batch.messages))
            delivered.set()

        consumer.subscribe("orders", on_batch)
        consumer.start()
        assert delivered.wait(60)
        time.sleep(0.7)
        assert events == [30]
        monkeypatch.undo()
        wait_until(lambda: len(events) == 2)
    assert events == [30, (sum(map(len, FRAMES)), False)]


@pytest.mark.parametrize(
    "trouble",
    [
        lambda get: result(get, 403, b"closed"),
        lambda get: result(get, 404, b"no such partition"),
        lambda get: result(get, 500, b"disk"),
        lambda get: result(get, 503),
        lambda get: result(get, 200, b"not what a get is answered with"),
        lambda get: HANG_UP,
        lambda get: b"gibberish\r\n",
    ],
    ids=["closed", "missing", "error", "busy", "wrong kind", "broken connection", "garbage"],
)
def test_an_error_delays_and_loses_nothing(
    consumer: Consumer, seen: Seen, start_broker: StartBroker, trouble: Callable[[Get], bytes]
) -> None:
    shelf, asked = Shelf(*FRAMES), []

    def sometimes(get: Get) -> bytes | None:
        asked.append(get.offset)
        return trouble(get) if len(asked) % 2 else None

    shelf.special = sometimes
    start_broker(0, {"orders": 1}, shelf)
    consumer.start()
    wait_until(lambda: len(seen.payloads) >= 30)
    assert seen.payloads == EVERYTHING


def test_a_silent_broker_does_not_stop_the_others(client: Client, seen: Seen, start_broker: StartBroker) -> None:
    silent = start_broker(0, {"orders": 1})
    silent.peer.handler = lambda request: None
    start_broker(1, {"orders": 1}, Shelf(*FRAMES))
    config = ConsumerConfig(backoff_s_max=0.1, fetch_timeout_s=0.3, runners=2)
    with client.consumer("group", config=config) as consumer:
        consumer.subscribe("orders", seen)
        consumer.start()
        wait_until(lambda: seen.payloads == EVERYTHING)
        silent.peer.handler = Shelf(*FRAMES)
        wait_until(lambda: len(seen.payloads) == 60)


def test_a_broken_message_stops_its_partition_there_until_it_reads_well(
    consumer: Consumer, seen: Seen, start_broker: StartBroker, caplog: pytest.LogCaptureFixture
) -> None:
    shelf = Shelf(*FRAMES)
    sound = shelf.data
    broken = len(b"".join(FRAMES[:5])) + 20
    shelf.data = sound[:broken] + b"!" + sound[broken + 1 :]
    start_broker(0, {"orders": 1}, shelf)
    consumer.start()
    wait_until(lambda: "broken message, asking again" in caplog.text)
    time.sleep(0.3)
    assert seen.payloads == EVERYTHING[:5]
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 1  # once, not at every round
    assert "orders/0-0: invalid message at offset 105: checksum" in errors[0].getMessage()
    shelf.data = sound
    wait_until(lambda: seen.payloads == EVERYTHING)


def test_a_release_that_failed_half_way_leaves_no_partition_unread(
    client: Client, consumer: Consumer, seen: Seen, start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner node stays, the partition is ours again a moment later: it must be fetched again."""
    broker = start_broker(0, {"orders": 1}, Shelf(*FRAMES))
    consumer.start()
    wait_until(lambda: len(seen.payloads) == 30)
    failed = threading.Event()
    release = Ownership.release_many

    def fail_once(self: Ownership, claims: Mapping[TopicPartition, Claimed]) -> dict[TopicPartition, bool]:
        if not failed.is_set():
            failed.set()
            raise ZooKeeperUnavailable("injected")
        return release(self, claims)

    monkeypatch.setattr(Ownership, "release_many", fail_once)
    broker.registration.unregister()
    assert failed.wait(60)
    broker.registration.register()
    wait_until(lambda: len(consumer.owned()) == 1)
    broker.peer.handler = Shelf(*FRAMES, encode_frame(30, 0, b"new"))
    wait_until(lambda: seen.payloads[-1] == b"new")
    assert len(seen.payloads) == 31
    del client


class Repeating(Ledger):
    """An OffsetStore that names a lost partition twice, once."""

    def commit(self, entries: Sequence[OffsetEntry]) -> None:
        if self.failures:
            self.failures = 0
            raise OwnershipLost([(entry.topic, entry.partition) for entry in entries] * 2)
        super().commit(entries)


def test_a_store_may_name_a_lost_partition_twice(client: Client, start_broker: StartBroker) -> None:
    start_broker(0, {"orders": 1}, Shelf(FRAMES[0]))
    events: list[object] = []
    config = ConsumerConfig(backoff_s_max=0.1, commit_period_s=0.1, runners=1)
    with client.consumer("group", Repeating(0, events), config=config) as consumer:
        consumer.subscribe("orders", lambda batch: events.append("delivered"))
        consumer.start()
        wait_until(lambda: len(events) >= 3)
    assert events == ["delivered", "delivered", (len(FRAMES[0]), False)]


def test_a_seek_counts_though_the_answer_on_its_way_stops_the_partition(
    consumer: Consumer, seen: Seen, start_broker: StartBroker
) -> None:
    shelf = Shelf(*FRAMES)
    asked, sought = threading.Event(), threading.Event()

    def beyond(get: Get) -> bytes | None:
        if asked.is_set():
            return None
        asked.set()
        assert sought.wait(60)
        return result(get, 416, b"0")

    shelf.special = beyond
    start_broker(0, {"orders": 1}, shelf)
    consumer.start()
    assert asked.wait(60)
    assert consumer.seek("orders", Partition(0, 0), "earliest")
    sought.set()
    wait_until(lambda: len(seen.payloads) >= 30)
    assert seen.payloads == EVERYTHING
    assert consumer.paused() == []


def test_messages_that_arrive_in_a_pause_are_not_fetched_again_and_again(
    client: Client, seen: Seen, start_broker: StartBroker
) -> None:
    shelf = Shelf()
    broker = start_broker(0, {"orders": 1}, shelf)
    with client.consumer("group", config=ConsumerConfig(backoff_s_max=0.1, runners=1)) as consumer:
        consumer.subscribe("orders", seen)
        consumer.start()
        wait_until(consumer.is_caught_up)
        pauses: list[int] = []

        def pause(get: Get) -> None:
            if not pauses:
                shelf.data = FRAMES[0]
                pauses.append(consumer._fetcher.assignments.pause())  # as the loss of ZooKeeper does

        shelf.special = pause
        wait_until(lambda: not consumer.is_caught_up())
        before = len(broker.peer.received)
        time.sleep(0.5)
        assert len(broker.peer.received) - before <= 1
        consumer._fetcher.assignments.resume(pauses[0])
        wait_until(lambda: seen.payloads == [b"0"])
