"""Fetches that wait for messages: by partition, by connection, and by when they have waited long enough. Pure.

Every step costs next to nothing but for the fetches that it lets go: thousands may wait for years, for a partition from
which others are served all the time. Due times are kept in buckets of TICK_MS, so that one timer serves all of them and
whatever leaves early leaves nothing behind.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

from journal.records import PartitionName
from meta_broker.processors.context import Peer
from meta_client.protocol.requests import Fetch

TICK_MS = 10  # how much later than asked a fetch may be answered, on a timer of its own or not
ENDS_MIN = 64  # of a partition, that may be kept though nobody waits for them any more


@dataclass(slots=True, eq=False)
class WaitingFetch:
    """A fetch and what ends its wait."""

    fetch: Fetch
    peer: Peer
    name: PartitionName
    end_wanted: int  # the partition's end that is enough
    due_ms: int  # on the caller's clock
    number: int = 0  # rises in the order in which they came; `add` gives it


@dataclass(slots=True)
class _Queue:
    """Who waits for one partition, *count* in all, by the end that is enough; *ends*: a heap of those."""

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

    def take_reached(self, end: int) -> list[WaitingFetch]:
        """Remove whoever waits for no more than *end*; in the order in which they came."""
        found: list[WaitingFetch] = []
        while self.ends and self.ends[0] <= end:
            found += self.by_end.pop(heapq.heappop(self.ends))
        self.count -= len(found)
        found.sort(key=lambda waiting: waiting.number)
        return found


class WaitingFetches:
    """All waiting fetches of a broker. One owner thread; the caller has the clock, in milliseconds."""

    def __init__(self, fetches_max: int, fetches_per_peer_max: int) -> None:
        self._fetches_max = fetches_max
        self._fetches_per_peer_max = fetches_per_peer_max
        self._count = 0
        self.by_partition: dict[PartitionName, _Queue] = {}  # no empty ones
        self._number = 0
        # Who told an epoch, by partition and group; no empty ones.
        self._by_owned: dict[tuple[PartitionName, str], dict[WaitingFetch, None]] = {}
        self._by_peer: dict[Peer, dict[WaitingFetch, None]] = {}  # no empty ones
        self._by_tick: dict[int, dict[WaitingFetch, None]] = {}  # empty ones stay until their time
        self._ticks: list[int] = []  # a heap of the keys of _by_tick

    def __len__(self) -> int:
        return self._count

    def why_full(self, peer: Peer) -> str | None:
        """Why not one more fetch of *peer* may wait; None: it may."""
        if self._count >= self._fetches_max:
            return f"{self._count} fetches wait here: ask later, fetches_waiting_max is {self._fetches_max}"
        if (mine := len(self._by_peer.get(peer, ()))) >= self._fetches_per_peer_max:
            return (
                f"{mine} fetches of this connection wait: ask later, fetches_waiting_per_connection_max is "
                f"{self._fetches_per_peer_max}"
            )
        return None

    def add(self, waiting: WaitingFetch) -> None:
        """Keep a fetch; there must be room."""
        assert self.why_full(waiting.peer) is None
        waiting.number = self._number = self._number + 1
        if (queue := self.by_partition.get(waiting.name)) is None:
            queue = self.by_partition[waiting.name] = _Queue()
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

    def take_reached(self, name: PartitionName, end: int) -> list[WaitingFetch]:
        """Let go whoever waits for no more than *end*, in the order in which they came."""
        if (queue := self.by_partition.get(name)) is None:
            return []
        reached = queue.take_reached(end)
        if not queue.count:
            del self.by_partition[name]
        for waiting in reached:
            self._forget(waiting)
        return reached

    def take_stale(self, name: PartitionName, group: str, epoch: int) -> list[WaitingFetch]:
        """Let go whoever waits for one partition as an owner of a lower epoch than the group has now."""
        owners = self._by_owned.get((name, group), ())
        stale = [one for one in owners if one.fetch.epoch is not None and one.fetch.epoch < epoch]
        self._remove(stale)
        return stale

    def take_due(self, now_ms: int) -> list[WaitingFetch]:
        """Let go whoever has waited long enough."""
        due: list[WaitingFetch] = []
        while self._ticks and self._ticks[0] * TICK_MS <= now_ms:
            tick = heapq.heappop(self._ticks)
            bucket = list(self._by_tick[tick])
            self._remove(bucket)
            del self._by_tick[tick]
            due += bucket
        return due

    def take_of(self, peer: Peer) -> list[WaitingFetch]:
        """Let go all of one connection's."""
        mine = list(self._by_peer.get(peer, ()))
        self._remove(mine)
        return mine

    @property
    def next_due_ms(self) -> int | None:
        """When `take_due` has to be called next."""
        return self._ticks[0] * TICK_MS if self._ticks else None

    def _remove(self, gone: Iterable[WaitingFetch]) -> None:
        for waiting in gone:
            queue = self.by_partition[waiting.name]
            queue.remove(waiting)
            if not queue.count:
                del self.by_partition[waiting.name]
            self._forget(waiting)

    def _forget(self, waiting: WaitingFetch) -> None:
        """It has left its queue; the rest."""
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
    """The bucket of a due time: the first whose time is not earlier."""
    return -(-due_ms // TICK_MS)
