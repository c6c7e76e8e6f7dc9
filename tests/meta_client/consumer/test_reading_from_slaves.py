"""A consumer between a master and its slaves: where it asks, and that it misses and repeats nothing."""

import time
from collections.abc import Callable, Iterator

import pytest

from meta_client.client import Client
from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.consumer import Consumer
from meta_client.consumer.messages.batch import Batch
from meta_client.protocol.messages import encode_frame
from meta_client.protocol.requests import Fetch, Request, Version
from tests.meta_client.conftest import ScriptedBroker, StartBroker
from tests.meta_client.peer import HANG_UP, ok, opaque_of

FRAMES = [encode_frame(number, 0, b"%04d" % number) for number in range(40)]
SIZE = len(FRAMES[0])
ONE_TOPIC = {"orders": 1}


class Replica:
    """A broker of metaq that has messages [first, end) of one partition, and names *read_from* in each answer."""

    def __init__(self, first: int = 0, end: int = len(FRAMES), read_from: str = "m") -> None:
        self.first = first
        self.end = end
        self.read_from = read_from
        self.near = end  # from this message on it names the master
        self.is_slave = False
        self.hangs_up = False
        self.data_answers = 0
        self.waits = 0

    def __call__(self, request: Request) -> bytes | None:
        if isinstance(request, Version):
            return ok(request, b"1.4.6 metaq/0.1 fetch")
        if not isinstance(request, Fetch):
            return ok(request)
        if self.hangs_up:
            return HANG_UP
        number, end = request.offset // SIZE, self.end
        if number < self.first:
            return self._result(request, 301, b"%d" % (self.first * SIZE))
        if number > end:
            return self._result(request, 301, b"%d" % (end * SIZE))  # a genuine broker may be told to
        if number == end and request.wait_ms:
            self.waits += 1
            return None  # it waits there
        body = b"".join(FRAMES[number : min(number + 2, end)])
        self.data_answers += bool(body)
        behind = b" 4096 17" if self.is_slave else b""
        read_from = self.read_from.encode() if number < self.near else b"m"
        head = b"data %d %d %b%b %d\r\n" % (len(body), end * SIZE, read_from, behind, request.opaque)
        return head + body

    @staticmethod
    def _result(request: Request, status: int, text: bytes) -> bytes:
        return b"result %d %d %d\r\n%b" % (status, len(text), opaque_of(request), text)


def slave(first: int = 0, end: int = len(FRAMES), read_from: str = "m") -> Replica:
    replica = Replica(first, end, read_from)
    replica.is_slave = True
    return replica


class Seen:
    def __init__(self) -> None:
        self.payloads: list[bytes] = []

    def __call__(self, batch: Batch) -> None:
        self.payloads += [message.payload for message in batch.messages]

    def wait_for(self, count: int) -> None:
        wait_until(lambda: len(self.payloads) >= count)
        assert self.payloads == [b"%04d" % number for number in range(count)]


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def consumer(client: Client, seen: Seen) -> Iterator[Consumer]:
    with client.consumer("group", config=ConsumerConfig(backoff_s_max=0.1, runners=2)) as it:
        it.subscribe("orders", seen)
        yield it


def gone(broker: ScriptedBroker) -> None:
    broker.registration.unregister()


def test_it_follows_the_masters_word_to_a_slave_and_back(
    start_broker: StartBroker, consumer: Consumer, seen: Seen
) -> None:
    master, helper = Replica(read_from="s3"), slave(read_from="s3")
    start_broker(0, ONE_TOPIC, master)
    start_broker(0, ONE_TOPIC, helper, slave_id=3)
    master.near = helper.near = 30
    consumer.start()
    seen.wait_for(40)
    wait_until(consumer.is_caught_up)
    assert helper.data_answers == 15  # from 2 up to the answer at 30, which names the master
    assert master.data_answers == 1 + 4


def test_a_slave_that_breaks_off_is_left_for_the_master(
    start_broker: StartBroker, consumer: Consumer, seen: Seen
) -> None:
    master, helper = Replica(read_from="s3"), slave(read_from="s3")
    helper.hangs_up = True
    start_broker(0, ONE_TOPIC, master)
    start_broker(0, ONE_TOPIC, helper, slave_id=3)
    consumer.start()
    seen.wait_for(40)
    assert (master.data_answers, helper.data_answers) == (20, 0)


@pytest.mark.scenario("H02")
def test_a_slave_is_read_while_the_master_is_away_and_left_at_once_when_it_is_back(
    start_broker: StartBroker, consumer: Consumer, seen: Seen
) -> None:
    master, helper = Replica(end=10), slave(end=20)
    first = start_broker(0, ONE_TOPIC, master)
    start_broker(0, ONE_TOPIC, helper, slave_id=1)
    consumer.start()
    seen.wait_for(10)
    wait_until(lambda: master.waits > 0)
    assert helper.data_answers == 0
    gone(first)  # what waits at the master comes back
    seen.wait_for(20)
    wait_until(lambda: helper.waits > 0)
    again = Replica(end=30)
    start_broker(0, ONE_TOPIC, again)
    seen.wait_for(30)  # though what waits at the slave has no answer
    wait_until(lambda: again.waits > 0)


def test_nobody_is_sent_back_by_a_slave_that_has_less(
    start_broker: StartBroker, consumer: Consumer, seen: Seen
) -> None:
    master, helper = Replica(end=30), slave(end=10)
    first = start_broker(0, ONE_TOPIC, master)
    start_broker(0, ONE_TOPIC, helper, slave_id=1)
    consumer.start()
    seen.wait_for(30)
    gone(first)
    wait_until(lambda: len(seen.payloads) == 30 and helper.waits == helper.data_answers == 0)
    time.sleep(0.3)
    helper.end = 40
    seen.wait_for(40)


def test_nobody_is_sent_past_messages_that_the_master_has(
    start_broker: StartBroker, consumer: Consumer, seen: Seen
) -> None:
    master, helper = Replica(read_from="s1"), slave(first=20, read_from="s1")
    start_broker(0, ONE_TOPIC, master)
    start_broker(0, ONE_TOPIC, helper, slave_id=1)
    consumer.start()
    seen.wait_for(40)
    assert helper.data_answers == 0  # it was asked once, and then left alone
