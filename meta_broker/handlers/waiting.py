"""Waiting fetches: by partition, by connection, and by due time. Pure.

Every step costs little except for the fetches it releases: thousands may wait for long on a partition from which others
are served all the time. Due times are kept in buckets of TICK_MS, so that one timer serves all of them and a fetch that
leaves early leaves nothing behind.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

from journal.records.record import PartitionName
from meta_broker.handlers.context import Peer, WaitingFetch

TICK_MS = 10  # how much later than requested a fetch may be answered
ENDS_MIN = 64  # empty ends a partition may keep


@dataclass(slots=True)
class _WaitQueue:
    """The *count* fetches that wait for one partition, by the end they need; *ends*: a heap of those ends."""

    count: int = 0
    by_end: dict[int, dict[WaitingFetch, None]] = field(default_factory=dict)  # some may be empty: ENDS_MIN
    ends: list[int] = field(default_factory=list)

    def add(self, waiting: WaitingFetch) -> None:
        if (bucket := self.by_end.get(waiting.end_wanted)) is None:
            bucket = self.by_end[waiting.end_wanted] = {}
            heapq.heappush(self.ends, waiting.end_wanted)
        bucket[waiting] = None
        self.count += 1

    def remove(self, waiting: WaitingFetch) -> None:
        del self.by_end[waiting.end_wanted][waiting]
        self.count -= 1
        if len(self.ends) > 2 * self.count + ENDS_MIN:
            self.by_end = {end: bucket for end, bucket in self.by_end.items() if bucket}
            self.ends = sorted(self.by_end)  # which is a heap

    def pop_reached(self, end: int) -> list[WaitingFetch]:
        """Remove the fetches that need no more than *end*, in the order of their arrival."""
        found: list[WaitingFetch] = []
        while self.ends and self.ends[0] <= end:
            found += self.by_end.pop(heapq.heappop(self.ends))
        self.count -= len(found)
        found.sort(key=lambda waiting: waiting.number)
        return found


class WaitingFetches:
    """All waiting fetches of a broker. One thread; the caller passes the time, in milliseconds."""

    def __init__(self, fetches_max: int, fetches_per_peer_max: int) -> None:
        self._fetches_max = fetches_max
        self._fetches_per_peer_max = fetches_per_peer_max
        self._count = 0
        self.by_partition: dict[PartitionName, _WaitQueue] = {}  # no empty ones
        self._number = 0
        # Fetches with an epoch, by partition and group; no empty ones.
        self._by_owned: dict[tuple[PartitionName, str], dict[WaitingFetch, None]] = {}
        self._by_peer: dict[Peer, dict[WaitingFetch, None]] = {}  # no empty ones
        self._by_tick: dict[int, dict[WaitingFetch, None]] = {}  # empty ones stay until their due time
        self._ticks: list[int] = []  # a heap of the keys of _by_tick

    def __len__(self) -> int:
        return self._count

    def why_full(self, peer: Peer) -> str | None:
        """Return why no other fetch of *peer* may wait; None: it may."""
        if self._count >= self._fetches_max:
            return f"{self._count} fetches wait here: ask later, fetches_waiting_max is {self._fetches_max}"
        if (mine := len(self._by_peer.get(peer, ()))) >= self._fetches_per_peer_max:
            return (
                f"{mine} fetches of this connection wait: ask later, fetches_waiting_per_connection_max is "
                f"{self._fetches_per_peer_max}"
            )
        return None

    def add(self, waiting: WaitingFetch) -> None:
        """Add a fetch; there must be room."""
        assert self.why_full(waiting.peer) is None
        waiting.number = self._number = self._number + 1
        if (queue := self.by_partition.get(waiting.name)) is None:
            queue = self.by_partition[waiting.name] = _WaitQueue()
        queue.add(waiting)
        if waiting.fetch.epoch is not None:
            self._by_owned.setdefault((waiting.name, waiting.fetch.group), {})[waiting] = None
        self._by_peer.setdefault(waiting.peer, {})[waiting] = None
        tick = _tick(waiting.due_ms)
        if (bucket := self._by_tick.get(tick)) is None:
            bucket = self._by_tick[tick] = {}
            heapq.heappush(self._ticks, tick)
        bucket[waiting] = None
        self._count += 1

    def pop_reached(self, name: PartitionName, end: int) -> list[WaitingFetch]:
        """Remove the fetches that need no more than *end*, in the order of their arrival."""
        if (queue := self.by_partition.get(name)) is None:
            return []
        reached = queue.pop_reached(end)
        if not queue.count:
            del self.by_partition[name]
        for waiting in reached:
            self._remove_from_indexes(waiting)
        return reached

    def pop_stale(self, name: PartitionName, group: str, epoch: int) -> list[WaitingFetch]:
        """Remove the fetches of one partition whose owner epoch is lower than the group's, *epoch*."""
        owners = self._by_owned.get((name, group), ())
        stale = [one for one in owners if one.fetch.epoch is not None and one.fetch.epoch < epoch]
        self._remove(stale)
        return stale

    def pop_due(self, now_ms: int) -> list[WaitingFetch]:
        """Remove the fetches that have waited long enough."""
        due: list[WaitingFetch] = []
        while self._ticks and self._ticks[0] * TICK_MS <= now_ms:
            tick = heapq.heappop(self._ticks)
            bucket = list(self._by_tick[tick])
            self._remove(bucket)
            del self._by_tick[tick]
            due += bucket
        return due

    def pop_of_peer(self, peer: Peer) -> list[WaitingFetch]:
        mine = list(self._by_peer.get(peer, ()))
        self._remove(mine)
        return mine

    @property
    def next_due_ms(self) -> int | None:
        """Time of the next call of `pop_due`."""
        return self._ticks[0] * TICK_MS if self._ticks else None

    def _remove(self, gone: Iterable[WaitingFetch]) -> None:
        for waiting in gone:
            queue = self.by_partition[waiting.name]
            queue.remove(waiting)
            if not queue.count:
                del self.by_partition[waiting.name]
            self._remove_from_indexes(waiting)

    def _remove_from_indexes(self, waiting: WaitingFetch) -> None:
        """Remove a fetch, already out of its queue, from the other indexes."""
        if waiting.fetch.epoch is not None:
            owned = waiting.name, waiting.fetch.group
            del self._by_owned[owned][waiting]
            if not self._by_owned[owned]:
                del self._by_owned[owned]
        mine = self._by_peer[waiting.peer]
        del mine[waiting]
        if not mine:
            del self._by_peer[waiting.peer]
        del self._by_tick[_tick(waiting.due_ms)][waiting]
        self._count -= 1


def _tick(due_ms: int) -> int:
    """Return the bucket of a due time: the first whose time is not earlier."""
    return -(-due_ms // TICK_MS)
