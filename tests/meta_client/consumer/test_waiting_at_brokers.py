"""Long polls: requests that wait at the broker, and brokers that announce support for them."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from meta_client.client import Client
from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.fetch_client import WAITING_BYTES_MAX
from meta_client.consumer.messages.batch import Batch
from meta_client.net.connection import Connection
from meta_client.net.pending_reply import OnDone, PendingReply
from meta_client.protocol.messages import encode_frame
from meta_client.protocol.requests import Fetch, Get, Request, Version
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.wire import WireClient
from tests.meta_client.conftest import StartBroker
from tests.meta_client.peer import ok, opaque_of
from zk.embedded.chroot import Chroot
from zk.tree.nodes import Partition

SLOW_TO_ASK = ConsumerConfig(runners=1, backoff_s_max=120.0)  # what comes quickly was waited for at the broker


class Seen:
    def __init__(self) -> None:
        self.payloads: list[bytes] = []

    def __call__(self, batch: Batch) -> None:
        self.payloads += [message.payload for message in batch.messages]

    def wait_for(self, count: int) -> None:
        wait_until(lambda: len(self.payloads) >= count)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def wire(broker: BrokerProcess) -> Iterator[WireClient]:
    with WireClient(broker.port) as it:
        yield it


@pytest.fixture
def real_client(broker: BrokerProcess, zookeeper: Chroot) -> Iterator[Client]:
    del broker  # it is there first
    with Client(zookeeper.connect) as it:
        yield it


def gets(wire: WireClient) -> int:
    return next(int(line.split()[1]) for line in wire.stats() if line.startswith("cmd_get "))


def test_one_runner_serves_every_idle_partition_at_once(wire: WireClient, real_client: Client, seen: Seen) -> None:
    with real_client.consumer("group", config=SLOW_TO_ASK) as consumer:
        consumer.subscribe("orders", seen)
        consumer.start()
        wait_until(consumer.is_caught_up)
        for number in range(40):
            started = time.monotonic()
            wire.put("orders", number % 4, b"%d" % number)
            seen.wait_for(number + 1)
            assert time.monotonic() - started < 60
            wait_until(consumer.is_caught_up)
    assert seen.payloads == [b"%d" % number for number in range(40)]


def test_an_idle_consumer_asks_for_nothing(wire: WireClient, real_client: Client, seen: Seen) -> None:
    with real_client.consumer("group", config=ConsumerConfig(backoff_s_max=0.05)) as consumer:
        consumer.subscribe("orders", seen)
        consumer.start()
        wait_until(consumer.is_caught_up)

        def asks_for_nothing() -> bool:
            before = gets(wire)
            time.sleep(1.0)  # twenty times the back-off
            return gets(wire) == before

        wait_until(asks_for_nothing)  # once its requests wait


def test_it_closes_without_waiting_for_the_broker(real_client: Client, seen: Seen) -> None:
    consumer = real_client.consumer("group", config=SLOW_TO_ASK)
    consumer.subscribe("orders", seen)
    consumer.start()
    wait_until(consumer.is_caught_up)
    time.sleep(0.1)
    started = time.monotonic()
    consumer.close()
    assert time.monotonic() - started < SLOW_TO_ASK.fetch_wait_s / 2


def test_a_message_larger_than_what_waits_comes_whole(wire: WireClient, real_client: Client, seen: Seen) -> None:
    large = bytes(range(256)) * (WAITING_BYTES_MAX // 256 + 1)
    with real_client.consumer("group", config=SLOW_TO_ASK) as consumer:
        consumer.subscribe("orders", seen)
        consumer.start()
        wait_until(consumer.is_caught_up)
        wire.put("orders", 0, large)
        wire.put("orders", 0, b"after it")
        seen.wait_for(2)
    assert seen.payloads == [large, b"after it"]


def test_a_partition_is_never_delivered_twice_at_a_time_or_out_of_order(
    broker: BrokerProcess, real_client: Client
) -> None:
    at_work: set[int] = set()
    wrong: list[object] = []
    seen: dict[int, list[bytes]] = {number: [] for number in range(4)}

    def on_batch(batch: Batch) -> None:
        number = batch.partition.number
        if number in at_work:
            wrong.append(batch)
        at_work.add(number)
        time.sleep(0.001)
        seen[number] += [message.payload for message in batch.messages]
        at_work.discard(number)

    def produce() -> None:
        with WireClient(broker.port) as producer:
            for number in range(1_000):
                producer.put("orders", number % 4, b"%d" % number)

    with real_client.consumer("group", config=ConsumerConfig(runners=4)) as consumer:
        consumer.subscribe("orders", on_batch)
        consumer.start()
        thread = threading.Thread(target=produce)
        thread.start()
        wait_until(lambda: sum(map(len, seen.values())) >= 1_000)
        thread.join()
    assert wrong == []
    assert seen == {partition: [b"%d" % number for number in range(partition, 1_000, 4)] for partition in range(4)}


def test_a_broker_that_comes_back_is_waited_at_again(broker: BrokerProcess, real_client: Client, seen: Seen) -> None:
    with real_client.consumer("group", config=ConsumerConfig(runners=1)) as consumer:
        consumer.subscribe("orders", seen)
        consumer.start()
        wait_until(consumer.is_caught_up)
        for number, end in enumerate((broker.kill, broker.stop)):
            end()
            broker.start()
            with WireClient(broker.port) as wire:
                wire.put("orders", 0, b"%d" % number)
            seen.wait_for(number + 1)
    assert seen.payloads == [b"0", b"1"]


class Script:
    """Broker that announces `fetch` and has one message; *waits* answers requests to wait for more."""

    FRAME = encode_frame(1, 0, b"hello")

    def __init__(self, waits: Callable[[Fetch], bytes | None]) -> None:
        self.waits = waits
        self.asked_to_wait: list[Fetch] = []

    def __call__(self, request: Request) -> bytes | None:
        if not isinstance(request, Fetch):
            return ok(request, b"1.4.6 metaq/9 fetch")
        if request.offset == 0:
            return self.data(request, self.FRAME)
        if not request.wait_ms:
            return self.data(request, b"")
        self.asked_to_wait.append(request)
        return self.waits(request)

    def data(self, request: Request, body: bytes) -> bytes:
        return b"data %d %d m %d\r\n%b" % (len(body), len(self.FRAME), opaque_of(request), body)


HASTY = ConsumerConfig(runners=1, backoff_s_max=0.2, fetch_wait_s=0.2, fetch_timeout_s=0.3)


def test_a_broker_that_does_not_really_wait_is_not_pestered(
    client: Client, seen: Seen, start_broker: StartBroker
) -> None:
    script = Script(lambda fetch: script.data(fetch, b""))
    start_broker(0, {"orders": 1}, script)
    with client.consumer("group", config=ConsumerConfig(runners=1, backoff_s_max=0.2)) as consumer:
        consumer.subscribe("orders", seen)
        consumer.start()
        wait_until(consumer.is_caught_up)
        started = time.monotonic()
        wait_until(lambda: len(script.asked_to_wait) > 2)
        time.sleep(1.0)
        assert len(script.asked_to_wait) < 5 + 20 * (time.monotonic() - started)
    assert seen.payloads == [b"hello"]


def test_a_request_that_the_broker_forgot_is_repeated(
    client: Client, seen: Seen, start_broker: StartBroker, caplog: pytest.LogCaptureFixture
) -> None:
    script = Script(lambda fetch: None)
    start_broker(0, {"orders": 1}, script)
    with client.consumer("group", config=HASTY) as consumer:
        consumer.subscribe("orders", seen)
        consumer.start()
        wait_until(lambda: len(script.asked_to_wait) > 1)
        assert "get orders/0-0 at 25: no answer within" in caplog.text
        script.waits = lambda fetch: b"data 25 50 m %d\r\n%b" % (fetch.opaque, script.FRAME)
        seen.wait_for(2)


def test_a_long_poll_that_is_cancelled_while_it_is_sent_is_not_waited_for(
    client: Client, seen: Seen, start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_broker(0, {"orders": 1}, Script(lambda fetch: None))
    polls: list[tuple[Connection, int]] = []
    send = Connection.submit

    def submit(connection: Connection, request: Request, on_done: OnDone | None = None) -> PendingReply:
        if isinstance(request, Fetch) and request.wait_ms:
            polls.append((connection, request.opaque))
            if len(polls) == 1:
                assert consumer.seek("orders", Partition(0, 0), 0)
        return send(connection, request, on_done)

    monkeypatch.setattr(Connection, "submit", submit)
    with client.consumer("group", config=replace(SLOW_TO_ASK, runners=2)) as consumer:
        consumer.subscribe("orders", seen)
        consumer.start()
        seen.wait_for(2)
        wait_until(lambda: len(polls) == 2)
        wait_until(lambda: polls[0][1] not in polls[0][0]._pending)
        wait_until(lambda: polls[1][1] in polls[1][0]._pending)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_partition_goes_on_though_sending_its_long_poll_raised_what_nobody_expects(
    client: Client, seen: Seen, start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Script(lambda fetch: b"data 25 50 m %d\r\n%b" % (fetch.opaque, script.FRAME))
    start_broker(0, {"orders": 1}, script)
    send = Connection.submit
    failed: list[Request] = []

    def submit(connection: Connection, request: Request, on_done: OnDone | None = None) -> PendingReply:
        if isinstance(request, Fetch) and request.wait_ms and not failed:
            failed.append(request)
            raise RuntimeError("injected")
        return send(connection, request, on_done)

    monkeypatch.setattr(Connection, "submit", submit)
    with client.consumer("group", config=replace(SLOW_TO_ASK, runners=2, fetch_wait_s=100.0)) as consumer:
        consumer.subscribe("orders", seen)
        consumer.start()
        seen.wait_for(2)


def test_a_broker_with_too_many_waiting_is_asked_again_later_and_named_once(
    client: Client, seen: Seen, start_broker: StartBroker, caplog: pytest.LogCaptureFixture
) -> None:
    script = Script(lambda fetch: b"result 503 4 %d\r\nbusy" % fetch.opaque)
    start_broker(0, {"orders": 1}, script)
    with client.consumer("group", config=replace(HASTY, fetch_timeout_s=60.0)) as consumer:
        consumer.subscribe("orders", seen)
        consumer.start()
        wait_until(lambda: len(script.asked_to_wait) > 4)
        assert len([record for record in caplog.records if "fetch failed" in record.getMessage()]) == 1
        assert consumer.is_caught_up()


def test_a_genuine_broker_is_asked_for_its_version_once_and_gets_alone(
    client: Client, seen: Seen, start_broker: StartBroker
) -> None:
    answers = itertools.chain([b"value 25 %d\r\n" + Script.FRAME], itertools.repeat(b"result 404 0 %d\r\n"))

    def genuine(request: Request) -> bytes:
        if isinstance(request, Version):
            return ok(request, b"1.4.6")
        assert isinstance(request, Get), request
        return next(answers) % request.opaque

    broker = start_broker(0, {"orders": 1}, genuine)
    with client.consumer("group", config=replace(HASTY, fetch_timeout_s=60.0)) as consumer:
        consumer.subscribe("orders", seen)
        consumer.start()
        seen.wait_for(1)
        wait_until(lambda: len(broker.peer.received) > 5)
    assert [type(request) for request in broker.peer.received].count(Version) == 1
