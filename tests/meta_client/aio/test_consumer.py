"""Consumers of tasks, against a real ZooKeeper and a real broker: what they see, and what counts as consumed."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from meta_client.aio.client import Client
from meta_client.aio.consumer import Consumer
from meta_client.aio.producer.producer import Producer
from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.error_policy import Reject
from meta_client.consumer.messages.batch import Batch
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.errors import ClientClosed, ConsumerMisuse, NothingToRead
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.loops import in_loop, in_uvloop, until
from zk.embedded.chroot import Chroot
from zk.tree.nodes import Partition

PATIENCE_S = 60


async def send(producer: Producer, payloads: list[bytes]) -> None:
    for payload in payloads:
        await producer.send_async("orders", payload)
    await producer.flush()


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


@in_uvloop
async def test_a_listener_gets_everything_once_and_in_order(zookeeper: Chroot, broker: BrokerProcess) -> None:
    seen: defaultdict[object, list[int]] = defaultdict(list)
    payloads: Counter[bytes] = Counter()

    async def on_batch(batch: Batch) -> None:
        await asyncio.sleep(0)
        payloads.update(message.payload for message in batch.messages)
        seen[batch.partition] += [message.offset for message in batch.messages]

    async with Client(zookeeper.connect) as client:
        await send(client.producer(), numbers(0, 2000))
        consumer = client.consumer("reader")
        consumer.subscribe("orders", on_batch)
        async with consumer:
            await until(lambda: payloads.total() == 2000)
            await send(client.producer(), numbers(2000, 2500))
            await until(lambda: payloads.total() == 2500)
            await until(consumer.is_caught_up)
            assert len(consumer.owned()) == 4
            assert consumer.rebalances()
    assert payloads == Counter(numbers(0, 2500))
    assert all(offsets == sorted(offsets) for offsets in seen.values())


@in_loop
async def test_iteration_goes_on_where_the_last_message_was_left(zookeeper: Chroot, broker: BrokerProcess) -> None:
    """The message that a task was busy with when it left comes again; what it had finished does not."""
    async with Client(zookeeper.connect) as client:
        await send(client.producer(), numbers(0, 500))
        taken: list[bytes] = []
        consumer = client.consumer("reader")
        consumer.subscribe("orders")
        await consumer.start()
        async for message in consumer:
            taken.append(message.payload)
            if len(taken) == 200:
                break
        await consumer.close()
        finished = taken[:-1]
        rest = client.consumer("reader")
        rest.subscribe("orders")
        async with rest, asyncio.timeout(PATIENCE_S):
            left = {message.payload async for message in _first(rest, 301)}
    assert left == set(numbers(0, 500)) - set(finished)


async def _first(consumer: Consumer, count: int) -> AsyncIterator[ReceivedMessage]:
    async for message in consumer:
        yield message
        count -= 1
        if not count:
            return


@in_loop
async def test_fetch_waits_for_messages_and_counts_when_asked_again(zookeeper: Chroot, broker: BrokerProcess) -> None:
    async with Client(zookeeper.connect) as client:
        consumer = client.consumer("reader")
        consumer.subscribe("orders")
        async with consumer:
            assert await consumer.fetch(10, timeout_s=0.05) == []
            waiting = asyncio.create_task(consumer.fetch(10, timeout_s=PATIENCE_S))
            await send(client.producer(), [b"one"])
            assert [message.payload for message in await waiting] == [b"one"]
            with pytest.raises(ValueError, match="ask for one at least"):
                await consumer.fetch(0)


@in_loop
async def test_what_a_listener_raises_over_comes_again(zookeeper: Chroot, broker: BrokerProcess) -> None:
    seen: list[bytes] = []

    async def on_message(message: ReceivedMessage) -> None:
        seen.append(message.payload)
        if len(seen) < 3:
            raise LookupError("not yet")

    async with Client(zookeeper.connect) as client:
        consumer = client.consumer("reader", config=ConsumerConfig(backoff_s_max=0.1))
        consumer.subscribe("orders", on_message=on_message)
        async with consumer:
            await client.producer().send("orders", b"hard", partition="0-0")
            await until(lambda: len(seen) == 3 and consumer.is_caught_up())
    assert seen == [b"hard"] * 3


@in_loop
async def test_a_dead_letter_waits_in_the_store_and_is_offered_again(
    zookeeper: Chroot, broker: BrokerProcess, tmp_path: Path
) -> None:
    taken: list[bytes] = []
    is_mended = False

    async def on_message(message: ReceivedMessage) -> None:
        await asyncio.sleep(0)
        if message.payload == b"bad" and not is_mended:
            raise Reject("no such order")
        taken.append(message.payload)

    async with Client(zookeeper.connect) as client:
        consumer = client.consumer("reader", config=ConsumerConfig(dead_letter_directory=str(tmp_path / "refused")))
        consumer.subscribe("orders", on_message=on_message, on_reject="dead_letter")
        async with consumer:
            for payload in (b"first", b"bad", b"last"):
                await client.producer().send("orders", payload, partition="0-0")
            await until(lambda: taken == [b"first", b"last"])
            assert len(consumer.dead_letters()) == 1
            is_mended = True
            consumer.redeliver()
            await until(lambda: taken == [b"first", b"last", b"bad"])
            await until(lambda: not consumer.dead_letters())


@in_loop
async def test_without_a_share_of_a_group(zookeeper: Chroot, broker: BrokerProcess) -> None:
    """Partitions by hand, every message for every instance, and a browser."""
    async with Client(zookeeper.connect) as client:
        await send(client.producer(), numbers(0, 1000))
        assert Counter([message.payload async for message in client.browse("orders")]) == Counter(numbers(0, 1000))
        with pytest.raises(NothingToRead):
            await anext(client.browse("nowhere"))

        by_hand = client.consumer(None)
        by_hand.subscribe("orders")
        by_hand.assign(("orders", Partition(0, 1)), ("orders", Partition(0, 2)))
        async with by_hand:
            messages = await by_hand.fetch(10, timeout_s=PATIENCE_S)
        assert {message.partition for message in messages} <= {Partition(0, 1), Partition(0, 2)}

        for instance in ("one", "two"):
            consumer = client.consumer("reader", broadcast=instance)
            consumer.subscribe("orders")
            async with consumer, asyncio.timeout(PATIENCE_S):
                assert {message.payload async for message in _first(consumer, 1000)} == set(numbers(0, 1000))


@in_loop
async def test_two_members_share_and_a_leaving_one_hands_over(zookeeper: Chroot, broker: BrokerProcess) -> None:
    seen: Counter[bytes] = Counter()

    async def on_batch(batch: Batch) -> None:
        seen.update(message.payload for message in batch.messages)

    async with Client(zookeeper.connect) as client:
        first, second = client.consumer("reader"), client.consumer("reader")
        for consumer in (first, second):
            consumer.subscribe("orders", on_batch)
        async with first:
            async with second:
                await until(lambda: len(first.owned()) == len(second.owned()) == 2)
                await send(client.producer(), numbers(0, 300))
                await until(lambda: seen.total() >= 300)
            await until(lambda: len(first.owned()) == 4)
            await send(client.producer(), numbers(300, 400))
            await until(lambda: seen.total() >= 400)
    assert seen == Counter(numbers(0, 400))


@in_loop
async def test_a_broker_that_dies_is_waited_for(zookeeper: Chroot, broker: BrokerProcess) -> None:
    seen: set[bytes] = set()

    async def on_batch(batch: Batch) -> None:
        seen.update(message.payload for message in batch.messages)

    async with Client(zookeeper.connect) as client:
        consumer = client.consumer("reader", config=ConsumerConfig(backoff_s_max=0.1))
        consumer.subscribe("orders", on_batch)
        async with consumer:
            await send(client.producer(), numbers(0, 100))
            await asyncio.to_thread(broker.kill)
            await asyncio.to_thread(broker.start)
            await send(client.producer(), numbers(100, 200))
            await until(lambda: len(seen) == 200)
    assert seen == set(numbers(0, 200))


@in_loop
async def test_manual_acknowledgement_and_misuse(zookeeper: Chroot, broker: BrokerProcess) -> None:
    async with Client(zookeeper.connect) as client:
        await send(client.producer(), numbers(0, 20))
        consumer = client.consumer("reader")
        with pytest.raises(TypeError, match="async def"):
            consumer.subscribe("orders", lambda batch: None)  # type: ignore[arg-type, return-value]  # the mistake
        consumer.subscribe("orders", acknowledge="manual")
        async with consumer:
            messages = await consumer.fetch(20, timeout_s=PATIENCE_S)
            assert consumer.acknowledge(messages[0])
            (key,) = {(message.topic, message.partition) for message in messages[:1]}
            assert consumer.rollback(*key)
            consumer.pause(key)
            assert consumer.paused() == [key]
            consumer.resume(key)
            assert consumer.seek(*key, "earliest")
        with pytest.raises(ConsumerMisuse):
            await consumer.start()
    with pytest.raises(ClientClosed):
        client.consumer("reader")


@in_loop
async def test_a_listener_that_closes_its_consumer_is_told_so(zookeeper: Chroot, broker: BrokerProcess) -> None:
    told: list[str] = []
    async with Client(zookeeper.connect) as client:
        consumer = client.consumer("reader")

        async def on_batch(batch: Batch) -> None:
            try:
                await consumer.close()
            except ConsumerMisuse as error:
                told.append(str(error))

        consumer.subscribe("orders", on_batch)
        async with consumer:
            await client.producer().send("orders", b"")
            await until(lambda: bool(told))
    assert "it would wait for itself" in told[0]
