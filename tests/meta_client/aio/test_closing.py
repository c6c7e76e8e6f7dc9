"""Closing consumers and clients of a loop, with a real broker: it ends, and so does all that waits for them."""

import asyncio
import contextlib
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import psycopg
import pytest

from journal.records.xid import Xid
from meta_client.aio.client import Client
from meta_client.aio.consumer import Consumer
from meta_client.aio.coordinator import Coordinator
from meta_client.aio.producer import sender
from meta_client.aio.producer.producer import BranchHandle
from meta_client.aio.producer.sender import SendHandle
from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.messages.batch import Batch
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.coordinator.errors import CoordinatorClosed
from meta_client.coordinator.steps import TwoPhaseStep
from meta_client.errors import (
    ClientClosed,
    ConsumerMisuse,
    SendFailed,
    SendUnknown,
    TransactionFailed,
    TransactionUnknown,
)
from meta_client.producer.partition_queues import BatchingConfig
from meta_client.protocol.errors import XaError
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.loops import in_loop, until
from tests.fixtures.postgres import Database
from zk.embedded.chroot import Chroot
from zk.groups.listing import list_group
from zk.groups.membership import ConsumerIdTaken

CONSUMERS = 40
LONG_S = 600.0


@in_loop
async def test_many_consumers_are_closed_together(zookeeper: Chroot, broker: BrokerProcess) -> None:
    """Their listeners need the default executor, which has fewer threads than there are consumers."""
    entered: set[int] = set()
    ready = asyncio.Event()

    async with Client(zookeeper.connect) as client:
        consumers = []
        for number in range(CONSUMERS):

            async def on_batch(batch: Batch, number: int = number) -> None:
                entered.add(number)
                await ready.wait()
                await asyncio.to_thread(time.sleep, 0.01)

            consumer = client.consumer(None, config=ConsumerConfig(runners=1))
            consumer.subscribe("orders", on_batch)
            consumer.assign(("orders", "0-0"))
            consumers.append(consumer)
        await asyncio.gather(*(consumer.start() for consumer in consumers))
        await client.producer().send("orders", b"one", partition="0-0")
        await until(lambda: len(entered) == CONSUMERS)
        closing = [asyncio.create_task(consumer.close()) for consumer in consumers]
        await asyncio.sleep(0.2)  # all of them wait for their listeners now
        ready.set()
        async with asyncio.timeout(60):
            await asyncio.gather(*closing)


@in_loop
async def test_a_client_waits_for_a_consumer_whose_closing_was_cancelled(
    zookeeper: Chroot, broker: BrokerProcess
) -> None:
    is_entered, may_end, is_done = asyncio.Event(), asyncio.Event(), False

    async def on_batch(batch: Batch) -> None:
        nonlocal is_done
        is_entered.set()
        await may_end.wait()
        is_done = True

    async with Client(zookeeper.connect) as client:
        consumer = client.consumer("reader")
        consumer.subscribe("orders", on_batch)
        await consumer.start()
        await client.producer().send("orders", b"one")
        await is_entered.wait()
        closing = asyncio.create_task(consumer.close())
        await asyncio.sleep(0.05)
        closing.cancel()
        await asyncio.wait({closing})
        assert closing.cancelled()
        asyncio.get_running_loop().call_later(0.3, may_end.set)
    assert is_done
    async with Client(zookeeper.connect) as client:
        consumer = client.consumer("reader")
        consumer.subscribe("orders")
        async with consumer:
            await until(consumer.is_caught_up)
            assert await consumer.fetch(1, timeout_s=0.1) == []  # what the listener had taken was stored


@in_loop
async def test_a_cancelled_opening_leaves_nothing_behind(zookeeper: Chroot, broker: BrokerProcess) -> None:
    """A client's session would stay for good, and a consumer would read for a program that has given it up."""
    before, offered = _threads(), list[ReceivedMessage]()

    async def on_message(message: ReceivedMessage) -> None:
        offered.append(message)

    for delay_s in (0, 0.002, 0.01):
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay_s), Client(zookeeper.connect):
                await asyncio.sleep(LONG_S)
        await until(lambda: _threads() <= before)
    async with Client(zookeeper.connect) as client:
        before = _threads()
        for number, delay_s in enumerate((0, 0.002, 0.01, 0.05)):
            consumer = client.consumer(f"given-up-{number}")
            consumer.subscribe("orders", on_message=on_message)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s), consumer:
                    await asyncio.sleep(LONG_S)
            await until(lambda: _threads() <= before)
            assert consumer.owned() == []
            assert not list_group(client.session, consumer.group).members
        await client.producer().send("orders", b"one")
        await asyncio.sleep(0.1)
    assert offered == []


def _threads() -> Counter[str]:
    """Return the threads that keep something open, by the beginnings of their names."""
    names = (thread.name.split() for thread in threading.enumerate())
    return Counter(" ".join(words[:2]) for words in names if words[0] == "metaq")


@in_loop
async def test_a_client_closed_while_its_consumer_starts_closes_that_one_too(
    zookeeper: Chroot, broker: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    config = ConsumerConfig(consumer_id="same")
    async with Client(zookeeper.connect) as other:
        holder = other.consumer("reader", config=config)
        holder.subscribe("orders")
        async with holder:
            before = _threads()
            async with Client(zookeeper.connect) as client:
                consumer = client.consumer("reader", config=config)
                consumer.subscribe("orders")
                starting = asyncio.create_task(consumer.start())
                await until(lambda: "for its ZooKeeper session to end" in caplog.text)  # the holder's
            with pytest.raises(ConsumerIdTaken):
                await starting
            await until(lambda: _threads() <= before)


@in_loop
async def test_a_listener_that_closes_its_client_is_told_so(zookeeper: Chroot, broker: BrokerProcess) -> None:
    told: list[str] = []
    async with Client(zookeeper.connect) as client:

        async def on_batch(batch: Batch) -> None:
            with pytest.raises(ConsumerMisuse) as raised:
                await client.close()
            told.append(str(raised.value))

        consumer = client.consumer("reader")
        consumer.subscribe("orders", on_batch)
        async with consumer:
            await client.producer().send("orders", b"")
            await until(lambda: bool(told))
    assert "it would wait for itself" in told[0]


@in_loop
async def test_a_client_knows_its_consumers_though_threads_close_them(zookeeper: Chroot) -> None:
    """One that stayed listed would hold its id, and one that was missed would not be closed with the client."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        async with Client(zookeeper.connect) as client:
            for _ in range(20):
                consumers = [client.consumer(f"group-{number}") for number in range(20)]
                closing = [asyncio.create_task(consumer.close()) for consumer in consumers]
                while not all(task.done() for task in closing):
                    await asyncio.sleep(0)
                    consumers.append(client.consumer("others"))
                assert len(client.consumers) == len(consumers) - 20
                await asyncio.gather(*(consumer.close() for consumer in consumers))
                assert client.consumers == ()
    finally:
        sys.setswitchinterval(interval)


@in_loop
async def test_clients_and_consumers_are_entered_once(zookeeper: Chroot, broker: BrokerProcess) -> None:
    client = Client(zookeeper.connect)
    async with client:
        with pytest.raises(ClientClosed, match="make another one"):
            await client.__aenter__()
        config = ConsumerConfig(consumer_id="fixed")
        consumer = client.consumer("reader", config=config)
        with pytest.raises(ConsumerIdTaken):
            client.consumer("reader", config=config)
        consumer.subscribe("orders")
        async with consumer:
            pass
        with pytest.raises(ConsumerMisuse, match="make another one"):  # it would fetch nothing, without end
            await consumer.__aenter__()
        assert (await client.producer().send("orders", b"")).offset is not None
    with pytest.raises(ClientClosed, match="make another one"):
        await client.__aenter__()


@in_loop
async def test_closing_a_client_wakes_every_task_that_sends_with_it(
    zookeeper: Chroot, broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker is stopped in the middle, and then away."""
    monkeypatch.setattr(sender, "CLOSE_TIMEOUT_S", 0.3)
    batching = BatchingConfig(batch_bytes=1000, buffer_bytes_max=4000, delivery_timeout_s=LONG_S)
    client = Client(zookeeper.connect, batching=batching)
    waiting: dict[str, asyncio.Task[object]] = {}

    def wait_for(name: str, work: Coroutine[Any, Any, object]) -> None:
        waiting[name] = asyncio.create_task(work, name=name)

    async def handled(handle: SendHandle | BranchHandle) -> object:
        return await handle

    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(client)
        producer, local, branch = client.producer(), client.producer(), client.producer("closing")
        await producer.send("orders", b"first", partition="0-0")
        transaction = local.transaction()
        await local.send("orders", b"in a transaction")
        await branch.tpc_begin(Xid(1, b"closing", b""), ["orders"])
        await branch.send("orders", b"in a branch")
        broker.pause()
        for number in range(4):
            handle = await producer.send_async("orders", b"x" * 900, partition=f"0-{number}")
            wait_for(f"handle {number}", handled(handle))
        wait_for("full", producer.send_async("orders", b"x" * 3000))
        wait_for("flush", producer.flush())
        wait_for("send", producer.send("orders", b"one", partition="0-1", timeout_s=LONG_S))
        wait_for("commit", transaction.commit())
        wait_for("prepare", branch.tpc_prepare())
        (connection,) = [slot.connection for slot in client.connections._slots.values()]
        assert connection is not None
        await until(lambda: len(connection._pending) == 7)  # four batches, the one put, COMMIT, PREPARE
        assert [name for name, task in waiting.items() if task.done()] == []
        await asyncio.to_thread(broker.kill)
        full = contextlib.ExitStack()
        stack.callback(full.close)
        _take_no_connection(full, broker.port)
        for number in range(3):
            sending = client.producer().send("orders", b"one", partition="0-2", timeout_s=LONG_S)
            wait_for(f"send to nobody {number}", sending)
        wait_for("begin", client.producer().tpc_begin(Xid(1, b"another", b""), ["orders"]))
        await asyncio.sleep(0.5)
        still = {name for name, task in waiting.items() if not task.done()}
        assert still >= {"send", "send to nobody 0", "send to nobody 2", "handle 3", "full"}
        began = time.monotonic()
        await client.close()
        await asyncio.wait(waiting.values(), timeout=60)
        assert time.monotonic() - began < LONG_S / 10
    assert [name for name, task in waiting.items() if not task.done()] == []
    outcomes = {name: task.exception() or task.result() for name, task in waiting.items()}
    documented = SendFailed | ClientClosed | TransactionUnknown | TransactionFailed | XaError
    assert [name for name, outcome in outcomes.items() if not isinstance(outcome, documented)] == []
    assert isinstance(outcomes["send"], SendUnknown)  # it had been sent
    assert isinstance(outcomes["full"], ClientClosed | SendFailed)


@in_loop
async def test_closing_a_client_ends_fetching_and_iteration(zookeeper: Chroot, broker: BrokerProcess) -> None:
    async def iterate(consumer: Consumer) -> int:
        return len([message async for message in consumer])

    async with Client(zookeeper.connect) as client:
        fetching, iterating = client.consumer("fetching"), client.consumer("iterating")
        for consumer in (fetching, iterating):
            consumer.subscribe("orders")
            await consumer.start()
            await until(consumer.is_caught_up)
        taking, counting = asyncio.create_task(fetching.fetch(10)), asyncio.create_task(iterate(iterating))
        await asyncio.sleep(0.05)
    async with asyncio.timeout(60):
        assert await taking == []
        assert await counting == 0


def _take_no_connection(stack: contextlib.ExitStack, port: int) -> None:
    """Let connections to *port* hang, as those to a host that is gone."""
    stack.enter_context(socket.create_server(("127.0.0.1", port), backlog=0))
    for _ in range(4):
        filling = stack.enter_context(socket.socket())
        filling.setblocking(False)
        filling.connect_ex(("127.0.0.1", port))


@in_loop
async def test_closing_a_client_ends_the_wait_for_a_decided_transaction(
    zookeeper: Chroot, broker: BrokerProcess, database: Database, tmp_path: Path
) -> None:
    """The broker is away, and only this client's producer could deliver the decision."""

    def kill(step: TwoPhaseStep, xid: Xid) -> None:
        if step is TwoPhaseStep.DECIDED:
            broker.kill()

    client = Client(zookeeper.connect)
    async with (
        await psycopg.AsyncConnection.connect(database.dsn) as connection,
        await Coordinator.open(tmp_path / "decisions", observer=kill) as coordinator,
    ):
        async with client:

            async def work() -> None:
                producer = client.producer("shop")
                async with coordinator.transaction(connection, producer, topics=["orders"]):
                    await connection.execute("SELECT 1")
                    await producer.send("orders", b"one")

            waiting = asyncio.create_task(work())
            await until(lambda: not broker.is_running)
            await asyncio.sleep(0.2)
            assert not waiting.done()
        with pytest.raises(CoordinatorClosed):
            await asyncio.wait_for(waiting, 60)
