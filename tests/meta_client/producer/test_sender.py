"""send_async against scripted brokers: what goes out, what each answer or silence becomes."""

import math
import threading
from _thread import allocate_lock
from collections.abc import Iterator
from dataclasses import replace

import pytest

from meta_client.client import Client
from meta_client.errors import BufferFull, NoBroker, ReplyTimeout, SendRefused, SendUnknown, TransactionMisuse
from meta_client.producer.partition_queues import BatchingConfig
from meta_client.protocol.checksum import crc31
from meta_client.protocol.encoder import encode_result
from meta_client.protocol.messages import iter_frames
from meta_client.protocol.requests import MultiPut, Put, Request, Version
from meta_client.protocol.status import Status
from tests.fixtures.no_threads import interrupted_starts, no_threads, running
from tests.fixtures.zookeeper_tree import wait_until
from tests.meta_client.conftest import StartBroker
from tests.meta_client.peer import HANG_UP, ok, opaque_of
from tests.meta_client.pooled import LOST, REFUSED, pooled_broker
from zk.embedded.chroot import Chroot
from zk.tree.nodes import Partition

pytestmark = pytest.mark.usefixtures("either_core")

VERSION = b"1.4.6 metaq/0.1.0 mput"
QUICK = BatchingConfig(batch_bytes=200, linger_s=0.01, delivery_timeout_s=60.0, buffer_bytes_max=1000)
HASTY = replace(QUICK, delivery_timeout_s=2.0)


@pytest.fixture
def quick(zookeeper: Chroot) -> Iterator[Client]:
    with Client(zookeeper.connect, batching=QUICK) as client:
        yield client


@pytest.fixture
def hasty(zookeeper: Chroot) -> Iterator[Client]:
    with Client(zookeeper.connect, batching=HASTY) as client:
        yield client


def stored(request: Request) -> bytes:
    match request:
        case Version(opaque):
            return encode_result(Status.SUCCESS, VERSION, opaque)
        case MultiPut():
            return ok(request, b"4096 %d 1000" % request.partition)
    raise AssertionError(request)


def batches(received: list[Request]) -> list[MultiPut]:
    return [request for request in received if isinstance(request, MultiPut)]


@pytest.mark.scenario("A18")
def test_messages_gather_and_each_learns_its_place(zookeeper: Chroot, start_broker: StartBroker) -> None:
    broker = start_broker(0, {"orders": 1}, stored)
    with Client(zookeeper.connect, batching=replace(QUICK, linger_s=60.0)) as client:
        producer = client.producer()
        handles = [producer.send_async("orders", b"x" * size, attribute="a") for size in (1, 2, 3)]
        producer.flush(60)
        results = [handle.result(0) for handle in handles]
    (batch,) = batches(broker.peer.received)
    assert (batch.count, batch.checksum, batch.key) == (3, crc31(batch.body), None)
    assert batch.sequence is not None
    assert batch.sequence.number == 0
    assert [(m.id, m.attribute, m.payload) for _, _, m in iter_frames(batch.body)] == [
        (0, "a", b"x"),
        (0, "a", b"xx"),
        (0, "a", b"xxx"),
    ]
    assert [(r.message_id, r.offset) for r in results] == [(4096, 1000), (4097, 1026), (4098, 1053)]
    assert all(handle.is_done for handle in handles)


def test_a_batch_without_an_answer_is_sent_again_with_its_number(quick: Client, start_broker: StartBroker) -> None:
    lost = iter([HANG_UP, HANG_UP])

    def handler(request: Request) -> bytes:
        return next(lost, None) or stored(request) if isinstance(request, MultiPut) else stored(request)

    broker = start_broker(0, {"orders": 1}, handler)
    assert quick.producer().send_async("orders", b"once").result(60).offset == 1000
    sent = batches(broker.peer.received)
    assert len(sent) == 3
    assert len({(batch.sequence, batch.body) for batch in sent}) == 1


def test_a_thread_that_could_not_be_started_is_started_by_the_next_message(
    zookeeper: Chroot, start_broker: StartBroker
) -> None:
    broker = start_broker(0, {"orders": 1}, stored)
    with Client(zookeeper.connect, batching=QUICK) as client:
        producer = client.producer()
        for send in (
            lambda: producer.send_async("orders", b"refused"),
            lambda: producer.send_many("orders", [b"refused", b"refused"]),
        ):
            with no_threads(), pytest.raises(RuntimeError, match="can't start new thread"):
                send()
        producer.send_async("orders", b"sent")
        producer.flush(60)
    payloads = [m.payload for batch in batches(broker.peer.received) for _, _, m in iter_frames(batch.body)]
    assert payloads == [b"sent"]


def test_an_interrupt_once_the_thread_has_started_leaves_that_one(zookeeper: Chroot, start_broker: StartBroker) -> None:
    """Not another one beside it, nor one that outlives its client."""
    broker, former = start_broker(0, {"orders": 1}, stored), running("metaq sender")
    with Client(zookeeper.connect, batching=QUICK) as client:
        producer = client.producer()
        with interrupted_starts("metaq sender"), pytest.raises(KeyboardInterrupt):
            producer.send_async("orders", b"not taken")
        producer.send_async("orders", b"sent")
        producer.flush(60)
        assert len(running("metaq sender") - former) == 1
    assert not running("metaq sender") - former
    payloads = [m.payload for batch in batches(broker.peer.received) for _, _, m in iter_frames(batch.body)]
    assert payloads == [b"sent"]


class GreenLock:
    """A lock written in Python, as gevent puts in the place of the interpreter's."""

    def __init__(self) -> None:
        self._lock = allocate_lock()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        return self._lock.acquire(blocking, timeout)

    def release(self) -> None:
        self._lock.release()

    def locked(self) -> bool:
        return self._lock.locked()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


def test_locks_may_be_gevent_s(zookeeper: Chroot, start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = start_broker(0, {"orders": 1}, stored)
    monkeypatch.setattr(threading, "Lock", GreenLock)
    with Client(zookeeper.connect, batching=QUICK) as client:
        producer = client.producer()
        for _ in range(3):
            producer.send_async("orders", b"x")
        producer.flush(60)
    assert sum(batch.count for batch in batches(broker.peer.received)) == 3


def test_a_refusal_is_final_and_flush_tells_it_once(quick: Client, start_broker: StartBroker) -> None:
    def handler(request: Request) -> bytes:
        if isinstance(request, MultiPut):
            return encode_result(Status.INTERNAL_ERROR, b"no\r\nroom", request.opaque)
        return stored(request)

    broker = start_broker(0, {"orders": 1}, handler)
    producer = quick.producer()
    handle = producer.send_async("orders", b"x")
    with pytest.raises(SendRefused, match="no room"):
        producer.flush(60)
    producer.flush(60)
    with pytest.raises(SendRefused):
        handle.result(0)
    assert len(batches(broker.peer.received)) == 1


def test_a_batch_goes_after_its_linger_time(quick: Client, start_broker: StartBroker) -> None:
    broker = start_broker(0, {"orders": 1}, stored)
    quick.producer().send_async("orders", b"alone")
    wait_until(lambda: len(batches(broker.peer.received)) == 1)


def test_an_unanswered_request_is_given_up_as_unknown(hasty: Client, start_broker: StartBroker) -> None:
    start_broker(0, {"orders": 1}, lambda request: HANG_UP if isinstance(request, MultiPut) else stored(request))
    with pytest.raises(SendUnknown, match=r"given up after \d+ attempts"):
        hasty.producer().send_async("orders", b"x").result(60)


def test_silence_is_given_up_when_the_time_is_over(zookeeper: Chroot, start_broker: StartBroker) -> None:
    start_broker(0, {"orders": 1}, lambda request: stored(request) if isinstance(request, Version) else None)
    config = BatchingConfig(linger_s=0.0, delivery_timeout_s=0.5)
    with (
        Client(zookeeper.connect, batching=config) as client,
        pytest.raises(SendUnknown, match="delivery_timeout_s is over"),
    ):
        client.producer().send_async("orders", b"x").result(60)


def test_what_was_never_sent_goes_to_another_broker_and_what_was_asked_for_waits(
    quick: Client, hasty: Client, start_broker: StartBroker
) -> None:
    dead = start_broker(0, {"orders": 1}, stored)
    other = start_broker(1, {"orders": 1}, stored)
    producer = quick.producer()
    producer.send_async("orders", b"", partition="0-0").result(60)
    dead.peer.close()  # ZooKeeper still says that it is up
    waiting = hasty.producer().send_async("orders", b"asked for", partition="0-0")
    handles = [producer.send_async("orders", b"x" * 150) for _ in range(40)]
    assert {str(handle.result(60).partition) for handle in handles} == {"1-0"}
    assert sum(batch.count for batch in batches(other.peer.received)) == 40
    with pytest.raises(NoBroker, match=r"orders/0-0: delivery_timeout_s is over"):
        waiting.result(60)


def test_a_genuine_broker_gets_them_one_by_one_and_none_twice(quick: Client, start_broker: StartBroker) -> None:
    offsets = iter([10, 500, 40])

    def genuine(request: Request) -> bytes | None:
        if isinstance(request, Version):
            return encode_result(Status.SUCCESS, b"1.4.6", request.opaque)
        assert isinstance(request, Put)
        return ok(request, b"7 0 %d" % next(offsets)) if request.body != b"lost" else HANG_UP

    broker = start_broker(0, {"orders": 1}, genuine)
    producer = quick.producer()
    handles = [producer.send_async("orders", bytes([number])) for number in range(3)]
    assert [handle.result(60).offset for handle in handles] == [10, 500, 40]
    with pytest.raises(SendUnknown):
        producer.send_async("orders", b"lost").result(60)
    assert sum(isinstance(request, Put) and request.body == b"lost" for request in broker.peer.received) == 1


def test_a_genuine_broker_stores_them_in_order_though_it_executes_puts_in_a_pool(
    quick: Client, start_broker: StartBroker
) -> None:
    """Partitions side by side, the messages of one after one another."""
    with pooled_broker({"orders": 2}, start_broker) as broker:
        producer = quick.producer()
        sent = [b"%03d" % number for number in range(150)]
        handles = [
            [producer.send_async("orders", body, partition=Partition(0, number)) for number in (0, 1)] for body in sent
        ]
        producer.flush(60)
        assert broker.stored == {0: sent, 1: sent}
        assert (broker.most_in_a_partition, broker.most_in_all) == (1, 2)
        for index, pair in enumerate(handles):
            assert [handle.result(0).offset for handle in pair] == [index * 23, index * 23]


def test_each_message_to_a_genuine_broker_has_an_outcome_of_its_own(quick: Client, start_broker: StartBroker) -> None:
    bodies = [b"first", REFUSED, b"third", LOST, b"fifth", b"sixth"]
    with pooled_broker({"orders": 1}, start_broker) as broker:
        producer = quick.producer()
        first, refused, *others = [producer.send_async("orders", body) for body in bodies]
        with pytest.raises(SendRefused, match="no room"):
            producer.flush(60)
        producer.flush(60)  # told once
        third, lost, *last = others
        assert [handle.result(0).offset for handle in (first, third, *last)] == [0, 25, 25 + 25 + 34, 25 + 25 + 34 + 25]
        with pytest.raises(SendRefused):
            refused.result(0)
        with pytest.raises(SendUnknown, match="look before repeating it"):
            lost.result(0)
        assert broker.stored == {0: [body for body in bodies if body != REFUSED]}, "each once, in order"


def test_a_genuine_broker_that_is_slow_gets_all_of_them(zookeeper: Chroot, start_broker: StartBroker) -> None:
    """Queued batches are kept for as long as answers come."""
    config = BatchingConfig(linger_s=0.0, delivery_timeout_s=0.05)
    with pooled_broker({"orders": 1}, start_broker) as broker, Client(zookeeper.connect, batching=config) as client:
        producer = client.producer()
        sent = [b"%d" % number for number in range(300)]
        for body in sent:
            producer.send_async("orders", body)
        producer.flush(60)
        assert broker.stored == {0: sent}


def test_what_may_be_stored_under_its_number_is_not_sent_to_a_broker_that_knows_no_numbers(
    quick: Client, start_broker: StartBroker
) -> None:
    """A genuine broker in the place of one of ours."""
    versions = iter([VERSION, b"1.4.6.2"])

    def handler(request: Request) -> bytes:
        if isinstance(request, Version):
            return encode_result(Status.SUCCESS, next(versions), request.opaque)
        return HANG_UP

    broker = start_broker(0, {"orders": 1}, handler)
    with pytest.raises(SendUnknown, match="would not know it again"):
        quick.producer().send_async("orders", b"once").result(60)
    assert not [request for request in broker.peer.received if isinstance(request, Put)]


def test_closing_tells_what_may_be_at_a_genuine_broker_from_what_is_not(
    zookeeper: Chroot, start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meta_client.producer.sender.CLOSE_TIMEOUT_S", 0.1)
    is_asked = threading.Event()

    def silent(request: Request) -> bytes | None:
        if isinstance(request, Version):
            return encode_result(Status.SUCCESS, b"1.4.6.2", request.opaque)
        is_asked.set()
        return None

    start_broker(0, {"orders": 1}, silent)
    with Client(zookeeper.connect, batching=QUICK) as client:
        producer = client.producer()
        asked, waiting = producer.send_async("orders", b"asked"), producer.send_async("orders", b"waiting")
        assert is_asked.wait(60)
    with pytest.raises(SendUnknown):
        asked.result(0)
    with pytest.raises(NoBroker):
        waiting.result(0)


def test_close_tells_a_thread_that_waits_for_what_no_broker_takes(
    zookeeper: Chroot, start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch rests before it is tried again when the client is closed."""
    monkeypatch.setattr("meta_client.producer.sender.CLOSE_TIMEOUT_S", 0.1)
    start_broker(0, {"orders": 1}, stored).peer.close()
    told: list[str] = []
    begun = threading.Event()

    def flush() -> None:
        begun.set()
        with pytest.raises(NoBroker) as caught:
            producer.flush()
        told.append(str(caught.value))

    with Client(zookeeper.connect) as client:
        producer = client.producer()
        producer.send_async("orders", b"nobody takes it")
        flushing = threading.Thread(target=flush, daemon=True)
        flushing.start()
        assert begun.wait(60)  # after a close there is nothing to wait for
        flushing.join(0.5)
    flushing.join(60)
    assert told
    assert "the client was closed" in told[0]


def test_a_time_limit_may_be_endless(zookeeper: Chroot, start_broker: StartBroker) -> None:
    start_broker(0, {"orders": 1}, stored)
    with Client(zookeeper.connect) as client:
        producer = client.producer()
        assert producer.send("orders", b"1", timeout_s=math.inf).partition == producer.partitions("orders")[0]
        assert producer.send_async("orders", b"2").result(math.inf).offset is not None
        handle = producer.send_async("orders", b"3")
        producer.flush(math.inf)
        assert handle.is_done


def test_a_partition_of_another_kind_is_named(quick: Client, start_broker: StartBroker) -> None:
    start_broker(0, {"orders": 1}, stored)
    for wrong in (0, (0, 0), b"0-0"):
        with pytest.raises(ValueError, match="is no partition: give <broker id>-<number>"):
            quick.producer().send("orders", b"", partition=wrong)  # type: ignore[arg-type]


def test_flush_waits_for_nothing_that_others_send_meanwhile(quick: Client, start_broker: StartBroker) -> None:
    start_broker(0, {"orders": 1}, stored)
    has_flushed = threading.Event()

    def send() -> None:
        while not has_flushed.is_set():
            quick.producer().send_async("orders", b"another's")

    others = threading.Thread(target=send)
    others.start()
    try:
        mine = quick.producer().send_async("orders", b"mine")
        quick.producer().flush(20)
        assert mine.is_done
    finally:
        has_flushed.set()
        others.join()


def test_a_full_buffer_blocks_until_there_is_room(quick: Client, start_broker: StartBroker) -> None:
    gate = threading.Event()

    def slow(request: Request) -> bytes:
        if isinstance(request, MultiPut):
            gate.wait(60)
        return stored(request)

    start_broker(0, {"orders": 1}, slow)
    producer = quick.producer()
    for _ in range(9):
        producer.send_async("orders", b"x" * 80)
    blocked = threading.Thread(target=producer.send_async, args=("orders", b"x" * 200))
    blocked.start()
    blocked.join(0.3)
    assert blocked.is_alive()
    with pytest.raises(ReplyTimeout):
        producer.flush(0.05)
    gate.set()
    blocked.join(60)
    assert not blocked.is_alive()
    producer.flush(60)


def test_a_full_buffer_can_raise_instead(zookeeper: Chroot, start_broker: StartBroker) -> None:
    start_broker(0, {"orders": 1}, lambda request: stored(request) if isinstance(request, Version) else None)
    config = BatchingConfig(batch_bytes=200, buffer_bytes_max=300, raise_when_full=True)
    client = Client(zookeeper.connect, batching=config)
    producer = client.producer()
    handle = producer.send_async("orders", b"x" * 200)
    with pytest.raises(BufferFull, match="buffer_bytes_max is 300"):
        producer.send_async("orders", b"x" * 200)
    threading.Timer(0.1, client.connections.close).start()
    client.close()
    with pytest.raises((SendUnknown, NoBroker)):
        handle.result(0)


def test_not_within_a_transaction(quick: Client, start_broker: StartBroker) -> None:
    start_broker(0, {"orders": 1}, lambda request: encode_result(Status.SUCCESS, b"", opaque_of(request)))
    producer = quick.producer()
    with producer.transaction(), pytest.raises(TransactionMisuse):
        producer.send_async("orders", b"x")
