"""Which batch goes out when, and again. Pure: time is told, nothing is sent here.

A lane is a topic's partition. Batches of a lane go out in the order of their numbers, a few at a time; one that
is to be tried again takes its old place, so that a retry never overtakes.
"""

import bisect
import heapq
import itertools
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from meta_client.batching.batch import Batch
from meta_client.puts import RoundRobin
from meta_client.topology import TopicView
from meta_client.transport import Transport
from zk.nodes import Partition

IN_FLIGHT_MAX: Final = 4  # batches of a lane; a broker remembers the last eight (PROTOCOL.md)
RETRY_FIRST_S: Final = 0.05
RETRY_MAX_S: Final = 1.0
AWAY_S: Final = 1.0  # how long after a failure to connect messages that may go anywhere go elsewhere

Destined = tuple[str, Partition | None]  # a topic, and the partition if the caller has named one


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


@dataclass(slots=True, eq=False)
class Lane:
    """The batches of one partition that are sealed and not settled, by number."""

    broker_id: int
    waiting: list[Batch] = field(default_factory=list)
    taken: set[int] = field(default_factory=set)  # numbers of those that were taken and not submitted yet
    on_wire: int = 0  # submitted, and neither settled nor to be sent again
    connection: Transport | None = None  # which they were submitted to; only while there are some
    is_draining: bool = False  # what waits must not go before they are answered
    next_number: int = 0
    rest_until: float = 0.0  # after a failure; monotonic

    @property
    def in_flight(self) -> int:
        return len(self.taken) + self.on_wire

    @property
    def is_sendable(self) -> bool:
        return bool(self.waiting) and self.in_flight < IN_FLIGHT_MAX and not self.is_draining and not self.rest_until


class Lanes:
    """Open batches by topic, sealed ones by partition. One thread at a time: the sender holds its lock.

    Nothing here costs more when there are more lanes, but `take_all`.
    """

    def __init__(self, config: BatchingConfig) -> None:
        self._config = config
        # What gathers messages; it may be without room. In the order in which they were opened, and are due.
        self.open: dict[Destined, Batch] = {}
        self._lanes: dict[tuple[str, Partition], Lane] = {}
        self._sendable: dict[Lane, None] = {}
        self._resting: list[tuple[float, int, Lane]] = []  # a heap
        self._rests = 0
        self._choices: dict[str, RoundRobin] = {}
        self._sealed = 0  # batches that are sealed and not settled
        self._away: dict[int, float] = {}  # by broker id: could not be connected to; until when to avoid it

    def open_batch(self, view: TopicView, wanted: Partition | None, now: float) -> Batch:
        """A new batch for *view*'s topic, and a partition of its own choice unless one is *wanted*: of a broker that
        was reached if there is one, of one that is away if there is no other.

        The one that was open is sealed. Raises NoPartition; nothing is changed then.
        """
        destined = (view.topic, wanted)
        partition = self._choice(view).choose_patiently(view, wanted, self._avoided(now))
        if destined in self.open:
            self.seal(destined)
        config = self._config
        due, deadline = now + config.linger_s, now + config.delivery_timeout_s
        batch = Batch(view.topic, partition, config.batch_bytes, due, deadline, is_free=wanted is None)
        self.open[destined] = batch
        return batch

    def _choice(self, view: TopicView) -> RoundRobin:
        return self._choices.setdefault(view.topic, RoundRobin())

    def seal_due(self, now: float) -> None:
        """Seal what has waited long enough."""
        for destined in list(itertools.takewhile(lambda destined: self.open[destined].due <= now, self.open)):
            self.seal(destined)

    def seal_all(self) -> None:
        for destined in list(self.open):
            self.seal(destined)

    def seal(self, destined: Destined) -> None:
        """Add nothing more to the open batch of *destined*: it takes its number, and goes when its turn comes."""
        batch = self.open.pop(destined)
        self._sealed += 1
        self._queue(batch)

    def _queue(self, batch: Batch) -> None:
        """The last of its partition's lane, with a number of that lane."""
        if (lane := self._lanes.get((batch.topic, batch.partition))) is None:
            lane = self._lanes[batch.topic, batch.partition] = Lane(batch.partition.broker_id)
        batch.number = lane.next_number
        lane.next_number += 1
        lane.waiting.append(batch)
        self._offer(lane)

    def take_ready(self, now: float, brokers: Collection[int] | None = None) -> list[Batch]:
        """What is to be sent now (to *brokers* alone, if given), in order; it is under way until `settled`, `again`
        or a `submitted` that says no."""
        while self._resting and self._resting[0][0] <= now:
            _, _, lane = heapq.heappop(self._resting)
            if lane.rest_until <= now:
                lane.rest_until = 0.0
                self._offer(lane)
        ready: list[Batch] = []
        for lane in list(self._sendable):
            if brokers is None or lane.broker_id in brokers:
                count = min(IN_FLIGHT_MAX - lane.in_flight, len(lane.waiting))
                ready += lane.waiting[:count]
                lane.taken.update(map(_number, lane.waiting[:count]))
                del lane.waiting[:count]
                del self._sendable[lane]
        return ready

    @property
    def has_sendable(self) -> bool:
        """Whether `take_ready` would give something at once. Any thread may ask without the lock."""
        return bool(self._sendable)

    def submitted(self, batch: Batch, connection: Transport, *, alone: bool = False) -> bool:
        """Whether *batch*, which was taken, may go over *connection* now; if not it waits again.

        It may not overtake: neither one that waits to be sent again or is about to be, nor those under way over another
        connection; *alone*: nor any under way, as the broker may execute requests out of order.
        """
        lane = self._lane(batch)
        lane.taken.remove(batch.number)
        is_draining = lane.on_wire > 0 and (alone or lane.connection is not connection)
        earlier = [*lane.taken, *map(_number, lane.waiting[:1])]
        if is_draining or any(number < batch.number for number in earlier):
            lane.is_draining = is_draining
            bisect.insort(lane.waiting, batch, key=_number)
            self._offer(lane)
            return False
        lane.on_wire += 1
        lane.connection = batch.connection = connection
        return True

    def settled(self, batch: Batch) -> None:
        """*batch*, which was under way, is over."""
        lane = self._lane(batch)
        lane.rest_until = 0.0
        self._sealed -= 1
        self._leave(lane, batch)

    def again(self, batch: Batch, now: float) -> None:
        """*batch*, which was under way, is to be sent again, after a rest that grows with its failures."""
        lane = self._lane(batch)
        lane.rest_until = now + min(RETRY_FIRST_S * 2.0 ** min(batch.failures - 1, 10), RETRY_MAX_S)
        self._rests += 1
        heapq.heappush(self._resting, (lane.rest_until, self._rests, lane))
        self.resume(batch)

    def resume(self, batch: Batch) -> None:
        """*batch*, which was under way, is to be sent at once, as far as it goes singly and some of it is left."""
        lane = self._lane(batch)
        bisect.insort(lane.waiting, batch, key=_number)
        self._leave(lane, batch)

    def maybe_move(self, batch: Batch, view: TopicView | None, now: float) -> bool:
        """The broker of *batch*, which was under way but never sent, could not be reached. Whether it goes to another
        one now, which is up. So do those behind it that nobody wants where they are; the others wait for this one."""
        self._away[batch.partition.broker_id] = now + AWAY_S
        avoided = self._avoided(now)
        if view is None:
            return False
        if not batch.is_free or batch.attempts or all(p.broker_id in avoided for p in view.available):
            return False
        lane = self._lane(batch)
        moving = [batch, *(other for other in lane.waiting if other.is_free and not other.attempts)]
        lane.waiting = [other for other in lane.waiting if not other.is_free or other.attempts]
        self._leave(lane, batch)
        for other in moving:
            other.partition = self._choice(view).choose_patiently(view, None, avoided)
            self._queue(other)
        return True

    def _avoided(self, now: float) -> Collection[int]:
        """Brokers that could not be reached a moment ago."""
        if self._away:
            self._away = {broker_id: until for broker_id, until in self._away.items() if until > now}
        return self._away

    def is_behind(self, topic: str, partition: Partition) -> bool:
        """Whether messages for a partition that was asked for are gathered, wait or are under way."""
        lane = self._lanes.get((topic, partition))
        return (topic, partition) in self.open or (lane is not None and bool(lane.waiting or lane.in_flight))

    def _leave(self, lane: Lane, batch: Batch) -> None:
        if batch.connection is not None:
            batch.connection = None
            lane.on_wire -= 1
        else:
            lane.taken.remove(batch.number)
        if not lane.on_wire:
            lane.is_draining, lane.connection = False, None
        self._offer(lane)

    def _offer(self, lane: Lane) -> None:
        if lane.is_sendable:
            self._sendable[lane] = None
        else:
            self._sendable.pop(lane, None)

    def _lane(self, batch: Batch) -> Lane:
        return self._lanes[batch.topic, batch.partition]

    def next_due(self) -> float | None:
        """When there will be something to do that nobody announces: a linger or a rest that ends."""
        oldest = next(iter(self.open.values()), None)
        rest = self._resting[0][0] if self._resting else None
        if oldest is None or rest is None:
            return rest if oldest is None else oldest.due
        return min(oldest.due, rest)

    def take_all(self) -> list[Batch]:
        """What is open or waits, whether it may be sent now or not: to be settled."""
        self.seal_all()
        self._sendable.clear()
        everything: list[Batch] = []
        for lane in self._lanes.values():
            lane.taken.update(map(_number, lane.waiting))
            everything += lane.waiting
            lane.waiting = []
        return everything

    @property
    def is_empty(self) -> bool:
        """Whether nothing is open, waits, or is under way."""
        return not self.open and not self._sealed


def _number(batch: Batch) -> int:
    return batch.number
