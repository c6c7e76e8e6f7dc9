"""A broker that ends below what a consumer has fetched, after a promotion that lost messages: the group's offset never
stands above a message that the broker has and that was not consumed."""

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest

from meta_client.aio.client import Client as AsyncClient
from meta_client.client import Client
from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.consumer import Consumer
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.protocol.messages import encode_frame
from meta_client.protocol.requests import Get
from tests.fixtures.loops import in_loop, until
from tests.meta_client.conftest import StartBroker
from tests.meta_client.consumer.test_fetcher import FRAMES, Ledger, Shelf, wait_until
from zk.embedded.chroot import Chroot
from zk.tree.nodes import Partition

CONFIG = ConsumerConfig(backoff_s_max=0.1, commit_period_s=0.05, runners=2)
SIZES = [len(frame) for frame in FRAMES]
NEW = [encode_frame(1000 + number, 0, b"new%d" % number) for number in range(20)]


def offset(count: int) -> int:
    """Return the offset behind the first *count* messages."""
    return sum(SIZES[:count])


class Promoted(Shelf):
    """A broker that loses all but the first messages, once everything was fetched."""

    def __init__(self, left: int) -> None:
        super().__init__(*FRAMES)
        self.left = left
        self.is_fetched = threading.Event()
        self.special = self._look

    def _look(self, get: Get) -> None:
        if get.offset == offset(30):
            self.is_fetched.set()

    def lose(self) -> None:
        assert self.is_fetched.wait(60)
        self.data = b"".join(FRAMES[: self.left])


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger(0, [])
    ledger.failures = 0
    return ledger


def is_moved(caplog: pytest.LogCaptureFixture) -> Callable[[], bool]:
    return lambda: "offset moved" in caplog.text


def take(consumer: Consumer, count: int) -> list[ReceivedMessage]:
    taken: list[ReceivedMessage] = []
    while len(taken) < count:
        some = consumer.fetch(count - len(taken), timeout_s=60)
        assert some
        taken += some
    return taken


def stored(ledger: Ledger) -> Iterator[int]:
    return (each[0] for each in ledger.events if isinstance(each, tuple))


@pytest.mark.parametrize("left", [3, 10])
def test_what_was_fetched_ahead_is_taken_first(
    client: Client, ledger: Ledger, start_broker: StartBroker, caplog: pytest.LogCaptureFixture, left: int
) -> None:
    shelf = Promoted(left)
    start_broker(0, {"orders": 1}, shelf)
    with client.consumer("group", ledger, config=CONFIG) as consumer:
        consumer.subscribe("orders")
        consumer.start()
        taken = take(consumer, 5)
        shelf.lose()
        wait_until(is_moved(caplog))
        taken += take(consumer, 1)  # so that five are consumed
        wait_until(lambda: bool(ledger.events))
        assert set(stored(ledger)) == {min(offset(5), offset(left))}
        taken += take(consumer, 24)
        assert [message.payload for message in taken] == [b"%d" % number for number in range(30)]
        shelf.data += b"".join(NEW)
        assert [message.payload for message in take(consumer, 20)] == [b"new%d" % number for number in range(20)]
        ended = ledger.events.index((offset(left), True))
        assert max(stored(ledger)) == offset(left), "above new messages that were handed out, and are not consumed"
        consumer.fetch(1, timeout_s=0)
        wait_until(lambda: ledger.events[-1] == (offset(left) + sum(map(len, NEW)), False))
    assert ended < len(ledger.events) - 1


@in_loop
async def test_tasks_take_what_was_fetched_ahead_first(
    zookeeper: Chroot, ledger: Ledger, start_broker: StartBroker, caplog: pytest.LogCaptureFixture
) -> None:
    shelf = Promoted(10)
    start_broker(0, {"orders": 1}, shelf)
    taken: list[bytes] = []
    async with AsyncClient(zookeeper.connect) as client, asyncio.timeout(120):
        consumer = client.consumer("group", ledger, config=CONFIG)
        consumer.subscribe("orders")
        async with consumer:
            async for message in consumer:
                taken.append(message.payload)
                if len(taken) == 6:
                    await until(shelf.is_fetched.is_set)
                    shelf.lose()
                    await until(is_moved(caplog))
                    await until(lambda: bool(ledger.events))
                    assert set(stored(ledger)) == {offset(5)}
                if len(taken) == 30:
                    shelf.data += NEW[0]
                if len(taken) == 31:
                    break
            assert max(stored(ledger)) == offset(10)
    assert taken == [*(b"%d" % number for number in range(30)), b"new0"]
    assert ledger.events[-1] == (offset(10) + len(NEW[0]), False)


@pytest.mark.parametrize("left", [3, 10])
@pytest.mark.parametrize("is_pulled", [False, True])
def test_what_is_not_acknowledged_comes_again_and_late_acknowledgements_do_not_count_for_others(
    client: Client,
    ledger: Ledger,
    start_broker: StartBroker,
    caplog: pytest.LogCaptureFixture,
    left: int,
    is_pulled: bool,
) -> None:
    shelf = Promoted(left)
    start_broker(0, {"orders": 1}, shelf)
    got: list[ReceivedMessage] = []
    with client.consumer("group", ledger, config=CONFIG) as consumer:
        consumer.subscribe("orders", on_message=None if is_pulled else got.append, acknowledge="manual")
        consumer.start()

        def wait_for(count: int) -> None:
            if is_pulled:
                got.extend(take(consumer, count - len(got)))
            wait_until(lambda: len(got) == count)

        wait_for(30)
        assert consumer.acknowledge(got[4])
        wait_until(lambda: ledger.events == [(offset(5), False)])
        shelf.lose()
        wait_until(is_moved(caplog))
        begin = min(5, left)
        wait_until(lambda: (offset(begin), True) in ledger.events)
        shelf.data += b"".join(NEW)
        wait_for(30 + left - begin + 20)
        again = [b"%d" % number for number in range(begin, left)]
        assert [message.payload for message in got[30:]] == [*again, *(b"new%d" % number for number in range(20))]
        assert set(stored(ledger)) == {offset(5), offset(begin)}
        assert not consumer.acknowledge(got[29])
        assert consumer.acknowledge(got[-2])
        wait_until(lambda: ledger.events[-1] == (got[-2].next_offset, False))
        assert set(stored(ledger)) == {offset(5), offset(begin), got[-2].next_offset}


def test_an_end_that_is_lower_than_stored_is_stored_before_anything_is_delivered(
    client: Client, ledger: Ledger, start_broker: StartBroker
) -> None:
    shelf = Promoted(10)
    start_broker(0, {"orders": 1}, shelf)
    with client.consumer("group", ledger, config=CONFIG) as consumer:
        events = ledger.events
        consumer.subscribe("orders", lambda batch: events.append([m.payload for m in batch.messages]))
        consumer.start()
        wait_until(lambda: (offset(30), False) in events)
        consumer.pause(("orders", Partition(0, 0)))
        shelf.lose()
        ledger.failures = 3
        events.clear()
        assert consumer.seek("orders", Partition(0, 0), "latest")
        consumer.resume(("orders", Partition(0, 0)))
        wait_until(lambda: ledger.failures < 3)
        shelf.data += NEW[0]
        wait_until(lambda: [b"new0"] in events)
    assert events[:2] == [(offset(10), True), [b"new0"]]
