"""A seek of a partition that no runner comes to any more, before its consumer ends."""

import threading

from meta_client.client import Client
from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.consumer.offsets import ZooKeeperOffsetStore
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.scrape import wait_for
from zk.embedded.chroot import Chroot
from zk.tree.nodes import Partition

SLOW, SOUGHT = ("orders", Partition(0, 0)), ("orders", Partition(0, 1))


def test_it_sets_the_progress_of_the_group(zookeeper: Chroot, broker: BrokerProcess) -> None:
    may_return, has_begun = threading.Event(), threading.Event()

    def on_message(message: ReceivedMessage) -> None:
        if (message.topic, message.partition) == SLOW:
            has_begun.set()
            assert may_return.wait(60)

    with Client(zookeeper.connect) as client:
        store = ZooKeeperOffsetStore(client.session, "seeker")
        consumer = client.consumer("seeker", config=ConsumerConfig(runners=1, commit_period_s=0.05))
        consumer.subscribe("orders", on_message=on_message)
        with consumer:
            client.producer().send("orders", b"taken", partition="0-1")
            wait_for(lambda: store.load(*SOUGHT), bool)
            client.producer().send("orders", b"slow", partition="0-0")
            assert has_begun.wait(60)  # in the only runner
            assert consumer.seek(*SOUGHT, "earliest")
            closing = threading.Thread(target=consumer.close)
            closing.start()
            wait_for(consumer.owned, lambda owned: not owned)
            may_return.set()
            closing.join()
        assert store.load(*SOUGHT) == 0
