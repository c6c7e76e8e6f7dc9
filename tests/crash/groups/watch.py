"""Owners of partitions as ZooKeeper and the test know them, and the time each partition has no owner able to serve."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from zk.brokers.cluster import read_topic, subscribable_partitions
from zk.errors import ZooKeeperError
from zk.groups.listing import GroupListing, list_group
from zk.session.lease import now
from zk.session.session import ZooKeeperSession
from zk.tree.paths import TopicKind

LOOK_S = 0.1
AWAY_S = 0.4  # a look that takes longer than this had to wait for a connection


@dataclass(slots=True)
class Watch:
    """Looks all the time, on a thread of its own. *is_well* says whether a consumer id can serve now."""

    session: ZooKeeperSession
    group: str
    topic: str
    is_well: Callable[[str], bool]
    on_look: Callable[[float, float, GroupListing], None] = lambda began, ended, listing: None
    longest_s: dict[str, float] = field(default_factory=dict)  # by partition: without such an owner
    shares: dict[str, int] = field(default_factory=dict)  # by consumer id, of the last look
    owners: dict[str, str] = field(default_factory=dict)  # by partition: consumer ids, at the last look
    unserved: set[str] = field(default_factory=set)  # at the last look
    looks: int = 0
    _since: dict[str, float] = field(default_factory=dict)
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        assert self._thread is not None
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(LOOK_S):
            try:
                self._look()
            except ZooKeeperError:
                self._since.clear()  # nobody can take anything over while ZooKeeper is away: count from its return

    def _look(self) -> None:
        began = now()
        topic = subscribable_partitions(read_topic(self.session, TopicKind.SUB, self.topic))
        listing = list_group(self.session, self.group)
        owners = {str(progress.partition): progress.owner for progress in listing.progress}
        at = now()
        self.on_look(began, at, listing)
        self.owners = {name: owner for name, owner in owners.items() if owner is not None}
        if at - began > AWAY_S:
            self._since.clear()  # the questions waited for ZooKeeper to return
        served = {name for name, owner in owners.items() if owner is not None and self.is_well(owner)}
        self.unserved = {str(partition) for partition in topic} - served
        for partition in self.unserved:
            lasted_s = at - self._since.setdefault(partition, at)
            self.longest_s[partition] = max(lasted_s, self.longest_s.get(partition, 0.0))
        self._since = {partition: at for partition, at in self._since.items() if partition in self.unserved}
        shares: dict[str, int] = dict.fromkeys(listing.members, 0)
        for name in {str(partition) for partition in topic} & owners.keys():
            if (owner := owners[name]) is not None:
                shares[owner] = shares.get(owner, 0) + 1
        self.shares = shares
        self.looks += 1
