"""Which batch goes out when, and again. Pure: time is told, nothing is sent here.

A lane is a topic's partition. Batches of a lane go out in the order of their numbers, a few at a time; one that
is to be tried again takes its old place, so that a retry never overtakes.
"""

import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from meta_client.batching.batch import Batch
from meta_client.protocol.limits import BATCH_MESSAGES_MAX
from meta_client.puts import RoundRobin
from meta_client.topology import TopicView
from zk.nodes import Partition

IN_FLIGHT_MAX: Final = 4  # batches of a lane; a broker remembers the last eight (PROTOCOL.md)
RETRY_FIRST_S: Final = 0.05
RETRY_MAX_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingConfig:
    """How `send_async` gathers and retries.

    batch_bytes: a batch this large goes at once; linger_s: a smaller one waits this long for company.
    delivery_timeout_s: after that a message is given up. buffer_bytes_max: of messages not yet settled; when they
    are more, send_async blocks, or raises BufferFull if *raise_when_full*.
    """

    batch_bytes: int = 256 * 1024
    linger_s: float = 0.002
    delivery_timeout_s: float = 30.0
    buffer_bytes_max: int = 32 * 1024 * 1024
    raise_when_full: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.batch_bytes <= 4 * 1024 * 1024:
            raise ValueError(f"batch_bytes {self.batch_bytes} is not from 1 to 4 MiB")
        if self.linger_s < 0 or self.delivery_timeout_s <= 0:
            raise ValueError(f"linger_s {self.linger_s} or delivery_timeout_s {self.delivery_timeout_s} is negative")
        if self.buffer_bytes_max < self.batch_bytes:
            raise ValueError(f"buffer_bytes_max {self.buffer_bytes_max} < batch_bytes {self.batch_bytes}")


@dataclass(slots=True)
class Lane:
    """The batches of one partition that are sealed and not settled, by number."""

    waiting: list[Batch] = field(default_factory=list)
    in_flight: int = 0
    next_number: int = 0
    rest_until: float = 0.0  # after a failure; monotonic


class Lanes:
    """Open batches by topic, sealed ones by partition. One thread at a time: the sender holds its lock."""

    def __init__(self, config: BatchingConfig) -> None:
        self._config = config
        self._open: dict[tuple[str, Partition | None], Batch] = {}
        self._lanes: dict[tuple[str, Partition], Lane] = {}
        self._choices: dict[str, RoundRobin] = {}

    def open_batch(self, view: TopicView, wanted: Partition | None, size: int, now: float) -> Batch:
        """The batch that takes a message of *size* bytes for *view*'s topic: the open one, if it has room.

        One that it does not fit into is sealed. Raises NoPartition, NoBroker.
        """
        key = (view.topic, wanted)
        batch = self._open.get(key)
        if batch is not None:
            if batch.bytes + size <= self._config.batch_bytes and len(batch) < BATCH_MESSAGES_MAX:
                return batch
            self._seal(key)
        choice = self._choices.setdefault(view.topic, RoundRobin())
        partition = choice.choose(view, wanted)
        batch = Batch(view.topic, partition, now + self._config.linger_s, now + self._config.delivery_timeout_s)
        self._open[key] = batch
        return batch

    def is_full(self, batch: Batch) -> bool:
        """Whether *batch* need not wait for company any more."""
        return batch.bytes >= self._config.batch_bytes or len(batch) >= BATCH_MESSAGES_MAX

    def seal_due(self, now: float) -> None:
        """Seal what has waited long enough, or is full."""
        for key in [key for key, batch in self._open.items() if batch.due <= now or self.is_full(batch)]:
            self._seal(key)

    def seal_all(self) -> None:
        for key in list(self._open):
            self._seal(key)

    def _seal(self, key: tuple[str, Partition | None]) -> None:
        batch = self._open.pop(key)
        lane = self._lanes.setdefault((batch.topic, batch.partition), Lane())
        batch.number = lane.next_number
        lane.next_number += 1
        lane.waiting.append(batch)

    def take_ready(self, now: float) -> list[Batch]:
        """What is to be sent now, in order; it counts as under way until `settled` or `again`."""
        ready = []
        for lane in self._lanes.values():
            if lane.rest_until <= now:
                count = min(IN_FLIGHT_MAX - lane.in_flight, len(lane.waiting))
                ready += lane.waiting[:count]
                del lane.waiting[:count]
                lane.in_flight += count
        return ready

    def settled(self, batch: Batch) -> None:
        """*batch*, which was under way, is over."""
        lane = self._lanes[batch.topic, batch.partition]
        lane.in_flight -= 1
        lane.rest_until = 0.0

    def again(self, batch: Batch, now: float) -> None:
        """*batch*, which was under way, is to be sent again, after a rest that grows with its failures."""
        lane = self._lanes[batch.topic, batch.partition]
        lane.in_flight -= 1
        lane.rest_until = now + min(RETRY_FIRST_S * 2.0 ** min(batch.failures - 1, 10), RETRY_MAX_S)
        bisect.insort(lane.waiting, batch, key=lambda waiting: waiting.number)

    def next_due(self) -> float | None:
        """When there will be something to do that nobody announces: a linger or a rest that ends."""
        rests = (lane.rest_until for lane in self._lanes.values() if lane.waiting and lane.in_flight < IN_FLIGHT_MAX)
        return min((*(batch.due for batch in self._open.values()), *rests), default=None)

    def unsettled(self) -> Iterator[Batch]:
        """What is open or waits; not what is under way."""
        yield from self._open.values()
        for lane in self._lanes.values():
            yield from lane.waiting

    def clear(self) -> list[Batch]:
        """Forget what is open or waits, and return it."""
        dropped = list(self.unsettled())
        self._open.clear()
        for lane in self._lanes.values():
            lane.waiting.clear()
        return dropped

    @property
    def is_empty(self) -> bool:
        """Whether nothing is open, waits, or is under way."""
        return not self._open and all(not lane.waiting and not lane.in_flight for lane in self._lanes.values())
