"""Fetches that wait for messages: by partition, by connection, and by when they have waited long enough. Pure.

Every step costs a constant time but for the fetches that it lets go: thousands may wait for years. Due times are
kept in buckets of TICK_MS, so that one timer serves all of them and whatever leaves early leaves nothing behind.
"""

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

from journal.records import PartitionName
from meta_broker.processors.context import Peer
from meta_client.protocol.requests import Fetch

TICK_MS = 10  # how much later than asked a fetch may be answered, on a timer of its own or not


@dataclass(slots=True, eq=False)
class WaitingFetch:
    """A fetch and what ends its wait."""

    fetch: Fetch
    peer: Peer
    name: PartitionName
    end_wanted: int  # the partition's end that is enough
    due_ms: int  # on the caller's clock


@dataclass(slots=True)
class _Queue:
    """Who waits for one partition. *end_wanted* is at most the smallest one of theirs."""

    end_wanted: int
    fetches: dict[WaitingFetch, None] = field(default_factory=dict)


class WaitingFetches:
    """All waiting fetches of a broker. One owner thread; the caller has the clock, in milliseconds."""

    def __init__(self, fetches_max: int, fetches_per_peer_max: int) -> None:
        self._fetches_max = fetches_max
        self._fetches_per_peer_max = fetches_per_peer_max
        self._count = 0
        self.by_partition: dict[PartitionName, _Queue] = {}  # no empty ones
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
        queue = self.by_partition.setdefault(waiting.name, _Queue(waiting.end_wanted))
        queue.end_wanted = min(queue.end_wanted, waiting.end_wanted)
        queue.fetches[waiting] = None
        self._by_peer.setdefault(waiting.peer, {})[waiting] = None
        tick = _tick(waiting.due_ms)
        if (bucket := self._by_tick.get(tick)) is None:
            bucket = self._by_tick[tick] = {}
            heapq.heappush(self._ticks, tick)
        bucket[waiting] = None
        self._count += 1

    def take_reached(self, name: PartitionName, end: int) -> list[WaitingFetch]:
        """Let go whoever waits for no more than *end*, in the order in which they came."""
        queue = self.by_partition.get(name)
        if queue is None or end < queue.end_wanted:
            return []
        reached = [waiting for waiting in queue.fetches if waiting.end_wanted <= end]
        self._remove(reached)
        if queue.fetches:
            queue.end_wanted = min(waiting.end_wanted for waiting in queue.fetches)
        return reached

    def take_stale(self, name: PartitionName, group: str, epoch: int) -> list[WaitingFetch]:
        """Let go whoever waits for one partition as an owner of a lower epoch than the group has now."""
        if (queue := self.by_partition.get(name)) is None:
            return []
        stale = [
            waiting
            for waiting in queue.fetches
            if waiting.fetch.group == group and waiting.fetch.epoch is not None and waiting.fetch.epoch < epoch
        ]
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
            del queue.fetches[waiting]
            if not queue.fetches:
                del self.by_partition[waiting.name]
            mine = self._by_peer[waiting.peer]
            del mine[waiting]
            if not mine:
                del self._by_peer[waiting.peer]
            del self._by_tick[_tick(waiting.due_ms)][waiting]
            self._count -= 1


def _tick(due_ms: int) -> int:
    """The bucket of a due time: the first whose time is not earlier."""
    return -(-due_ms // TICK_MS)
