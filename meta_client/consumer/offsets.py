"""Offsets of a group: their store, and progress that is not stored yet (spec 8.10)."""

import threading
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from meta_client.consumer.listener_exit import exits_as_errors
from meta_client.errors import OwnershipLost
from zk.groups.offsets import ZooKeeperOffsets
from zk.session.session import ZooKeeperSession
from zk.tree.claims import Claimed
from zk.tree.nodes import NO_MESSAGE_ID, OffsetNode, Partition


class OffsetEntry(NamedTuple):
    """Progress in a partition: everything before *offset* is consumed. *message_id* is the last message's, -1 if
    unknown.

    *is_reset*: a user or the broker asked for exactly this offset, lower or not.
    """

    topic: str
    partition: Partition
    offset: int
    message_id: int = NO_MESSAGE_ID
    claimed: Claimed | None = None  # ownership at the time; None: without a group
    is_reset: bool = False


class OffsetStore(Protocol):
    """Stores one group's offsets. Called by one thread of the consumer; may raise anything, and is called again then.

    `meta_client.consumer.offset_stores` has alternatives to ZooKeeper: a file, a database, and the listener's own
    database transaction, for exactly-once processing.
    """

    def load(self, topic: str, partition: Partition) -> int | None:
        """Return the offset to continue at; None if none is stored. Called at each assignment of the partition."""

    def commit(self, entries: Sequence[OffsetEntry]) -> None:
        """Store the progress in each of these partitions. Durable on return.

        Without *is_reset* an offset only goes forward: one lower than stored is ignored. With it, the offset is stored
        as it is, and nothing of the partition is delivered before.

        May raise OwnershipLost, once the other entries are stored, for partitions it knows to belong to another
        consumer; `entry.claimed.epoch` rises with every owner.
        """


@runtime_checkable
class ManyOffsets(Protocol):
    """Optional part of an OffsetStore: loads many offsets together."""

    def load_many(self, keys: Collection[tuple[str, Partition]]) -> dict[tuple[str, Partition], int]:
        """Return the offsets of *keys*, without those that are not stored. Raises as load."""


class MovedByListeners:
    """Base of an OffsetStore whose offsets the listeners move themselves, in their own transactions."""


class ZooKeeperOffsetStore:
    """The default store: offset nodes, as genuine clients keep them (spec 6.3).

    Only the owner of a partition writes, so that no other member can set it back; offsets are not compared.
    """

    def __init__(self, session: ZooKeeperSession, group: str) -> None:
        self._offsets = ZooKeeperOffsets(session, group)

    def load(self, topic: str, partition: Partition) -> int | None:
        """Return the stored offset, None if there is none. Raises ZooKeeperUnavailable, MalformedNode."""
        node = self._offsets.load(topic, partition)
        return None if node is None else node.offset

    def load_many(self, keys: Collection[tuple[str, Partition]]) -> dict[tuple[str, Partition], int]:
        """Load in one pipeline. Raises as load."""
        return {key: node.offset for key, node in self._offsets.load_many(keys).items()}

    def commit(self, entries: Sequence[OffsetEntry]) -> None:
        """Store *entries*. Raises ZooKeeperUnavailable, when any part may be stored, and OwnershipLost."""
        nodes = {(e.topic, e.partition): (OffsetNode(e.offset, e.message_id), e.claimed) for e in entries}
        self._offsets.commit({key: node for key, (node, claimed) in nodes.items() if claimed is None})
        owned = {key: (node, claimed) for key, (node, claimed) in nodes.items() if claimed is not None}
        if stale := self._offsets.commit_as_owner(owned):
            raise OwnershipLost(stale)


class NoOffsetStore:
    """Stores nothing: a consumer without a group starts over each time, unless it has a store."""

    def load(self, topic: str, partition: Partition) -> int | None:
        """Return None."""
        del topic, partition
        return None

    def commit(self, entries: Sequence[OffsetEntry]) -> None:
        """Do nothing."""


class OffsetTracker:
    """Uncommitted progress of the owned partitions. Any thread."""

    def __init__(self) -> None:
        self.on_commit: Callable[[], None] = lambda: None  # called first by commit(), for late calls of advance()
        self._lock = threading.Lock()  # guards all below
        self._entries: dict[tuple[str, Partition], OffsetEntry | None] = {}  # None: owned, without progress
        self._claims: dict[tuple[str, Partition], Claimed | None] = {}  # of all that are in _entries
        self._modified: set[tuple[str, Partition]] = set()
        self._resets: dict[tuple[str, Partition], OffsetEntry] = {}  # the last unstored one of each
        self._limits: dict[tuple[str, Partition], int] = {}  # see limit()
        self._stored: dict[tuple[str, Partition], int] = {}  # last known of each partition, owned now or not
        self._before_loss: dict[tuple[str, Partition], int] = {}  # see store_lost()

    def own(self, topic: str, partition: Partition, claimed: Claimed | None = None) -> None:
        """Start to track a partition, owned by *claimed*."""
        with self._lock:
            self._entries[topic, partition] = None
            self._claims[topic, partition] = claimed

    def disown(self, keys: Collection[tuple[str, Partition]]) -> None:
        """Stop tracking: progress that is not committed, or comes later, is dropped."""
        with self._lock:
            for key in keys:
                self._entries.pop(key, None)
                self._claims.pop(key, None)
                self._modified.discard(key)
                self._resets.pop(key, None)
                self._limits.pop(key, None)

    def advance(self, entry: OffsetEntry) -> None:
        """Record progress, if the partition is tracked. Without `is_reset` it only goes forward."""
        key = entry.topic, entry.partition
        with self._lock:
            if key not in self._entries:
                return
            known = self._entries[key]
            if entry.is_reset:
                self._resets[key] = entry
                self._limits.pop(key, None)
            elif entry.offset > (limit := self._limits.get(key, entry.offset)):
                entry = entry._replace(offset=limit, message_id=NO_MESSAGE_ID)
            if not entry.is_reset and known is not None and entry.offset <= known.offset:
                return
            self._entries[key] = entry
            self._modified.add(key)

    def is_before_stored(self, key: tuple[str, Partition], offset: int) -> bool:
        """Return True if *offset*, which the store has now, lies before what was stored here: somebody reset it."""
        with self._lock:
            return offset < self._stored.get(key, 0)

    def loaded(self, key: tuple[str, Partition], offset: int) -> None:
        """Record what the store has."""
        with self._lock:
            self._stored[key] = offset

    def store_lost(self) -> None:
        """Keep what was stored, until it is stored again: the store may have lost it."""
        with self._lock:
            self._before_loss |= self._stored
            self._stored.clear()

    def before_loss(self, key: tuple[str, Partition]) -> int | None:
        """Return the offset of a partition before the store lost it; None: it did not, or has a later one of ours."""
        with self._lock:
            return self._before_loss.get(key)

    def limit(self, key: tuple[str, Partition], offset: int) -> None:
        """Record no progress of a partition beyond *offset* until its next reset."""
        with self._lock:
            if key in self._entries:
                self._limits[key] = offset

    def is_limited(self, key: tuple[str, Partition]) -> bool:
        """Return True if limit() was called since the last reset."""
        with self._lock:
            return key in self._limits

    def is_resetting(self, key: tuple[str, Partition]) -> bool:
        """Return True if a reset of this partition is not stored yet."""
        with self._lock:
            return key in self._resets

    def commit(self, store: OffsetStore) -> int:
        """Store all progress and return the number of partitions that had some. Raises what *store* raises; the
        progress is kept for the next commit then."""
        self.on_commit()
        with self._lock:
            modified, self._modified = self._modified, set()
            resets = dict(self._resets)
            entries = [
                entry._replace(claimed=self._claims[key], is_reset=key in resets)
                for key in sorted(modified)
                if (entry := self._entries[key]) is not None
            ]
        if not entries:
            return 0
        try:
            with exits_as_errors():
                store.commit(entries)
        except BaseException:
            with self._lock:
                self._modified |= modified & self._entries.keys()
            raise
        with self._lock:
            self._stored |= {(entry.topic, entry.partition): entry.offset for entry in entries}
            for entry in entries:
                self._before_loss.pop((entry.topic, entry.partition), None)
            for key, reset in resets.items():
                if self._resets.get(key) is reset:  # unless there was another one meanwhile
                    del self._resets[key]
        return len(entries)
