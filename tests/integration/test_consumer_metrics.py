"""A service's registry shows lag, partitions and rebalances of its consumers, by prometheus_client itself."""

import asyncio
import threading

from prometheus_client.registry import CollectorRegistry

from meta_client import Batch, Client, ReceivedMessage, aio
from meta_client.metrics import FAMILIES, ClientCollector
from meta_client.protocol.messages import HEADER_BYTES
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.scrape import wait_for
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
            assert read("metaq_consumergroup_lag_messages_estimate", ORDERS) is None, "nothing says how long they are"
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
            assert read("metaq_consumergroup_lag_messages_estimate", ORDERS) == 0
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


def test_messages_behind_are_estimated_by_the_size_of_those_delivered(zookeeper: Chroot, broker: BrokerProcess) -> None:
    assert broker.is_running
    may_return = threading.Event()

    def listen(message: ReceivedMessage) -> None:
        assert message.payload == BODY or may_return.wait(60)

    with Client(zookeeper.connect) as client, client.consumer("billing") as consumer:
        registry = CollectorRegistry()
        registry.register(ClientCollector(client))
        producer = client.producer()
        for _ in range(6):
            producer.send("orders", BODY, partition="0-0")
        consumer.subscribe("orders", on_message=listen)
        consumer.start()
        wait_for(lambda: registry.get_sample_value("metaq_consumergroup_messages_delivered_total", ORDERS), bool)
        for _ in range(200):
            producer.send("orders", BODY[::-1], partition="0-0")

        def lag(unit: str) -> float:
            return registry.get_sample_value(f"metaq_consumergroup_lag_{unit}", ORDERS) or 0.0

        size = HEADER_BYTES + len(BODY)
        found = wait_for(lambda: (lag("messages_estimate"), lag("bytes")), lambda it: it[0] and it[0] == it[1] / size)
        assert 1 <= found[0] <= 200
        may_return.set()
        wait_for(lambda: lag("bytes"), lambda now: now == 0)
        assert lag("messages_estimate") == 0


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
