"""All partitions of a broker over its one journal: put, read, transactions, checkpoints.

Wraps a source, `JournalTransactionStore` or a replica: keeps the partition indexes, defers publications until the high
watermark has passed them, and runs checkpoints. Loop thread only, except for the two functions a worker runs.
"""

import contextlib
import errno
import functools
import logging
import os
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any

from journal.archive.places import archive_place
from journal.errors import StorageFailed
from journal.records.header import Lsn, Offset
from journal.records.index_updates import IndexUpdate, IndexUpdates, chunks
from journal.records.record import PartitionName
from journal.state.checkpointed import CheckpointedState
from journal.state.copy_marks import refuse_backup
from journal.state.recovery import Recovered
from journal.state.transaction_store import JournalTransactionStore
from journal.wal.high_watermark import LSN_MAX, YIELD, HighWatermark, WatermarkAction, Yield
from journal.wal.inline_commit import LoopHooks
from journal.wal.marks import SavedWatermark, read_watermark, remove_watermark
from journal.wal.open_journal import OpenJournal
from journal.wal.storage import DirectoryStorage, Storage
from meta_broker.config.broker_config import BrokerConfig
from meta_broker.errors import with_remedy
from meta_broker.store.archive_tier import ArchiveTier
from meta_broker.store.checkpoint_job import CheckpointJob
from meta_broker.store.checkpoint_taking import take_checkpoint
from meta_broker.store.clock import Clock
from meta_broker.store.cold_read import PageCacheWindow
from meta_broker.store.disk_space import DiskSpace
from meta_broker.store.indexes import Indexes
from meta_broker.store.memory_limit import memory_bytes
from meta_broker.store.watermark_keeper import WatermarkKeeper, write_first_watermark

log = logging.getLogger(__name__)

RUNS_PER_TURN = 10_000  # published in one turn of the loop: some milliseconds


class MessageStore:
    """Messages of one broker. Open it with `MessageStore.open`."""

    def __init__(
        self,
        storage: Storage,
        source: CheckpointedState,
        indexes: Indexes,
        config: BrokerConfig,
        clock: Clock,
        limit: Lsn = LSN_MAX,
        tier: ArchiveTier | None = None,
    ) -> None:
        """*limit*: as in `limit_acknowledged`. *tier*: reads the archive; None: consumers do not."""
        self._storage = storage
        self._config = config
        self.source = source
        self.journal = source.journal
        self.indexes = indexes
        self._limit = limit
        self._acks_suspended = False
        self.high_watermark = HighWatermark(min(self.journal.acknowledged_here, limit))
        self.page_cache = PageCacheWindow(self.journal, config.broker.hot_read_memory_ratio * memory_bytes())
        self._watched: Container[PartitionName] = ()
        self._on_published: Callable[[PartitionName], None] = lambda name: None
        # Watched, and published to since the high watermark began to move.
        self._touched: dict[PartitionName, None] = {}
        self.space = DiskSpace(self.journal, config.broker.disk_free_bytes_min)
        self.tier = tier
        self.checkpoints = CheckpointJob(
            storage, source, indexes, config, clock, self.high_watermark, self.space, self.tier
        )
        self.watermark: WatermarkKeeper | None = None  # for a master in mode sync

    @classmethod
    def open(
        cls,
        config: BrokerConfig,
        version: str,
        on_progress: Callable[[], None],
        clock_ms: Callable[[], int],
        loop_hooks: LoopHooks | None = None,
        epoch: Callable[[Recovered], int] = lambda recovered: max(recovered.state.epoch, 1),
        clock: Clock | None = None,
        locked: Callable[[], None] = lambda: None,
        storage: Storage | None = None,
    ) -> "MessageStore":
        """Open a master's store: lock the data directory and recover it. Raises any JournalError; nothing stays open
        then.

        *on_progress* is called on the journal's writer thread: it must only wake the loop, which calls `advance`.
        *clock_ms* gives the time that records carry. *loop_hooks* write together what one turn of the loop appends.
        *epoch*: as in `JournalTransactionStore.open`. *clock*: for retention by age. *locked* is called once the
        directory is locked, before recovery. *storage*: where the journal is instead of in the data directory, and this
        process's own; closed with the store.

        In mode sync only what the directory's saved watermark or the newest checkpoint covers counts as acknowledged,
        until `limit_acknowledged` raises the limit.
        """
        is_sync = config.replication.mode == "sync"
        known = SavedWatermark(Lsn(0), is_whole=False)  # without a file, as in a new directory

        def open_source(storage: Storage, indexes: Indexes) -> CheckpointedState:
            nonlocal known

            def begin(recovered: Recovered) -> int:  # nothing is appended yet
                number = epoch(recovered)
                if is_sync:
                    write_first_watermark(storage, config.flush)
                else:
                    remove_watermark(storage)
                return number

            locked()
            known = read_watermark(storage) or known
            return JournalTransactionStore.open(
                storage,
                config.identity,
                config.journal,
                version=version,
                sink=indexes,
                on_progress=on_progress,
                clock_ms=clock_ms,
                loop_hooks=loop_hooks,
                epoch=begin,
                publish_below=known.lsn if is_sync else LSN_MAX,
            )

        store = cls.open_over(config, open_source, Lsn(0) if is_sync else LSN_MAX, clock, storage)
        store.space.begin()
        if is_sync:
            store._defer_unacknowledged(known)
        return store

    def _defer_unacknowledged(self, watermark: SavedWatermark) -> None:
        """Publish what is known to be acknowledged; the rest of what was recovered follows once it is."""
        recovered = self.source.recovered
        last_record = self.source.state.epoch_history[-1].lsn  # no record of an earlier epoch follows it
        self.limit_acknowledged(min(max(watermark.lsn, self.source.checkpoint_lsn), last_record))
        self.advance()
        is_whole = watermark.is_whole and watermark.lsn <= recovered.end
        self.watermark = WatermarkKeeper(self._storage, self.high_watermark, self._config.flush, is_whole=is_whole)
        for said in recovered.waiting:
            self.publish_when_acknowledged(said.lsn, said.updates, self._trim, said.starts)

    def _trim(self, starts: Sequence[tuple[PartitionName, Offset]]) -> None:
        for name, start in starts:
            self.indexes.trim(name, start)

    @classmethod
    def open_over(
        cls,
        config: BrokerConfig,
        open_source: Callable[[Storage, Indexes], CheckpointedState],
        limit: Lsn = LSN_MAX,
        clock: Clock | None = None,
        storage: Storage | None = None,
    ) -> "MessageStore":
        """Lock the data directory, and open a store over what *open_source* recovers; *limit* as in
        `limit_acknowledged`, *storage* as in `open`.

        Raises as `open`.
        """
        try:
            with contextlib.ExitStack() as opened:
                storage = storage or DirectoryStorage.open_for_writing(config.data)
                opened.callback(storage.close)
                if not os.access(config.data, os.W_OK | os.X_OK, effective_ids=True):
                    # Otherwise only creating the next segment would fail.
                    refused = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
                    raise StorageFailed(f"{config.data}: {refused.strerror}") from refused
                refuse_backup(storage)
                indexes = Indexes(config.data / "index")
                source = open_source(storage, indexes)
                opened.callback(source.close)
                indexes.make_directory()  # only now: a directory of another broker stays unchanged
                tier = _archive_tier(config, source.journal)
                store = cls(storage, source, indexes, config, clock or Clock(), limit, tier)
                opened.pop_all()
                return store
        except StorageFailed as error:
            raise StorageFailed(with_remedy(str(error), error.errno)) from error

    @property
    def transactions(self) -> JournalTransactionStore:
        """A master's transaction store. Not for a slave."""
        assert isinstance(self.source, JournalTransactionStore)
        return self.source

    def publish(self, updates: Iterable[IndexUpdate]) -> None:
        """Make acknowledged runs visible. Called at the high watermark only."""
        if isinstance(updates, IndexUpdates):  # a branch may have millions
            for update_run in updates.update_runs:
                self.indexes.of(update_run.name).publish_runs(update_run.base, update_run.extents.numbers())
                if update_run.name in self._watched:
                    self._touched[update_run.name] = None
            return
        for update in updates:
            self.indexes.of(update.name).publish(update)
            if update.name in self._watched:
                self._touched[update.name] = None

    def publish_when_acknowledged(
        self, lsn: int, updates: Sequence[IndexUpdate], action: WatermarkAction, *arguments: Any
    ) -> None:
        """Publish *updates* once every byte below *lsn* is acknowledged, then call *action*.

        A branch may have a million runs: these are published in several turns of the loop.
        """
        if len(updates) > RUNS_PER_TURN:
            for piece in chunks(updates, RUNS_PER_TURN):
                self.high_watermark.run_after(lsn, self._publish_chunk, piece)
            updates = ()
        self.high_watermark.run_after(lsn, self._publish_and_call, updates, action, arguments)

    def _publish_chunk(self, piece: Sequence[IndexUpdate]) -> Yield:
        self.publish(piece)
        return YIELD

    def _publish_and_call(
        self, updates: Sequence[IndexUpdate], action: WatermarkAction, arguments: tuple[Any, ...]
    ) -> Yield | None:
        self.publish(updates)
        return action(*arguments)

    def watch(self, names: Container[PartitionName], on_published: Callable[[PartitionName], None]) -> None:
        """Call *on_published* for partitions in *names*, which may change, when they have new messages.

        Called once a partition for each advance of the high watermark.
        """
        self._watched, self._on_published = names, on_published

    def advance(self) -> bool:
        """Run the actions the high watermark has passed. False: call it again after other tasks' turn.

        Call it when the writer makes progress. Raises StorageFailed once the journal failed.
        """
        if self.journal.failure is not None:
            raise self.journal.failure
        if self._acks_suspended:
            return True
        is_done = self.high_watermark.advance(min(self.journal.acknowledged_here, self._limit))
        if self._touched:
            touched, self._touched = self._touched, {}
            for name in touched:
                self._on_published(name)
        return is_done

    def limit_acknowledged(self, lsn: Lsn) -> None:
        """Cap the high watermark at *lsn*, whatever is flushed here, until replicas confirm more.

        Takes effect with the next `advance`; what was acknowledged stays so.
        """
        self._limit = lsn

    def suspend_acks(self) -> None:
        """Acknowledge nothing, whatever is flushed, until `resume_acks`. Any thread."""
        self._acks_suspended = True

    def resume_acks(self) -> None:
        """End `suspend_acks`; the caller has `advance` called. Any thread."""
        self._acks_suspended = False

    def last_checkpoint(self) -> None:
        """Take the checkpoint of a clean stop: blocks. Nothing may be appended until `close`.

        Skipped if replicas have not acknowledged everything: the indexes do not contain that; and if files are gone:
        what was copied of them may end before.
        """
        if self.space.why_gone:
            return
        self.journal.wait_flushed(self.journal.end)
        while not self.advance():
            pass
        if self.high_watermark.acknowledged >= self.source.state.lsn:
            take_checkpoint(self.source, self.indexes)

    async def stop_jobs(self) -> None:
        """Wait for files being written, a checkpoint above all; cancel what waits for the high watermark."""
        if self.watermark is not None:
            await self.watermark.stop()
        await self.checkpoints.stop()

    def close(self) -> None:
        """Write what is queued and unlock the directory. Idempotent. Raises StorageFailed if the journal had failed."""
        try:
            self.checkpoints.close()
            self.source.close()
            if self.tier is not None:
                self.tier.close()
            if self.watermark is not None:
                self.watermark.close()
        finally:
            self._storage.close()


def _archive_tier(config: BrokerConfig, journal: OpenJournal) -> ArchiveTier | None:
    """Return what reads the archive, if the configuration has it read. Raises StorageFailed."""
    section = config.retention
    if section.archive is None or section.archive_cache_bytes is None:
        return None
    place = functools.partial(archive_place, section.archive)
    return ArchiveTier(config.data, journal, place, section.archive_cache_bytes, config.broker.disk_free_bytes_min)
