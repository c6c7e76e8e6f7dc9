"""Our clients at their quota: they slow down and lose nothing; orders, transactions and groups stay what they are."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from journal.records.xid import Xid
from meta_client import BatchingConfig, Client
from meta_client.aio import Client as TaskClient
from meta_client.errors import BranchRefused
from meta_client.protocol.xa import XaCode
from tests.fixtures.broker import CONFIG, BrokerProcess, running_broker
from tests.integration.conftest import Inbox, wait_until
from zk.embedded.chroot import Chroot

QUOTA = """
[address_quota]
requests_per_second = 200
bytes_in_per_second = 200000
bytes_out_per_second = 150000
branches_max = 1
"""
BATCHING = BatchingConfig(batch_bytes=20_000, delivery_timeout_s=120)


@pytest.fixture
def limited(tmp_path: Path, zookeeper: Chroot) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path / "broker", zookeeper.connect, config=CONFIG + QUOTA) as broker:
        yield broker


def test_a_producer_and_a_group_slow_down_and_lose_nothing(limited: BrokerProcess, zookeeper: Chroot) -> None:
    payloads = [b"%05d" % number + bytes(995) for number in range(600)]
    with Client(zookeeper.connect, batching=BATCHING) as client:
        producer = client.producer()
        handles = [producer.send_async("orders", payload, partition="0-0") for payload in payloads]
        producer.flush()
        assert all(handle.result().offset is not None for handle in handles)
        inbox = Inbox()
        with client.consumer("group") as consumer:
            consumer.subscribe("orders", inbox)
            consumer.start()
            wait_until(lambda: len(inbox.messages) >= len(payloads))
    assert [message.payload for message in inbox.messages] == payloads  # in their order, each once
    for limit in ("bytes_in", "bytes_out"):
        assert f"quota reached, throttled address=127.0.0.1 limit={limit}" in limited.log or (
            f"quota reached, refused address=127.0.0.1 limit={limit}" in limited.log
        )


def test_local_transactions_wait_for_their_turn(limited: BrokerProcess, zookeeper: Chroot) -> None:
    with Client(zookeeper.connect) as client:

        def work(number: int) -> None:
            producer = client.producer()
            for _ in range(3):
                with producer.transaction():
                    producer.send("orders", b"%d" % number, timeout_s=60)

        with ThreadPoolExecutor(4) as threads:
            assert list(threads.map(work, range(4))) == [None] * 4
        inbox = Inbox()
        with client.consumer("group") as consumer:
            consumer.subscribe("orders", inbox)
            consumer.start()
            wait_until(lambda: sum(inbox.payloads.values()) == 12)
    assert "limit=branches" in limited.log


def test_tasks_wait_for_their_turn(limited: BrokerProcess, zookeeper: Chroot) -> None:
    async def work(client: TaskClient, number: int) -> None:
        producer = client.producer()
        for _ in range(3):
            async with producer.transaction():
                await producer.send("orders", b"%d" % number, timeout_s=60)

    async def main() -> None:
        async with TaskClient(zookeeper.connect) as client:
            await asyncio.gather(*(work(client, number) for number in range(4)))

    asyncio.run(main())
    assert "limit=branches" in limited.log


def test_a_branch_beyond_the_quota_is_refused_and_the_next_one_waits(limited: BrokerProcess, zookeeper: Chroot) -> None:
    """The first refusal is news: its branch fails whole. From then on the client asks before it sends."""
    with Client(zookeeper.connect) as client:
        first, second = client.producer(), client.producer()
        first.tpc_begin(Xid.of("one", "b"), topics=("orders",))
        first.send("orders", b"one")
        second.tpc_begin(Xid.of("two", "b"), topics=("orders",))
        with pytest.raises(BranchRefused, match="branches_max of its quota is 1") as caught:
            second.send("orders", b"two")
        assert caught.value.code == XaCode.XAER_RMFAIL
        second.tpc_rollback()
        first.tpc_prepare()
        ending = threading.Timer(0.5, first.tpc_commit)
        ending.start()
        second.tpc_begin(Xid.of("three", "b"), topics=("orders",))
        second.send("orders", b"three")
        second.tpc_prepare()
        second.tpc_commit()
        ending.join()
        inbox = Inbox()
        with client.consumer("group") as consumer:
            consumer.subscribe("orders", inbox)
            consumer.start()
            wait_until(lambda: set(inbox.payloads) == {b"one", b"three"})
