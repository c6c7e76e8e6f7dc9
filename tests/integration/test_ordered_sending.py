"""Two brokers, one killed and started over and over: keys stay in order, nothing is doubled, the rest goes on."""

import itertools
import os
import random
import threading
import time
from collections import defaultdict
from pathlib import Path

from meta_client.client import Client
from meta_client.producer.partition_queues import BatchingConfig
from meta_client.producer.partitioners import ByAttribute
from tests.fixtures.broker import running_broker
from tests.fixtures.reading import read_whole
from zk.embedded.chroot import Chroot

KEYS = 12
KILLS = max(2, int(os.environ.get("METAQ_CRASH_ROUNDS", "0")))
CONFIG = BatchingConfig(batch_bytes=2048, linger_s=0.001, delivery_timeout_s=60.0)
TOPICS = """
[broker]
segment_bytes = 4194304
[zookeeper]
session_timeout_ms = 4000
sync_ms = 0
[topics.orders]
partitions = 3
"""


class Rival:
    """One thread that sends numbered messages of its keys, by both ways, until it is told to stop."""

    def __init__(self, client: Client, name: str, over: threading.Event, seed: int) -> None:
        self.name = name
        self.sent: dict[str, list[str]] = defaultdict(list)  # by key
        self.free = 0
        self._producer = client.producer(partitioner=ByAttribute({"orders": {0: 3, 1: 3}}))
        self._over = over
        self._dice = random.Random(seed)
        self.thread = threading.Thread(target=self._run)
        self.failure: BaseException | None = None

    def _run(self) -> None:
        try:
            for number in itertools.count():
                if self._over.is_set():
                    break
                key = f"{self.name}:{self._dice.randrange(KEYS)}"
                text = f"{key}:{number}"
                if self._dice.random() < 0.5:
                    self._producer.send_async("orders", text.encode(), attribute=key)
                else:
                    self._producer.send("orders", text.encode(), attribute=key, timeout_s=60)
                self.sent[key].append(text)
                result = self._producer.send("orders", f"free:{self.name}:{number}".encode(), timeout_s=60)
                assert result.offset is not None
                self.free += 1
            self._producer.flush(120)
        except BaseException as error:
            self.failure = error
            raise


def test_keys_keep_their_order_through_kills(tmp_path: Path, zookeeper: Chroot) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    with (
        running_broker(tmp_path / "first", zookeeper.connect, broker_id=0, config=TOPICS) as first,
        running_broker(tmp_path / "second", zookeeper.connect, broker_id=1, config=TOPICS),
        Client(zookeeper.connect, session_timeout_ms=4_000, batching=CONFIG) as client,
    ):
        over = threading.Event()
        rivals = [Rival(client, name, over, dice.randrange(2**32)) for name in ("a", "b")]
        for rival in rivals:
            rival.thread.start()
        for _ in range(KILLS):
            time.sleep(dice.uniform(0.3, 0.8))
            first.kill()
            time.sleep(dice.uniform(0, 0.5))
            first.start()
        time.sleep(0.3)
        over.set()
        for rival in rivals:
            rival.thread.join()
            assert rival.failure is None
        found = read_whole(client, "orders", 6)
    stored: dict[str, list[tuple[str, int, str]]] = defaultdict(list)
    for message in found:
        if message.attribute is not None:
            stored[message.attribute].append((str(message.partition), message.offset, message.payload.decode()))
    sent = {key: texts for rival in rivals for key, texts in rival.sent.items()}
    assert {key: [text for _, _, text in sorted(places)] for key, places in stored.items()} == sent
    assert all(len({partition for partition, _, _ in places}) == 1 for places in stored.values())
    free = [message.payload for message in found if message.attribute is None]
    assert len(free) == len(set(free)) == sum(rival.free for rival in rivals)
