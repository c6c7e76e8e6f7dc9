"""A producer of tasks: against a real broker, killed on the way, and against scripted ones."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from journal.records.xid import Xid
from meta_client.aio.client import Client
from meta_client.client import Client as ThreadedClient
from meta_client.errors import (
    BufferFull,
    ClientClosed,
    NoBroker,
    NoPartition,
    ReplyTimeout,
    SendRefused,
    SendUnknown,
    TransactionFailed,
    TransactionMisuse,
)
from meta_client.producer.partition_queues import BatchingConfig
from meta_client.protocol.checksum import crc31
from meta_client.protocol.errors import XaError
from meta_client.protocol.requests import MultiPut, Put, Request, TransactionCommand, TransactionVerb, Version
from meta_client.protocol.xa import XaCode
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.loops import in_loop, in_uvloop, until
from tests.meta_client.conftest import StartBroker
from tests.meta_client.peer import ok, opaque_of
from tests.meta_client.pooled import LOST, REFUSED, pooled_broker
from zk.embedded.chroot import Chroot

pytestmark = pytest.mark.usefixtures("either_core")

OURS = b"1.4.6 metaq/0.1.0 mput fetch status"
QUICK = BatchingConfig(linger_s=0.01, delivery_timeout_s=60.0)
HASTY = BatchingConfig(linger_s=0.01, delivery_timeout_s=2.0)


def stored(request: Request) -> bytes:
    if isinstance(request, Version):
        return ok(request, OURS)
    assert isinstance(request, Put | MultiPut)
    return ok(request, b"7 %d 1044" % request.partition)


def consumed(zookeeper: Chroot, topic: str) -> Counter[bytes]:
    """Return what a threaded consumer has seen once it reached the end."""
    seen: Counter[bytes] = Counter()
    with ThreadedClient(zookeeper.connect) as client, client.consumer("reader") as consumer:
        consumer.subscribe(topic, lambda batch: seen.update(message.payload for message in batch.messages))
        consumer.start()
        while not consumer.is_caught_up():
            pass
    return seen


@in_uvloop
async def test_everything_sent_in_any_way_arrives_once(zookeeper: Chroot, broker: BrokerProcess) -> None:
    async with Client(zookeeper.connect) as client:
        producer = client.producer()
        single = await producer.send("orders", b"single", partition="0-1")
        assert (str(single.partition), single.offset) == ("0-1", 0)
        handles = [await producer.send_async("orders", b"%d" % number) for number in range(3000)]
        await producer.flush()
        assert all(handle.is_done for handle in handles)
        assert len({(place.partition, place.offset) for place in [await handle for handle in handles]}) == 3000
        async with producer.transaction():
            await producer.send("orders", b"local")
        with contextlib.suppress(LookupError):
            async with producer.transaction():
                await producer.send("orders", b"never")
                raise LookupError
        await producer.tpc_begin(Xid.of("1", "b"), topics=("orders",))
        in_branch = await producer.send_async("orders", b"branch")
        assert await producer.tpc_prepare()
        assert (await in_branch).offset is None
        await producer.tpc_commit()
    expected = Counter([b"single", b"local", b"branch", *(b"%d" % number for number in range(3000))])
    assert await asyncio.to_thread(consumed, zookeeper, "orders") == expected


@in_loop
async def test_many_tasks_send_side_by_side_through_a_kill(zookeeper: Chroot, broker: BrokerProcess) -> None:
    """Batches are sent again until the broker is back, and stored once."""
    async with Client(zookeeper.connect) as client:

        async def work(number: int) -> None:
            producer = client.producer()
            handles = [await producer.send_async("orders", b"%d-%d" % (number, message)) for message in range(200)]
            if number == 3:
                await asyncio.to_thread(broker.kill)
                await asyncio.to_thread(broker.start)
            for handle in handles:
                await handle

        await asyncio.gather(*(work(number) for number in range(8)))
    seen = await asyncio.to_thread(consumed, zookeeper, "orders")
    assert seen == Counter(b"%d-%d" % (number, message) for number in range(8) for message in range(200))


@in_loop
async def test_a_prepared_branch_is_found_again_and_committed(zookeeper: Chroot, broker: BrokerProcess) -> None:
    xid = Xid.of("order-1", "db")
    async with Client(zookeeper.connect) as client:
        producer = client.producer(qualifier="shop")
        await producer.tpc_begin(xid, topics=("orders",))
        await producer.send("orders", b"in doubt")
        assert await producer.tpc_prepare()
    broker.kill()
    broker.start()
    async with Client(zookeeper.connect) as client:
        producer = client.producer(qualifier="shop")
        assert await producer.tpc_recover() == [xid]
        assert (await producer.tpc_list()).failures == {}
        await producer.tpc_commit(xid)
        status = await producer.tpc_status(xid, 0)
        assert status is not None
        assert status.name == "COMMITTED"
        with pytest.raises(XaError) as caught:
            await producer.tpc_rollback(Xid.of("never", "db"))
        assert caught.value.code is XaCode.XAER_NOTA
    assert await asyncio.to_thread(consumed, zookeeper, "orders") == Counter([b"in doubt"])


@in_loop
async def test_what_goes_out_and_in_turn(zookeeper: Chroot, start_broker: StartBroker) -> None:
    def genuine(request: Request) -> bytes:
        return ok(request, b"1.4.6") if isinstance(request, Version) else stored(request)

    broker = start_broker(0, {"orders": 4}, genuine)
    async with Client(zookeeper.connect) as client:
        producer = client.producer()
        results = [await producer.send("orders", b"hello", attribute="attr") for _ in range(3)]
        assert [result.partition.number for result in results] == [1, 2, 3]
        assert len(await producer.partitions("orders")) == 4
    put = broker.peer.received[1]
    assert isinstance(put, Put)
    assert (put.flag, put.checksum, put.body) == (1, crc31(put.body), b"\x00\x00\x00\x04attrhello")


@in_loop
async def test_what_is_no_success_raises(zookeeper: Chroot, start_broker: StartBroker) -> None:
    def refuse(request: Request) -> bytes:
        if isinstance(request, Version):
            return ok(request, OURS)
        return b"result 500 4 %d\r\nwhy?" % request.opaque  # type: ignore[union-attr]  # no quit comes here

    start_broker(0, {"orders": 1}, refuse)
    async with Client(zookeeper.connect, batching=QUICK) as client:
        producer = client.producer()
        with pytest.raises(SendRefused, match=r"the broker refused: why\?"):
            await producer.send("orders", b"")
        handle = await producer.send_async("orders", b"")
        with pytest.raises(SendRefused, match=r"the broker refused: why\?"):
            await handle
        with pytest.raises(SendRefused):  # told once
            await producer.flush()
        await producer.flush()
        with pytest.raises(NoPartition, match="no broker offers this topic"):
            await producer.send("nowhere", b"")
        async with producer.transaction():
            with pytest.raises(TransactionMisuse):
                await producer.send_async("orders", b"")
    with pytest.raises(ClientClosed):
        client.producer()


@in_loop
async def test_a_batch_without_an_answer_is_sent_again_and_given_up_as_unknown(
    zookeeper: Chroot, start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meta_client.producer.sending_engine.ANSWER_TIMEOUT_S", 0.05)
    monkeypatch.setattr("meta_client.producer.sending_engine.IDLE_S", 0.05)
    broker = start_broker(0, {"orders": 1}, lambda request: stored(request) if isinstance(request, Version) else None)
    async with Client(zookeeper.connect, batching=HASTY) as client:
        handle = await client.producer().send_async("orders", b"lost?")
        with pytest.raises(ReplyTimeout, match="still being sent"):
            await handle.result(0.01)
        with pytest.raises(SendUnknown, match="given up after"):
            await handle
    sequences = [request.sequence for request in broker.peer.received if isinstance(request, MultiPut)]
    assert len(sequences) > 1
    assert len({(it.producer, it.number) for it in sequences if it is not None}) == 1


@pytest.mark.parametrize("is_refused", [False, True])
@in_loop
async def test_a_message_whose_sender_was_cancelled_is_in_no_transaction_that_commits(
    zookeeper: Chroot, start_broker: StartBroker, is_refused: bool
) -> None:
    """The fate of the message is unknown, so the transaction must not commit."""
    held: list[Request] = []

    def slow(request: Request) -> bytes | None:
        match request:
            case Version():
                return ok(request, OURS)
            case Put() | MultiPut():
                held.append(request)
                return None
            case TransactionCommand(verb=TransactionVerb.PREPARE):
                late = b"".join(ok(put, b"7 0 1044") if not is_refused else refused(put) for put in held)
                return late + ok(request, b"0")
        return ok(request)

    broker = start_broker(0, {"orders": 1}, slow)
    async with Client(zookeeper.connect, batching=QUICK) as client:
        producer = client.producer()
        with pytest.raises(TransactionFailed, match="was rolled back"):
            async with producer.transaction():
                await cancelled(producer.send("orders", b""), held)
        await producer.tpc_begin(Xid.of("1", "b"), topics=("orders",))
        await cancelled(producer.send("orders", b""), held)
        with pytest.raises(XaError, match="the wait for one of its messages was cancelled"):
            await producer.tpc_prepare()
        await producer.tpc_rollback()
        await producer.tpc_begin(Xid.of("2", "b"), topics=("orders",))
        handle = await producer.send_async("orders", b"")
        await cancelled(handle.result(), held)  # it is heard of all the same
        if is_refused:
            with pytest.raises(XaError, match=r"XAER_RMERR: .*no room"):
                await producer.tpc_prepare()
        else:
            assert await producer.tpc_prepare()
    verbs = [request.verb.value for request in broker.peer.received if isinstance(request, TransactionCommand)]
    assert verbs == ["BEGIN", "ROLLBACK", "BEGIN", "ROLLBACK", "BEGIN", "PREPARE"]


@in_loop
async def test_a_branch_learns_of_a_batch_although_the_wait_for_it_was_cancelled(
    zookeeper: Chroot, start_broker: StartBroker
) -> None:
    """A large branch waits for its first batches on the way."""
    held: list[Request] = []

    def slow(request: Request) -> bytes | None:
        match request:
            case Put() | MultiPut():
                held.append(request)
                return None
            case TransactionCommand(verb=TransactionVerb.PREPARE):
                first, *others = held
                return b"".join([refused(first), *(ok(put, b"7 0 1044") for put in others), ok(request, b"0")])
        return ok(request, OURS)

    start_broker(0, {"orders": 1}, slow)
    async with Client(zookeeper.connect, batching=QUICK) as client:
        producer = client.producer()
        await producer.tpc_begin(Xid.of("1", "b"), topics=("orders",))

        async def fill() -> None:
            while True:
                await producer.send_async("orders", bytes(200_000))

        await cancelled(fill(), held)
        with pytest.raises(XaError, match=r"XAER_RMERR: .*no room"):
            await producer.tpc_prepare()


def refused(request: Request) -> bytes:
    return b"result 500 7 %d\r\nno room" % opaque_of(request)


async def cancelled(sending: Awaitable[object], held: Sequence[Request]) -> None:
    """Wait for *sending* for too short a time: until the broker holds a message more."""
    before = len(held)

    async def end(limit: asyncio.Timeout) -> None:
        await until(lambda: len(held) > before)
        limit.reschedule(asyncio.get_running_loop().time() + 0.3)

    with pytest.raises(TimeoutError):  # noqa: PT012 - the block is what is tested
        async with asyncio.timeout(None) as limit, asyncio.TaskGroup() as ending:
            ending.create_task(end(limit))
            await sending


def test_another_loop_is_refused(zookeeper: Chroot, start_broker: StartBroker) -> None:
    """Messages gathered there would be sent by the client's loop, or never."""
    start_broker(0, {"orders": 1}, stored)

    async def in_another() -> None:
        for use in (producer.send_async("orders", b"2"), producer.send_many("orders", [b"3"]), producer.flush()):
            with pytest.raises(RuntimeError, match="another event loop"):
                await use

    with asyncio.Runner() as runner:
        client = runner.run(Client(zookeeper.connect).__aenter__())
        producer = client.producer()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(asyncio.run, in_another()).result()
        runner.run(client.close())


@in_loop
async def test_flush_waits_for_nothing_that_others_send_meanwhile(zookeeper: Chroot, start_broker: StartBroker) -> None:
    start_broker(0, {"orders": 1}, stored)

    async def send() -> None:
        while True:
            await producer.send_async("orders", b"another's")
            await asyncio.sleep(0)

    async with Client(zookeeper.connect, batching=QUICK) as client, asyncio.TaskGroup() as tasks:
        producer = client.producer()
        others = tasks.create_task(send())
        mine = await producer.send_async("orders", b"mine")
        await producer.flush(20)
        assert mine.is_done
        others.cancel()


@in_loop
async def test_a_genuine_broker_gets_them_one_by_one(zookeeper: Chroot, start_broker: StartBroker) -> None:
    broker = start_broker(0, {"orders": 1}, lambda request: ok(request, b"7 0 1044"))
    async with Client(zookeeper.connect, batching=QUICK) as client:
        producer = client.producer()
        handles = [await producer.send_async("orders", b"%d" % number) for number in range(5)]
        await producer.flush()
        assert [(await handle).offset for handle in handles] == [1044] * 5
    puts = [request.body for request in broker.peer.received if isinstance(request, Put)]
    assert puts == [b"%d" % number for number in range(5)]


@in_loop
async def test_a_genuine_broker_stores_them_in_order_though_it_executes_puts_in_a_pool(
    zookeeper: Chroot, start_broker: StartBroker
) -> None:
    sent = [b"%d" % number for number in range(150)]
    with pooled_broker({"orders": 2}, start_broker) as broker:
        async with Client(zookeeper.connect) as client:
            producer = client.producer()
            for body in sent:
                for partition in ("0-0", "0-1"):
                    await producer.send_async("orders", body, partition=partition)
            await producer.flush(60)
        assert broker.stored == {0: sent, 1: sent}
        assert (broker.most_in_a_partition, broker.most_in_all) == (1, 2)


@in_loop
async def test_each_message_to_a_genuine_broker_has_an_outcome_of_its_own(
    zookeeper: Chroot, start_broker: StartBroker
) -> None:
    bodies = [b"first", REFUSED, b"third", LOST, b"fifth", b"sixth"]
    with pooled_broker({"orders": 1}, start_broker) as broker:
        async with Client(zookeeper.connect) as client:
            producer = client.producer()
            first, refused, third, lost, *last = [await producer.send_async("orders", body) for body in bodies]
            with pytest.raises(SendRefused, match="no room"):
                await producer.flush(60)
            await producer.flush(60)  # told once
            assert [(await it).offset for it in (first, third, *last)] == [0, 25, 25 + 25 + 34, 25 + 25 + 34 + 25]
            with pytest.raises(SendRefused):
                await refused
            with pytest.raises(SendUnknown, match="look before repeating it"):
                await lost
        assert broker.stored == {0: [body for body in bodies if body != REFUSED]}, "each once, in order"


@in_loop
async def test_close_tells_a_task_that_waits_for_what_no_broker_takes(
    zookeeper: Chroot, start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch rests before it is tried again when the client is closed."""
    monkeypatch.setattr("meta_client.aio.producer.sender.CLOSE_TIMEOUT_S", 0.1)
    broker = start_broker(0, {"orders": 1}, stored)
    broker.peer.close()
    async with Client(zookeeper.connect) as client:
        handle = await client.producer().send_async("orders", b"nobody takes it")
        waiting = asyncio.create_task(handle.result())
        await asyncio.sleep(0.5)
    with pytest.raises(NoBroker, match="the client was closed"):
        async with asyncio.timeout(60):
            await waiting


@in_loop
async def test_a_full_buffer_waits_or_raises(
    zookeeper: Chroot, start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meta_client.producer.sending_engine.ANSWER_TIMEOUT_S", 0.05)
    monkeypatch.setattr("meta_client.producer.sending_engine.IDLE_S", 0.05)
    start_broker(0, {"orders": 1}, lambda request: stored(request) if isinstance(request, Version) else None)
    small = BatchingConfig(linger_s=0, batch_bytes=100, buffer_bytes_max=200, delivery_timeout_s=2.0)
    async with Client(zookeeper.connect, batching=small) as client:
        producer = client.producer()
        first, _ = [await producer.send_async("orders", bytes(70)) for _ in range(2)]
        third = await producer.send_async("orders", bytes(70))
        assert first.is_done, "it was given up, and there is room"
        with pytest.raises(SendUnknown):
            await third
    monkeypatch.setattr("meta_client.aio.producer.sender.CLOSE_TIMEOUT_S", 0.1)
    raising = BatchingConfig(batch_bytes=100, buffer_bytes_max=200, raise_when_full=True)
    async with Client(zookeeper.connect, batching=raising) as client:
        producer = client.producer()
        for _ in range(2):
            await producer.send_async("orders", bytes(70))
        with pytest.raises(BufferFull, match="buffer_bytes_max is 200"):
            await producer.send_async("orders", bytes(70))


@in_loop
async def test_close_gives_up_what_no_broker_takes(zookeeper: Chroot, start_broker: StartBroker) -> None:
    broker = start_broker(0, {"orders": 1}, stored)
    async with Client(zookeeper.connect, batching=HASTY) as client:
        producer = client.producer()
        await producer.send("orders", b"there it is")
        url = broker.peer.url
        broker.peer.close()
        await until(lambda: client.connections.live(url) is None)
        handle = await producer.send_async("orders", b"nobody takes it")
    with pytest.raises(NoBroker):
        await handle
