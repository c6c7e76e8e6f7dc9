"""send_async through kills of a real broker: every acknowledged message is there, once, where its handle says."""

import random
import threading
import time

import pytest

from meta_client.client import Client
from meta_client.producer.partition_queues import BatchingConfig
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.gets import read_topic
from zk.embedded.chroot import Chroot

MESSAGES = 6000
CONFIG = BatchingConfig(batch_bytes=4096, linger_s=0.001, delivery_timeout_s=60.0)


@pytest.mark.parametrize("is_named", [True, False], ids=["partitions named", "any partition"])
@pytest.mark.usefixtures("either_core")
def test_batches_through_kills_are_stored_once_and_in_order(
    broker: BrokerProcess, zookeeper: Chroot, *, is_named: bool
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    done = threading.Event()

    def kill_now_and_then() -> None:
        while not done.wait(dice.uniform(0.2, 0.6)):
            broker.kill()
            broker.start()

    with Client(zookeeper.connect, session_timeout_ms=4_000, batching=CONFIG) as client:
        killer = threading.Thread(target=kill_now_and_then)
        killer.start()
        try:
            producer = client.producer()
            handles = []
            for number in range(MESSAGES):
                wanted = f"0-{number % 4}" if is_named else None
                handles.append(producer.send_async("orders", b"%d" % number, partition=wanted))
                if number % 50 == 0:
                    time.sleep(dice.uniform(0, 0.03))
            producer.flush(120)
        finally:
            done.set()
            killer.join()
        found = {(str(m.partition), m.offset): m for m in read_topic(client, "orders")}
        results = [handle.result(0) for handle in handles]
    assert len(found) == MESSAGES
    assert [int(found[str(r.partition), r.offset or 0].payload) for r in results] == list(range(MESSAGES))
    assert [found[str(r.partition), r.offset or 0].message_id for r in results] == [r.message_id for r in results]
    for partition in range(4):
        stored = [int(found[place].payload) for place in sorted(found) if place[0] == f"0-{partition}"]
        assert stored == sorted(stored) or not is_named  # what may go anywhere has no order


def test_a_clean_close_sends_what_is_gathered(broker: BrokerProcess, zookeeper: Chroot) -> None:
    with Client(zookeeper.connect) as client:
        handles = [client.producer().send_async("orders", b"kept") for _ in range(100)]
    assert all(handle.is_done for handle in handles)
    with Client(zookeeper.connect) as client:
        assert sum(message.payload == b"kept" for message in read_topic(client, "orders")) == 100
