"""Choice of the replica a partition is read from: the master, unless it is down or names a slave (spec 9.4, 10.3).
Pure.

A master that would have to read from disk names a slave to ask next; the slave names the master again once the reader
has caught up. A slave that fails, or lacks the messages, is avoided for a while.
"""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from meta_client.protocol.errors import MetaError, Moved
from meta_client.protocol.responses import READ_FROM_MASTER
from zk.brokers.cluster import BrokerEntries, BrokerEntry
from zk.tree.broker_url import BrokerUrl
from zk.tree.nodes import Partition

SHUN_S = 5.0  # a failed slave is avoided for so long, even if its master names it


class Route(NamedTuple):
    """Replica that a partition is read from. *slave_id* None: the master."""

    url: BrokerUrl
    slave_id: int | None = None

    def __str__(self) -> str:
        return f"{self.url}" if self.slave_id is None else f"slave {self.slave_id} at {self.url}"


class Routes:
    """Routes of one consumer. Any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._brokers: BrokerEntries = {}  # replaced as a whole
        self._lock = threading.Lock()  # guards the next one
        self._shunned: dict[tuple[int, int], float] = {}  # end of avoidance, by broker and slave id

    def set_brokers(self, brokers: BrokerEntries) -> None:
        self._brokers = brokers
        now = self._clock()
        with self._lock:
            self._shunned = {slave: until for slave, until in self._shunned.items() if until > now}

    def choose(self, partition: Partition, suggested: int | None) -> Route | None:
        """Return the replica to fetch from next, *suggested* if it is a slave that is well; None if none is up."""
        if (entry := self._brokers.get(partition.broker_id)) is None:
            return None
        with self._lock:
            well = self._well(partition.broker_id, entry)
        if suggested in well:
            return Route(entry.slaves[suggested], suggested)
        if entry.master is not None:
            return Route(entry.master)
        some = well or sorted(entry.slaves)
        slave_id = some[partition.number % len(some)]  # spread over all slaves, each partition at the same one
        return Route(entry.slaves[slave_id], slave_id)

    def _well(self, broker_id: int, entry: BrokerEntry) -> list[int]:
        now = self._clock()
        return [slave_id for slave_id in sorted(entry.slaves) if self._shunned.get((broker_id, slave_id), now) <= now]

    def failed(self, partition: Partition, route: Route) -> None:
        """Record a failed fetch: avoid a slave for a while."""
        if route.slave_id is not None:
            with self._lock:
                self._shunned[partition.broker_id, route.slave_id] = self._clock() + SHUN_S

    def is_final(self, partition: Partition, route: Route, moved: Moved, offset: int) -> bool:
        """Return True if a fetch at *offset* follows *moved* from *route*. A slave may begin later than its master and
        end earlier: while there is a master to ask, a slave moves a reader neither back nor past messages."""
        if route.slave_id is None or moved.is_filtered:
            return True
        entry = self._brokers.get(partition.broker_id)
        return moved.offset > offset and (entry is None or entry.master is None)


def suggested_slave(read_from: str) -> int | None:
    """Return the slave that an answer names to be read next (responses.READ_FROM); None: the master."""
    return None if read_from == READ_FROM_MASTER else int(read_from[1:])


class SlaveLacks(MetaError):
    """A slave lacks the messages, or does not have them yet. Nothing to do: the fetcher asks the master, or asks
    again."""

    def __init__(self, what: str, route: Route, moved: Moved) -> None:
        super().__init__(f"{what}: {route} lacks it, and names {moved.offset}: trying another replica")


def plan_routes(brokers: BrokerEntries) -> dict[int, BrokerUrl]:
    """Return the fetch address by broker id: its master, or while that is down its first slave."""
    routes: dict[int, BrokerUrl] = {}
    for broker_id, entry in brokers.items():
        url = entry.master or next((entry.slaves[slave_id] for slave_id in sorted(entry.slaves)), None)
        if url is not None:
            routes[broker_id] = url
    return routes
