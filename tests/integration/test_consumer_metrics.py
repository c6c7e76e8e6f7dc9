"""A service's registry shows lag, partitions and rebalances of its consumers, by prometheus_client itself."""

import asyncio
import threading

from prometheus_client.registry import CollectorRegistry

from meta_client import Batch, Client, ReceivedMessage, aio
from meta_client.metrics import FAMILIES, ClientCollector
from meta_client.protocol.checksum import crc31
from meta_client.protocol.messages import HEADER_BYTES, encode_frame
from meta_client.protocol.requests import MultiPut
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.scrape import wait_for
from tests.fixtures.wire import WireClient
from zk.embedded.chroot import Chroot

GROUP = {"consumergroup": "billing"}
ORDERS = GROUP | {"topic": "orders"}
BODY = b"0123456789"


def test_lag_is_what_was_not_delivered(zookeeper: Chroot, broker: BrokerProcess) -> None:
    assert broker.is_running
    may_return, received = threading.Event(), threading.Semaphore(0)

    def listen(batch: Batch) -> None:
        del batch
        received.release()
        assert may_return.wait(60)

    with Client(zookeeper.connect) as client:
        registry = CollectorRegistry()
        registry.register(ClientCollector(client))

        def read(name: str, labels: dict[str, str]) -> float | None:
            return registry.get_sample_value(name, labels)

        assert read("metaq_consumergroup_consumers", GROUP) is None, "no consumer"
        producer = client.producer()
        for _ in range(3):
            producer.send("orders", BODY, partition="0-0")
        with client.consumer("billing") as consumer:
            consumer.subscribe("orders", listen)
            consumer.start()
            assert received.acquire(timeout=60)
            for _ in range(4):
                producer.send("orders", BODY, partition="0-0")
            lag = wait_for(consumer.lag_bytes, lambda lags: None not in lags.values() and len(lags) == 4)
            assert sum(lag.values()) == 3 * (HEADER_BYTES + len(BODY)), "what the broker said before the last four"
            assert read("metaq_consumergroup_lag_bytes", ORDERS) == 3 * (HEADER_BYTES + len(BODY))
            assert read("metaq_consumergroup_lag_messages", ORDERS) == 3
            assert read("metaq_consumergroup_partitions", ORDERS) == 4
            assert read("metaq_consumergroup_consumers", GROUP) == 1
            seconds = read("metaq_consumergroup_lag_seconds", ORDERS)
            assert seconds is not None
            wait_for(lambda: read("metaq_consumergroup_lag_seconds", ORDERS), lambda now: now > seconds + 0.1)
            assert read("metaq_consumergroup_findings", GROUP) == 0
            first = read("metaq_consumergroup_rebalances_total", GROUP)
            assert first is not None
            assert first >= 1
            may_return.set()
            wait_for(lambda: read("metaq_consumergroup_lag_bytes", ORDERS), lambda lag: lag == 0)
            wait_for(lambda: read("metaq_consumergroup_lag_seconds", ORDERS), lambda seconds: seconds == 0)
            wait_for(lambda: read("metaq_consumergroup_messages_delivered_total", ORDERS), lambda count: count == 7)
            assert read("metaq_consumergroup_lag_messages", ORDERS) == 0
            assert read("metaq_consumergroup_bytes_delivered_total", ORDERS) == 7 * (HEADER_BYTES + len(BODY))
            names = {family.name for family in registry.collect()}
            assert names == {family.name.removesuffix("_total") for family in FAMILIES}
            broker.kill()
            wait_for(lambda: read("metaq_consumergroup_lag_seconds", ORDERS), bool)
            broker.start()
            wait_for(lambda: read("metaq_consumergroup_lag_seconds", ORDERS), lambda seconds: seconds == 0)
            with client.consumer("billing") as second:
                second.subscribe("orders", listen)
                second.start()
                wait_for(lambda: read("metaq_consumergroup_consumers", GROUP), lambda count: count == 2)
                wait_for(lambda: read("metaq_consumergroup_rebalances_total", GROUP), lambda count: count > first)
                wait_for(lambda: read("metaq_consumergroup_partitions", ORDERS), lambda count: count == 4)
        assert read("metaq_consumergroup_consumers", GROUP) is None
        assert {family.name for family in registry.collect()} == set()


def test_messages_behind_are_counted_by_the_broker(zookeeper: Chroot, broker: BrokerProcess) -> None:
    """Of different lengths, in one batch of which a fetch takes a part."""
    may_return = threading.Event()

    def listen(message: ReceivedMessage) -> None:
        del message
        assert may_return.wait(60)

    with Client(zookeeper.connect) as client, client.consumer("billing") as consumer:
        registry = CollectorRegistry()
        registry.register(ClientCollector(client))
        consumer.subscribe("orders", on_message=listen, max_bytes=3000)
        consumer.start()

        def lag(unit: str) -> float | None:
            return registry.get_sample_value(f"metaq_consumergroup_lag_{unit}", ORDERS)

        wait_for(lambda: lag("bytes"), lambda now: now == 0)
        assert lag("messages") == 0
        frames = b"".join(encode_frame(0, 0, b"x" * number) for number in range(200))
        with WireClient(broker.port) as wire:
            assert wire.result(MultiPut("orders", 0, 200, crc31(frames), None, None, 1, frames)).is_success
        assert wait_for(lambda: lag("messages"), bool) == 200
        assert lag("bytes") == len(frames)
        may_return.set()
        wait_for(lambda: lag("bytes"), lambda now: now == 0)
        assert lag("messages") == 0


def test_a_client_for_tasks_shows_the_same(zookeeper: Chroot, broker: BrokerProcess) -> None:
    registry, received = CollectorRegistry(), asyncio.Event()

    async def listen(message: ReceivedMessage) -> None:
        del message
        received.set()

    async def consume() -> None:
        async with aio.Client(zookeeper.connect) as client:
            registry.register(ClientCollector(client))
            consumer = client.consumer("billing")
            consumer.subscribe("orders", on_message=listen)
            async with consumer:
                await client.producer().send("orders", BODY, partition="0-0")
                await asyncio.wait_for(received.wait(), 60)
                await asyncio.to_thread(wait_for, lambda: read("messages_delivered_total"), lambda count: count == 1)
                await asyncio.to_thread(wait_for, lambda: read("lag_bytes"), lambda lag: lag == 0)
                assert read("partitions") == 4

    def read(name: str) -> float | None:
        return registry.get_sample_value(f"metaq_consumergroup_{name}", ORDERS)

    asyncio.run(consume())
    assert broker.is_running
    assert set(registry.collect()) == set()
