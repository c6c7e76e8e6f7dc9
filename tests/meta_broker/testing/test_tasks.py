"""Clients for tasks, of a real broker and of a cluster in memory."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from journal.records.xid import Xid
from meta_broker.testing.memory.cluster import MemoryCluster
from meta_client import aio
from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.errors import ClientClosed, NoPartition, SendFailed
from tests.meta_broker.testing.conftest import Cluster


def test_a_day_of_a_service(cluster: Cluster) -> None:
    """Sends, both kinds of transaction, a consumer that goes on through a lost session, and a crash of the broker."""

    async def serve() -> list[bytes]:
        async with cluster.aio_client(default_topic="notices") as client:
            producer = client.producer()
            await producer.send("t-0", b"alone")
            async with producer.transaction():
                await producer.send("t-0", b"local")
            with suppress(LookupError):
                async with producer.transaction():
                    await producer.send("t-0", b"never")
                    raise LookupError
            await producer.tpc_begin(Xid.of("1", "shop"), topics=("t-0",))
            await producer.send_async("t-0", b"xa")
            assert await producer.tpc_prepare()
            cluster.kill()
            with pytest.raises(SendFailed):
                await client.producer().send("t-0", b"to nobody", timeout_s=1)
            cluster.start()  # of this thread: a real one ends with it
            assert await producer.tpc_recover() == [Xid.of("1", "shop")]
            await producer.tpc_commit()
            consumer = client.consumer("packing", config=ConsumerConfig(commit_period_s=0.1))
            consumer.subscribe("t-0")
            async with consumer, asyncio.timeout(20):
                seen = [message.payload async for message in messages_until(consumer, {b"alone", b"local", b"xa"})]
                await asyncio.to_thread(cluster.expire, client)
                await producer.send("t-0", b"later")
                assert [True async for _ in messages_until(consumer, {b"later"})]
                return seen

    assert sorted(asyncio.run(serve())) == [b"alone", b"local", b"xa"]
    with cluster.client() as threads:
        assert sorted(message.payload for message in threads.browse("t-0")) == [b"alone", b"later", b"local", b"xa"]


async def messages_until(consumer: aio.Consumer, wanted: set[bytes]) -> AsyncIterator[ReceivedMessage]:
    """Yield messages until all payloads that are *wanted* have come."""
    async for message in consumer:
        yield message
        wanted.discard(message.payload)
        if not wanted:
            return


def test_it_is_entered_before_it_is_used() -> None:
    with MemoryCluster() as cluster, pytest.raises(ClientClosed):
        cluster.aio_client().producer()


def test_a_cluster_that_ended_has_no_broker() -> None:
    async def send() -> None:
        async with client:
            await client.producer().send("t-0", b"x", timeout_s=1)

    with MemoryCluster() as cluster:
        client = cluster.aio_client()
    with pytest.raises(NoPartition):
        asyncio.run(send())
