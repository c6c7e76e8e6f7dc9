"""How far a group has read: where that is kept, and what of it is not kept yet (spec 8.10)."""

import threading
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from meta_client.errors import OwnershipLost
from zk.claims import Claimed
from zk.nodes import NO_MESSAGE_ID, OffsetNode, Partition
from zk.offsets import ZooKeeperOffsets
from zk.session import ZooKeeperSession


class OffsetEntry(NamedTuple):
    """Everything before *offset* of a partition is consumed; *message_id* is the last message's, -1 if unknown.

    *is_reset*: somebody asked for exactly this offset, a user or the broker, further back or not.
    """

    topic: str
    partition: Partition
    offset: int
    message_id: int = NO_MESSAGE_ID
    claimed: Claimed | None = None  # the ownership under which it was made; None: without a group's say
    is_reset: bool = False


class OffsetStore(Protocol):
    """Keeps one group's offsets. Called by one thread of the consumer; may raise anything, and is asked again.

    `meta_client.offset_stores` has others than ZooKeeper's: a file, a database, and one that lives in the listener's
    own database transaction, which is how "exactly once" is had.
    """

    def load(self, topic: str, partition: Partition) -> int | None:
        """Where to go on; None if nothing is stored. Asked each time the partition becomes ours."""

    def commit(self, entries: Sequence[OffsetEntry]) -> None:
        """Store how far each of these partitions is consumed. Durable on return.

        Without *is_reset* an offset only goes forward: a lower one than is stored is passed over. With it, it is
        stored as it is, and nothing of the partition is delivered before that is done.

        May raise OwnershipLost, once the other entries are stored, for partitions that it knows to be another
        consumer's by now; `entry.claimed.epoch` rises with every owner.
        """


@runtime_checkable
class ManyOffsets(Protocol):
    """What an OffsetStore may have beside `load`, so that a member which gets many partitions asks once."""

    def load_many(self, keys: Collection[tuple[str, Partition]]) -> dict[tuple[str, Partition], int]:
        """As load, of several; those of which nothing is stored are left out."""


class ZooKeeperOffsetStore:
    """The default: offset nodes, as genuine clients keep them (spec 6.3).

    Only who owns a partition writes, so that nobody else can put it back; nothing is compared.
    """

    def __init__(self, session: ZooKeeperSession, group: str) -> None:
        self._offsets = ZooKeeperOffsets(session, group)

    def load(self, topic: str, partition: Partition) -> int | None:
        """Raises ZooKeeperUnavailable, MalformedNode."""
        node = self._offsets.load(topic, partition)
        return None if node is None else node.offset

    def load_many(self, keys: Collection[tuple[str, Partition]]) -> dict[tuple[str, Partition], int]:
        """Pipelined. Raises as load."""
        return {key: node.offset for key, node in self._offsets.load_many(keys).items()}

    def commit(self, entries: Sequence[OffsetEntry]) -> None:
        """Raises ZooKeeperUnavailable; any part may be stored then. Raises OwnershipLost."""
        nodes = {(e.topic, e.partition): (OffsetNode(e.offset, e.message_id), e.claimed) for e in entries}
        self._offsets.commit({key: node for key, (node, claimed) in nodes.items() if claimed is None})
        owned = {key: (node, claimed) for key, (node, claimed) in nodes.items() if claimed is not None}
        if stale := self._offsets.commit_as_owner(owned):
            raise OwnershipLost(stale)


class NoOffsetStore:
    """Keeps nothing: who consumes without a group begins anew each time, unless a store is given."""

    def load(self, topic: str, partition: Partition) -> int | None:
        """None, always."""
        del topic, partition
        return None

    def commit(self, entries: Sequence[OffsetEntry]) -> None:
        """Forgets them."""


class OffsetTracker:
    """Progress since the last commit, of the partitions that are owned. Any thread."""

    def __init__(self) -> None:
        self.on_commit: Callable[[], None] = lambda: None  # called first by commit(), to advance() what is behind
        self._lock = threading.Lock()  # guards all below
        self._entries: dict[tuple[str, Partition], OffsetEntry | None] = {}  # None: owned, without progress
        self._claims: dict[tuple[str, Partition], Claimed | None] = {}  # of all that are in _entries
        self._modified: set[tuple[str, Partition]] = set()
        self._resets: dict[tuple[str, Partition], OffsetEntry] = {}  # the last one of each that is not stored yet

    def own(self, topic: str, partition: Partition, claimed: Claimed | None = None) -> None:
        """Begin to track a partition, owned as *claimed* says."""
        with self._lock:
            self._entries[topic, partition] = None
            self._claims[topic, partition] = claimed

    def disown(self, keys: Collection[tuple[str, Partition]]) -> None:
        """Stop: progress that was not committed is dropped, and so is any that still comes in."""
        with self._lock:
            for key in keys:
                self._entries.pop(key, None)
                self._claims.pop(key, None)
                self._modified.discard(key)
                self._resets.pop(key, None)

    def advance(self, entry: OffsetEntry) -> None:
        """Remember progress, if the partition is still ours. Without `is_reset` it goes forward only."""
        key = entry.topic, entry.partition
        with self._lock:
            if key not in self._entries:
                return
            known = self._entries[key]
            if entry.is_reset:
                self._resets[key] = entry
            elif known is not None and entry.offset <= known.offset:
                return
            self._entries[key] = entry
            self._modified.add(key)

    def is_resetting(self, key: tuple[str, Partition]) -> bool:
        """Whether a reset of this partition waits to be stored."""
        with self._lock:
            return key in self._resets

    def commit(self, store: OffsetStore) -> int:
        """Store all progress and return how many partitions had some. Raises what *store* does; nothing is
        forgotten then, the next commit tries again."""
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
            store.commit(entries)
        except BaseException:
            with self._lock:
                self._modified |= modified & self._entries.keys()
            raise
        with self._lock:
            for key, reset in resets.items():
                if self._resets.get(key) is reset:  # else there was another one meanwhile
                    del self._resets[key]
        return len(entries)
