"""Lag in seconds of partitions that nobody asks for: it grows, though the last answer had nothing new."""

import threading
from collections.abc import Callable

from meta_client.client import Client
from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.consumer import Consumer
from meta_client.consumer.messages.received_message import ReceivedMessage
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.scrape import wait_for
from zk.embedded.chroot import Chroot
from zk.tree.nodes import Partition

CONFIG = ConsumerConfig(runners=1, fetch_wait_s=0.2, prefetch_bytes=1)
FIRST, SECOND = ("orders", Partition(0, 0)), ("orders", Partition(0, 1))


def seconds(consumer: Consumer) -> Callable[[], float | None]:
    return lambda: consumer.lags()[SECOND].seconds


def grows(seconds: float | None) -> bool:
    return seconds is not None and seconds > 0.5


def has_everything(seconds: float | None) -> bool:
    return seconds == 0.0


def test_of_a_paused_partition(zookeeper: Chroot, broker: BrokerProcess) -> None:
    with Client(zookeeper.connect) as client, client.consumer("paused", config=CONFIG) as consumer:
        consumer.subscribe("orders")
        consumer.start()
        wait_for(seconds(consumer), has_everything)
        consumer.pause(SECOND)
        wait_for(seconds(consumer), grows)
        consumer.resume(SECOND)
        wait_for(seconds(consumer), has_everything)


def test_beside_messages_that_nobody_takes(zookeeper: Chroot, broker: BrokerProcess) -> None:
    with Client(zookeeper.connect) as client, client.consumer("untaken", config=CONFIG) as consumer:
        consumer.subscribe("orders")
        consumer.start()
        wait_for(seconds(consumer), has_everything)
        client.producer().send("orders", b"untaken", partition="0-0")
        wait_for(seconds(consumer), grows)
        assert consumer.fetch(timeout_s=60)
        wait_for(seconds(consumer), has_everything)


def test_while_all_runners_are_inside_listeners(zookeeper: Chroot, broker: BrokerProcess) -> None:
    may_return = threading.Event()

    def on_message(message: ReceivedMessage) -> None:
        assert may_return.wait(60)

    with Client(zookeeper.connect) as client, client.consumer("starved", config=CONFIG) as consumer:
        consumer.subscribe("orders", on_message=on_message)
        consumer.start()
        wait_for(seconds(consumer), has_everything)
        client.producer().send("orders", b"slow", partition="0-0")
        wait_for(seconds(consumer), grows)
        may_return.set()
        wait_for(seconds(consumer), has_everything)
