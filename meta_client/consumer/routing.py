"""Which broker a partition is read from: its master, unless that is away or names a slave (spec 9.4, 10.3). Pure.

A master that would have to read from its disk names a slave to ask next; that one names the master again once the
reader has caught up. A slave that fails, or lacks what is asked for, is left alone for a while.
"""

import threading
import time
from collections.abc import Callable, Collection
from typing import NamedTuple

from meta_client.consumer.plan import TopicPartition
from meta_client.protocol.errors import MetaError, Moved
from meta_client.protocol.responses import READ_FROM_MASTER
from zk.broker_url import BrokerUrl
from zk.cluster import BrokerEntry, Brokers

SHUN_S = 5.0  # how long no master's word leads to a slave that failed


class Route(NamedTuple):
    """Where a partition is read. *slave_id* None: at its master."""

    url: BrokerUrl
    slave_id: int | None = None

    def __str__(self) -> str:
        return f"{self.url}" if self.slave_id is None else f"slave {self.slave_id} at {self.url}"


class Routes:
    """The routes of one consumer. Any thread; one at a time speaks of a partition."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._brokers: Brokers = {}  # swapped whole
        self._lock = threading.Lock()  # guards the next two
        self._suggested: dict[TopicPartition, int] = {}  # the slave that the last answer named
        self._shunned: dict[tuple[int, int], float] = {}  # until when, by broker and slave id

    def follow(self, brokers: Brokers) -> None:
        """These brokers are up now."""
        self._brokers = brokers
        now = self._clock()
        with self._lock:
            self._shunned = {slave: until for slave, until in self._shunned.items() if until > now}

    def choose(self, key: TopicPartition) -> Route | None:
        """Where to ask next for the messages of a partition; None: nobody that has them is up."""
        _, partition = key
        if (entry := self._brokers.get(partition.broker_id)) is None:
            return None
        with self._lock:
            wanted = self._suggested.get(key)
            well = self._well(partition.broker_id, entry)
        if wanted in well:
            return Route(entry.slaves[wanted], wanted)
        if entry.master is not None:
            return Route(entry.master)
        some = well or sorted(entry.slaves)
        slave_id = some[partition.number % len(some)]  # spread over all of them, and the same one each time
        return Route(entry.slaves[slave_id], slave_id)

    def _well(self, broker_id: int, entry: BrokerEntry) -> list[int]:
        now = self._clock()
        return [slave_id for slave_id in sorted(entry.slaves) if self._shunned.get((broker_id, slave_id), now) <= now]

    def answered(self, key: TopicPartition, read_from: str) -> None:
        """An answer about a partition named the replica to ask next, as responses.READ_FROM."""
        with self._lock:
            if read_from == READ_FROM_MASTER:
                self._suggested.pop(key, None)
            else:
                self._suggested[key] = int(read_from[1:])

    def failed(self, key: TopicPartition, route: Route) -> None:
        """There was no answer, or none with messages: of a slave, try another replica first for a while."""
        if route.slave_id is not None:
            with self._lock:
                self._suggested.pop(key, None)
                self._shunned[key[1].broker_id, route.slave_id] = self._clock() + SHUN_S

    def is_final(self, key: TopicPartition, route: Route, moved: Moved, offset: int) -> bool:
        """Whether who stands at *offset* goes where *route* says. A slave may begin further on than its master, and end
        earlier: it sends nobody back, and nobody past messages while there is a master to ask."""
        if route.slave_id is None or moved.is_filtered:
            return True
        entry = self._brokers.get(key[1].broker_id)
        return moved.offset > offset and (entry is None or entry.master is None)

    def forget(self, keys: Collection[TopicPartition]) -> None:
        """These partitions are not read any more."""
        with self._lock:
            for key in keys:
                self._suggested.pop(key, None)


class SlaveLacks(MetaError):
    """A slave does not have what is asked for, or not yet: its master is asked, or it is waited for; nothing to do."""

    def __init__(self, what: str, route: Route, moved: Moved) -> None:
        super().__init__(f"{what}: {route} would go on at {moved.offset}: its master knows better")
