"""Sends numbered messages to every partition of a topic, in bursts; knows what was acknowledged, where and when."""

import itertools
import threading
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from meta_client.errors import SendFailed
from meta_client.producer.batch import SendHandle
from meta_client.producer.producer import Producer
from zk.session.lease import now
from zk.tree.nodes import Partition

BURST_S = 0.3


class Acknowledged(NamedTuple):
    """A message that is stored for sure. *at*: when that was noticed, up to a burst later."""

    at: float
    number: int
    offset: int


class Feed:
    """Sends to all *partitions* until it is stopped."""

    def __init__(self, producer: Producer, topic: str, partitions: Sequence[Partition]) -> None:
        self._producer = producer
        self._topic = topic
        self._partitions = list(partitions)
        self._stop = threading.Event()
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()  # guards the next three
        self._due: list[tuple[Partition, int, SendHandle]] = []
        self.acknowledged: defaultdict[str, set[int]] = defaultdict(set)
        self.places: defaultdict[str, list[Acknowledged]] = defaultdict(list)
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def add(self, partition: Partition) -> None:
        """Send to *partition*, too."""
        self._partitions = [*self._partitions, partition]

    def send(self, partition: Partition, size: int = 0) -> None:
        """Send one message of *size* bytes, or as short as can be. Any thread."""
        number = next(self._numbers)
        try:
            handle = self._producer.send_async(self._topic, (b"%d " % number).ljust(size, b"."), partition=partition)
        except SendFailed:
            return  # its broker is down; nothing was sent
        assert isinstance(handle, SendHandle)
        with self._lock:
            self._due.append((partition, number, handle))

    def cancel(self) -> None:
        """Stop sending, without waiting."""
        self._stop.set()

    def stop(self) -> None:
        """Returns once everything that was sent is acknowledged, or known not to be stored for sure."""
        self.cancel()
        self._thread.join()
        for partition, number, handle in self._due:
            self._settle(partition, number, handle, timeout_s=30)

    def _run(self) -> None:
        while not self._stop.wait(BURST_S):
            with self._lock:
                self._due = [entry for entry in self._due if not self._is_settled(*entry)]
            for partition in self._partitions:
                self.send(partition)

    def _is_settled(self, partition: Partition, number: int, handle: SendHandle) -> bool:
        if is_done := handle.is_done:
            self._settle(partition, number, handle, timeout_s=0)
        return is_done

    def _settle(self, partition: Partition, number: int, handle: SendHandle, timeout_s: float) -> None:
        try:
            place = handle.result(timeout_s)
        except SendFailed:
            return  # it may be stored or not: no promise
        self.acknowledged[str(partition)].add(number)
        self.places[str(partition)].append(Acknowledged(now(), number, place.offset or 0))
