"""send_many on a real broker: stored once and in order through kills, by key, in transactions, from tasks."""

import asyncio
import os
import random
import threading
from collections import defaultdict

import numpy as np
import pyarrow as pa
import pytest

from meta_client import ByAttribute, Client, TransactionMisuse, Xid, aio
from meta_client.errors import BufferFull
from meta_client.producer.partition_queues import BatchingConfig
from meta_client.protocol.errors import LocalProtocolError
from meta_client.protocol.messages import DATA_BYTES_MAX
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.gets import read_topic
from zk.embedded.chroot import Chroot
from zk.forks import CreatedBeforeFork

CONFIG = BatchingConfig(batch_bytes=4096, linger_s=0.001, delivery_timeout_s=60.0, buffer_bytes_max=64 * 1024)


def test_through_kills_stored_once_and_in_order(broker: BrokerProcess, zookeeper: Chroot) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice, done = random.Random(seed), threading.Event()

    def kill_now_and_then() -> None:
        while not done.wait(dice.uniform(0.2, 0.6)):
            broker.kill()
            broker.start()

    with Client(zookeeper.connect, session_timeout_ms=4_000, batching=CONFIG) as client:
        killer = threading.Thread(target=kill_now_and_then)
        killer.start()
        try:
            producer = client.producer(partitioner=ByAttribute())
            handles, sent = [], list[list[bytes]]()
            for first in range(0, 20_000, 400):
                payloads = [b"%06d%b" % (first + each, bytes(dice.randrange(200))) for each in range(400)]
                keys = [str((first + each) % 7) for each in range(400)]
                sent.append(payloads)
                handles.append(producer.send_many("orders", payloads, keys))
            results = [handle.result(120) for handle in handles]
        finally:
            done.set()
            killer.join()
        found = {(m.partition, m.offset): m for m in read_topic(client, "orders")}
    assert len(found) == 20_000
    by_key = defaultdict(list)
    for payloads, places in zip(sent, results, strict=True):
        assert len(places) == len(payloads)
        for payload, place in zip(payloads, places, strict=True):
            assert place.offset is not None
            message = found[place.partition, place.offset]
            assert (message.payload, message.message_id) == (payload, place.message_id)
            by_key[message.attribute].append(place)
    for places in by_key.values():  # of one key: in one partition, in order
        assert len({place.partition for place in places}) == 1
        assert [place.offset for place in places] == sorted(place.offset or 0 for place in places)


def test_what_it_refuses_and_takes(broker: BrokerProcess, zookeeper: Chroot) -> None:
    strict = BatchingConfig(batch_bytes=4096, buffer_bytes_max=8192, raise_when_full=True)
    with Client(zookeeper.connect, batching=strict) as client:
        producer = client.producer()
        assert len(producer.send_many("orders", []).result(0)) == 0
        for bad in ([b"sent", "text"], [b"sent", bytes(DATA_BYTES_MAX + 1)]):
            with pytest.raises((TypeError, LocalProtocolError), match="message 1 of 2"):
                producer.send_many("orders", bad)  # type: ignore[arg-type]
        with pytest.raises(BufferFull, match="send fewer at once"):
            producer.send_many("orders", [bytes(100)] * 100)
        keyed = client.producer(partitioner=ByAttribute())
        with pytest.raises(BufferFull):
            keyed.send_many("orders", [bytes(100)] * 100, [str(number) for number in range(100)])
        assert list(read_topic(client, "orders")) == []  # nothing of any of them
        for array in (np.array([b"one", b"two"]), pa.array([b"one", b"two"])):
            places = producer.send_many("orders", array).result(30)
            assert [place.offset for place in places] == [places[0].offset, (places[0].offset or 0) + 23]
            assert places[-1] == places[1]
            assert places[0:2] == list(places)
        with producer.transaction(), pytest.raises(TransactionMisuse):
            producer.send_many("orders", [b"in a local transaction"])
        producer.tpc_begin(Xid.of("many", "test"), topics=("orders",))
        handle = producer.send_many("orders", [b"in a branch"] * 3, ["a", "b", None])
        assert producer.tpc_prepare()
        producer.tpc_commit()
        assert [place.offset for place in handle.result(30)] == [None] * 3
        assert handle.failures() == []
        stored = [message.payload for message in read_topic(client, "orders")]
        assert sorted(stored) == sorted([b"one", b"two"] * 2 + [b"in a branch"] * 3)
        if (child := os.fork()) == 0:
            try:
                producer.send_many("orders", [b"from a child"])
            except CreatedBeforeFork:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0


def test_from_tasks(broker: BrokerProcess, zookeeper: Chroot) -> None:
    asyncio.run(_from_tasks(zookeeper))


async def _from_tasks(zookeeper: Chroot) -> None:
    payloads = [b"%05d" % number for number in range(30_000)]
    async with aio.Client(zookeeper.connect, batching=CONFIG) as client:  # ten times what may be unacknowledged
        producer = client.producer()
        places = await (await producer.send_many("orders", payloads))
        with pytest.raises(TypeError, match="message 0 of 1"):
            await producer.send_many("orders", [None])  # type: ignore[list-item]
        await producer.tpc_begin(Xid.of("tasks", "test"), topics=("orders",))
        handle = await producer.send_many("orders", [b"in a branch"] * 2)
        await producer.tpc_prepare()
        await producer.tpc_commit()
        assert len(await handle.result(30)) == len(handle) == 2
    with Client(zookeeper.connect) as client:
        found = {(m.partition, m.offset): m.payload for m in read_topic(client, "orders")}
    assert [found[place.partition, place.offset or 0] for place in places] == payloads
    assert len(found) == 30_002
