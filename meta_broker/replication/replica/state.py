"""A slave's state: its master's last heartbeat, and the part of the copy it shows. Driven by the link.

Three things wait for the master's high watermark: what readers see, the topics announced in ZooKeeper, and the LSN a
checkpoint covers. `slave.json` keeps the heartbeat for a promotion, and for a start without the master.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Literal

import msgspec

from journal.errors import StorageFailed
from journal.records.header import Lsn
from journal.records.index_updates import topics_of
from journal.replica.follower import JournalFollower
from journal.state.replay import PendingUpdates
from meta_broker.errors import BrokerError
from meta_broker.replication.replica.copy_report import CopyReport
from meta_broker.replication.replica.slave_file import SlaveFacts, SlaveFile
from meta_broker.store.message_store import MessageStore
from meta_client.protocol.responses import Behind
from zk.tree.broker_url import BrokerUrl

log = logging.getLogger(__name__)

WRITE_S = 1.0  # least time between two writes of slave.json


class Resync(msgspec.Struct, frozen=True):
    """A change of the directory to make while it is closed, before the slave goes on.

    With *checkpoint* the copy starts over at *lsn*; None: everything from *lsn* on is truncated.
    """

    lsn: Lsn
    reason: str
    checkpoint: bytes | None = None


class ReplicaState:
    """State of one slave while its store is open. Loop thread only."""

    def __init__(
        self,
        facts: SlaveFacts,
        file: SlaveFile,
        store: MessageStore,
        follower: JournalFollower,
        find_master: Callable[[SlaveFacts], Awaitable[BrokerUrl | None]],
        wake: Callable[[], None],
        end_with: Callable[[Resync | BrokerError | StorageFailed], None],
        now_ms: Callable[[], int],
        *,
        serves: bool,
    ) -> None:
        """*wake* makes the store advance soon; *end_with* is called with the reason this cannot go on."""
        self.slave_id = facts.slave_id
        self.follower = follower
        self.serves = serves  # registered for consumers
        self.progress: Callable[[], None] = lambda: None  # called whenever more of the copy is durable
        self.on_change: Callable[[], None] = lambda: None  # called when a tick would be too late
        self.on_topics: Callable[[Iterable[str], Iterable[str]], None] = lambda used, decided: None
        self._facts = facts
        self._file = file
        self._store = store
        self._find_master = find_master
        self._wake = wake
        self._end = end_with
        self._now_ms = now_ms
        self._seen = {name.topic for name in store.indexes.by_name}
        self._is_dirty = True
        self._written_at = 0.0
        self._writing: asyncio.Task[None] | None = None
        self._is_linked = False
        self.on_records(follower.waiting)

    # -- handlers.context.SlaveView --------------------------------------------------------------------------

    @property
    def facts(self) -> SlaveFacts:
        return self._facts

    @property
    def master(self) -> str:
        return self._facts.master

    @property
    def is_readable(self) -> bool:
        """True if readers may see the copy: it is complete, and a master has confirmed where the journals diverge."""
        return self.has_heard and self.follower.is_complete

    @property
    def has_heard(self) -> bool:
        """True if a master has ever sent a heartbeat."""
        return self._facts.heard_ms > 0

    @property
    def is_in_sync(self) -> bool:
        """True if the master's last heartbeat said so."""
        return self._facts.in_sync

    def lag(self) -> Behind:
        facts = self._facts
        missing = max(0, facts.end - self._store.high_watermark.acknowledged)
        return Behind(missing, max(0, self._now_ms() - facts.heard_ms) if facts.heard_ms else self._now_ms())

    def report(self) -> CopyReport:
        follower, facts = self.follower, self._facts
        return CopyReport(
            cluster=facts.cluster,
            broker_id=facts.broker_id,
            slave_id=facts.slave_id,
            start=min(follower.journal.start_lsn, follower.end),
            end=follower.end,
            flushed=follower.journal.flushed,
            high_watermark=facts.high_watermark,
            is_complete=follower.is_complete,
            data=str(self._file.path.parent.absolute()),
            lives=tuple(follower.epoch_history),
        )

    # -- receiver.ReplicaOwner -------------------------------------------------------------------------------

    async def find_master(self) -> BrokerUrl | None:
        """Return the master's address; None: there is no master now. Never raises."""
        return await self._find_master(self._facts)

    def on_heartbeat(
        self, *, master: str, epoch: int, end: Lsn, high_watermark: Lsn, mode: Literal["async", "sync"], in_sync: bool
    ) -> None:
        """Record the position of the master, with which this copy agrees up to its own end."""
        before = self._facts
        self._facts = msgspec.structs.replace(
            before,
            master=master,
            epoch=epoch,
            end=end,
            high_watermark=high_watermark,
            heard_ms=self._now_ms(),
            mode=mode,
            in_sync=in_sync,
        )
        self._is_dirty = True
        is_change = (mode, in_sync) != (before.mode, before.in_sync)
        if not self._is_linked:
            self._is_linked = is_change = True
            log.info("following master=%s epoch=%d end=%d behind=%d", master, epoch, end, end - self.follower.end)
        if (mode, in_sync) != (before.mode, before.in_sync):
            log.info("in sync changed mode=%s in_sync=%s", mode, in_sync)
        if is_change:
            self._written_at = 0.0  # write at once: a promotion needs it
            self.on_change()
        if high_watermark != before.high_watermark:
            self._store.limit_acknowledged(high_watermark)
            self._wake()

    def on_records(self, received: Sequence[PendingUpdates]) -> None:
        """Publish received records once the high watermark has passed them."""
        for record in received:
            self._store.publish_when_acknowledged(record.lsn, record.updates, self._on_acknowledged, record)

    def on_disconnected(self) -> None:
        """The link broke."""
        if self._is_linked:
            self._is_linked = False
            log.warning("link lost master=%s end=%d", self._facts.master, self.follower.end)

    def must_truncate(self, lsn: Lsn) -> None:
        """End, to truncate the copy at *lsn*: the master never had what follows."""
        self._facts = msgspec.structs.replace(self._facts, high_watermark=min(self._facts.high_watermark, lsn))
        self._is_dirty = True
        self._reset_unfinished()
        self._end(Resync(lsn, "the master never had it"))

    def must_resync(self, start: Lsn, checkpoint: bytes, reason: str) -> None:
        """End, to replace the unusable copy: it begins at *start* with *checkpoint* (blank: with nothing before it)."""
        self._reset_unfinished()
        self._end(Resync(start, reason, checkpoint))

    def must_stop(self, error: BrokerError) -> None:
        """End with *error*: an operator has to act."""
        self._end(error)

    def _reset_unfinished(self) -> None:
        """Forget the heartbeat if the copy is unfinished: nothing of it will be left."""
        if self.follower.is_unfinished:
            self._facts = msgspec.structs.replace(
                self._facts, end=Lsn(0), high_watermark=Lsn(0), heard_ms=0, mode="async", in_sync=False
            )
            self._is_dirty = True

    # -- publishing ------------------------------------------------------------------------------------------

    def _on_acknowledged(self, record: PendingUpdates) -> None:
        used = [topic for topic in topics_of(record.updates) if topic not in self._seen]
        self._seen.update(used)
        for name, start in record.starts:
            if name in self._store.indexes.by_name:
                self._store.indexes.trim(name, start)
        if used or record.change is not None:
            self.on_topics(used, [record.change.topic] if record.change is not None else [])

    # -- slave.json ------------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Write slave.json if that is due. Call it twice a second."""
        if self._is_dirty and self._writing is None and now_s - self._written_at >= WRITE_S:
            self._is_dirty, self._written_at = False, now_s
            self._writing = asyncio.get_running_loop().create_task(asyncio.to_thread(self._file.write, self._facts))
            self._writing.add_done_callback(self._written)

    def _written(self, task: "asyncio.Task[None]") -> None:
        self._writing = None
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, StorageFailed):
            self._end(error)
        elif error is not None:
            raise error

    async def close(self) -> None:
        """Write slave.json a last time, once the link is over. Idempotent. Raises StorageFailed."""
        if self._writing is not None:
            await asyncio.wait([self._writing])
        if self._is_dirty:
            self._is_dirty = False
            await asyncio.to_thread(self._file.write, self._facts)
