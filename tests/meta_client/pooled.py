"""A broker that executes the puts of a connection in a pool, as the ancestor does (spec 1.2): out of their order."""

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from meta_client.protocol.requests import Put, Request, Version
from tests.meta_client.conftest import ScriptedBroker, StartBroker
from tests.meta_client.peer import ok, opaque_of

REFUSED = b"refuse me"
LOST = b"lose my answer"
PUTS_AT_A_TIME = 16


class PooledBroker:
    """Broker that keeps the messages of a pool in storage order. A put takes up to two milliseconds."""

    def __init__(self, topics: dict[str, int], start_broker: StartBroker) -> None:
        self.stored: dict[int, list[bytes]] = defaultdict(list)  # by partition
        self.under_way: Counter[int] = Counter()  # by partition
        self.most_in_a_partition = 0
        self.most_in_all = 0
        self.pool = ThreadPoolExecutor(PUTS_AT_A_TIME)
        self._lock = threading.Lock()
        self._dice = random.Random(7)
        self._broker: ScriptedBroker = start_broker(0, topics, self._on_request)

    def _on_request(self, request: Request) -> bytes | None:
        if isinstance(request, Version):
            return ok(request, b"1.4.6.2")
        assert isinstance(request, Put)
        with self._lock:
            self.under_way[request.partition] += 1
            self.most_in_a_partition = max(self.most_in_a_partition, self.under_way[request.partition])
            self.most_in_all = max(self.most_in_all, self.under_way.total())
            delay_s = self._dice.choice((0.0, 0.0005, 0.002))
        self.pool.submit(self._execute, request, delay_s)
        return None

    def _execute(self, request: Put, delay_s: float) -> None:
        time.sleep(delay_s)
        with self._lock:
            if request.body == REFUSED:
                answer = b"result 500 7 %d\r\nno room" % opaque_of(request)
            else:
                offset = sum(20 + len(body) for body in self.stored[request.partition])
                self.stored[request.partition].append(bytes(request.body))
                answer = ok(request, b"7 %d %d" % (request.partition, offset))
            self.under_way[request.partition] -= 1
            if request.body == LOST:
                self._broker.peer.hang_up()
            else:
                self._broker.peer.send(answer)


@contextmanager
def pooled_broker(topics: dict[str, int], start_broker: StartBroker) -> Iterator[PooledBroker]:
    """Run a broker whose pool ends with the block."""
    broker = PooledBroker(topics, start_broker)
    with broker.pool:
        yield broker
