"""Every partition of a broker over its one journal: put, read, transactions, checkpoints.

The shell around a source, `JournalTransactionStore` or a copy that follows one: it keeps the partition indexes, holds
publications back until the fence has passed them, and runs checkpoints. Loop thread only, but for the two functions a
worker runs.
"""

import asyncio
import errno
import logging
import os
import time
from collections.abc import Callable, Container, Iterable, Sequence
from concurrent.futures import Executor
from typing import Any

import msgspec

from journal.checkpoint import Checkpoint
from journal.checkpointed import Checkpointed
from journal.errors import JournalError, StorageFailed
from journal.fence import LSN_MAX, PAUSE, Action, Fence, Pause
from journal.frame import Lsn, Offset
from journal.open_journal import JournalConfig
from journal.publications import Publication, Publications, pieces
from journal.records import PartitionName
from journal.reserve import is_full
from journal.segments import Identity
from journal.storage import DirectoryStorage
from journal.transaction_store import JournalTransactionStore, wall_clock_ms
from journal.turns import Turns
from journal.watermark import Watermark, read_watermark, remove_watermark
from meta_broker.clock import Clock, Step
from meta_broker.config import BrokerConfig
from meta_broker.errors import with_remedy
from meta_broker.memory import memory_bytes
from meta_broker.store.checkpoint_taking import note, take_checkpoint
from meta_broker.store.disk_space import LOOK_S, DiskSpace
from meta_broker.store.horizon import Horizon
from meta_broker.store.indexes import Collected, Indexes, IndexRepair
from meta_broker.store.retention_job import Retention
from meta_broker.store.watermark_keeper import WatermarkKeeper, begin_watermark
from meta_client.protocol.answers import CheckpointTaken

log = logging.getLogger(__name__)

STEPS_FILE = "clock-steps"
IDLE_BYTES = 128  # a checkpoint's own record: nothing happened since that needs another checkpoint
RUNS_PER_TURN = 10_000  # published between two turns of the loop: some milliseconds

# Of a checkpoint, what the loop does between two turns: a millisecond or two.
ITEMS_PER_TURN = 500
FILES_PER_TURN = 100


CheckpointAnswer = Callable[[CheckpointTaken | None, str], None]
STOPPING = "the broker stops, and takes a checkpoint then"


class MessageStore:
    """One broker's messages. Open it with `MessageStore.open`."""

    def __init__(
        self,
        storage: DirectoryStorage,
        source: Checkpointed,
        indexes: Indexes,
        config: BrokerConfig,
        clock: Clock,
        limit: Lsn = LSN_MAX,
    ) -> None:
        """*limit*: as in `limit_to`."""
        self._storage = storage
        self._config = config
        self.source = source
        self.journal = source.journal
        self.indexes = indexes
        self._limit = limit
        self._is_on_hold = False
        self.fence = Fence(min(self.journal.acknowledged_here, limit))
        self._clock = clock
        self._steps = _read_steps(storage)  # of the clock, as they are on disk
        clock.begin_after(source.recovered_ms, self._steps)
        self._checkpoint_due = time.monotonic() + config.broker.checkpoint_seconds
        self.horizon = Horizon(self.journal, config.broker.memory_ratio * memory_bytes())
        self._on_checkpoint: Callable[[Checkpoint], None] = lambda checkpoint: None
        self._watched: Container[PartitionName] = ()
        self._on_published: Callable[[PartitionName], None] = lambda name: None
        self._touched: dict[PartitionName, None] = {}  # watched, and published to since the fence began to move
        self._repair = IndexRepair(indexes, self.journal)
        self.space = DiskSpace(self.journal)  # a master's, which can refuse
        self._retention = Retention(config.retention, source, indexes, clock)
        self.watermark: WatermarkKeeper | None = None  # of a master in mode sync
        self._checkpoint: asyncio.Task[None] | None = None
        self._checkpoint_not_before = 0.0
        self._asking: list[CheckpointAnswer] = []  # for a checkpoint that has not begun
        self._checkpoint_reached: asyncio.Future[Collected] | None = None

    @classmethod
    def open(
        cls,
        config: BrokerConfig,
        version: str,
        on_progress: Callable[[], None],
        clock_ms: Callable[[], int],
        turns: Turns | None = None,
        epoch: Callable[[int], int] = lambda recovered: max(recovered, 1),
        clock: Clock | None = None,
    ) -> "MessageStore":
        """A master's: lock the data directory, recover it. Raises JournalError of any kind; leaves nothing open then.

        *on_progress* is called on the journal's writer thread: it must only wake the loop, which calls `advance`.
        *clock_ms* gives the time that records carry. *turns* are the loop's: what one of them appends is written
        together. *epoch*: as `JournalTransactionStore.open` has it. *clock*: what retention by age goes by.

        In mode sync nothing counts as acknowledged but what `watermark` in the directory says was, and what the newest
        checkpoint holds, which was taken of nothing else; until `limit_to` says more.
        """
        is_sync = config.replication.mode == "sync"
        known = Watermark(Lsn(0), is_whole=False)  # where there is no file, as in a directory that is new

        def open_source(storage: DirectoryStorage, indexes: Indexes) -> Checkpointed:
            nonlocal known

            def begin(recovered: int) -> int:  # nothing is appended yet
                number = epoch(recovered)
                if is_sync:
                    begin_watermark(storage, config.flush)
                else:
                    remove_watermark(storage)
                return number

            known = read_watermark(storage) or known
            return JournalTransactionStore.open(
                storage,
                Identity(config.broker.cluster, config.broker_id),
                JournalConfig(segment_bytes=config.broker.segment_bytes, flush=config.flush),
                version=version,
                sink=indexes,
                on_progress=on_progress,
                clock_ms=clock_ms,
                turns=turns,
                epoch=begin,
                publish_below=known.lsn if is_sync else LSN_MAX,
            )

        if not is_sync:
            store = cls.open_over(config, open_source, clock=clock)
            store.space.begin()
            return store
        store = cls.open_over(config, open_source, Lsn(0), clock)
        store.space.begin()
        store._hold_back(known)
        return store

    def _hold_back(self, mark: Watermark) -> None:
        """Show what was acknowledged as far as that is known, and the rest of what was recovered once it is."""
        recovered = self.source.recovered
        last_record = self.source.state.lives[-1].lsn  # behind it nothing of an earlier life stands
        self.limit_to(min(max(mark.lsn, self.source.checkpoint_lsn), last_record))
        self.advance()
        is_whole = mark.is_whole and mark.lsn <= recovered.end
        self.watermark = WatermarkKeeper(self._storage, self.fence, self._config.flush, is_whole=is_whole)
        for said in recovered.waiting:
            self.show(said.lsn, said.publications, self._trim, said.starts)

    def _trim(self, starts: Sequence[tuple[PartitionName, Offset]]) -> None:
        for name, start in starts:
            self.indexes.trim(name, start)

    @classmethod
    def open_over(
        cls,
        config: BrokerConfig,
        open_source: Callable[[DirectoryStorage, Indexes], Checkpointed],
        limit: Lsn = LSN_MAX,
        clock: Clock | None = None,
    ) -> "MessageStore":
        """Lock the data directory, and keep what *open_source* recovers of it; *limit* as in `limit_to`.

        Raises as `open`.
        """
        try:
            storage = DirectoryStorage.open_for_writing(config.data)
            try:
                if not os.access(config.data, os.W_OK | os.X_OK, effective_ids=True):
                    # The next segment would find out.
                    refused = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
                    raise StorageFailed(f"{config.data}: {refused.strerror}") from refused
                return cls._recovered(storage, config, open_source, clock or Clock(wall_clock_ms), limit)
            except BaseException:
                storage.close()
                raise
        except StorageFailed as error:
            raise StorageFailed(with_remedy(str(error), error.errno)) from error

    @classmethod
    def _recovered(
        cls,
        storage: DirectoryStorage,
        config: BrokerConfig,
        open_source: Callable[[DirectoryStorage, Indexes], Checkpointed],
        clock: Clock,
        limit: Lsn,
    ) -> "MessageStore":
        indexes = Indexes(config.data / "index")
        source = open_source(storage, indexes)
        try:
            indexes.make_directory()  # only now: a directory that is not ours stays as it was
        except StorageFailed:
            source.close()
            raise
        return cls(storage, source, indexes, config, clock, limit)

    @property
    def transactions(self) -> JournalTransactionStore:
        """Where a master's branches live, and what its puts are given to. Nobody asks a slave for it."""
        assert isinstance(self.source, JournalTransactionStore)
        return self.source

    def publish(self, publications: Iterable[Publication]) -> None:
        """Make acknowledged runs visible. Called at the fence only."""
        if isinstance(publications, Publications):  # a branch's, which may have millions
            for block in publications.blocks:
                self.indexes.publish_block(block)
                if block.name in self._watched:
                    self._touched[block.name] = None
            return
        for publication in publications:
            self.indexes.publish(publication)
            if publication.name in self._watched:
                self._touched[publication.name] = None

    def show(self, lsn: int, publications: Sequence[Publication], action: Action, *arguments: Any) -> None:
        """Publish *publications* once every byte below *lsn* is acknowledged, then call *action*.

        A branch may have a million runs: then they are shown in turns of the loop, one part after the other.
        """
        if len(publications) > RUNS_PER_TURN:
            for piece in pieces(publications, RUNS_PER_TURN):
                self.fence.after(lsn, self._publish_piece, piece)
        else:
            self.fence.after(lsn, self.publish, publications)
        self.fence.after(lsn, action, *arguments)

    def _publish_piece(self, piece: Sequence[Publication]) -> Pause:
        self.publish(piece)
        return PAUSE

    def watch(self, names: Container[PartitionName], on_published: Callable[[PartitionName], None]) -> None:
        """Tell *on_published* of the partitions in *names*, which may change, when they have new messages.

        It is told once for everything that one advance of the fence publishes to a partition.
        """
        self._watched, self._on_published = names, on_published

    def tell_checkpoints(self, on_checkpoint: Callable[[Checkpoint], None]) -> None:
        """Tell *on_checkpoint* of each that was written: what it covers is durable."""
        self._on_checkpoint = on_checkpoint

    def advance(self) -> bool:
        """The writer made progress: run what the fence has passed. False: call it again, once others had their turn.

        Raises StorageFailed once the journal failed.
        """
        if self.journal.failure is not None:
            raise self.journal.failure
        if self._is_on_hold:
            return True
        is_done = self.fence.advance(min(self.journal.acknowledged_here, self._limit))
        if self._touched:
            touched, self._touched = self._touched, {}
            for name in touched:
                self._on_published(name)
        return is_done

    def limit_to(self, lsn: Lsn) -> None:
        """Nothing from *lsn* on counts as acknowledged, flushed here or not, until a later call says otherwise: others
        must have it first. `advance` goes by it from the next call on; what was acknowledged stays so."""
        self._limit = lsn

    def hold(self) -> None:
        """Acknowledge nothing, whatever is flushed, until `release`. Any thread."""
        self._is_on_hold = True

    def release(self) -> None:
        """End `hold`; the caller has `advance` called. Any thread."""
        self._is_on_hold = False

    # -- checkpoints ------------------------------------------------------------------------------------------

    def maybe_checkpoint(self, loop: asyncio.AbstractEventLoop, worker: Executor) -> None:
        """Begin a checkpoint if one is due and none is running; and the repair of an index that needs it."""
        self._clock.now_ms()  # so that it is read every tick
        if self._clock.steps != self._steps:
            self._keep_steps()
        written = self.journal.end - self.source.checkpoint_lsn
        overdue = time.monotonic() >= self._checkpoint_due and written > IDLE_BYTES
        if isinstance(self.source, JournalTransactionStore) and self.space.tick(loop, worker):
            self._retention.hurry()
        if self._checkpoint is not None or time.monotonic() < self._checkpoint_not_before:
            return
        self._repair.maybe_begin(loop)
        is_due = overdue or written >= self._config.broker.checkpoint_bytes or self._retention.wants_checkpoint
        is_due = is_due or self._repair.wants_checkpoint or self.source.wants_checkpoint
        if is_due or self._asking:
            self._checkpoint_due = time.monotonic() + self._config.broker.checkpoint_seconds
            self._repair.wants_checkpoint = self.source.wants_checkpoint = False
            self._checkpoint = loop.create_task(self._take_checkpoint(loop, worker))
            self._checkpoint.add_done_callback(self._checkpoint_ended)

    def _keep_steps(self) -> None:
        """Write down that the clock was put forward: a restart must not take that for age. Blocks, once a step."""
        self._steps = self._clock.steps
        try:
            self._storage.replace(STEPS_FILE, msgspec.json.encode(self._steps))
        except StorageFailed as error:
            log.error("step of the clock not written down, after a restart it counts as age error=%s", error)

    def _checkpoint_ended(self, task: asyncio.Task[None]) -> None:
        self._checkpoint = None
        error = None if task.cancelled() else task.exception()
        if isinstance(error, JournalError):
            # The journal itself is well, or `advance` would say so: recovery has more to replay, no more.
            log.error("checkpoint failed error=%s", error)
            if isinstance(error, StorageFailed) and is_full(error):
                self._disk_filled(error)
        elif error is not None:
            raise error

    def _disk_filled(self, error: StorageFailed) -> None:
        """A checkpoint had no room. Retention, which makes some, needs two of them: the reserve is for that, too."""
        self._checkpoint_not_before = time.monotonic() + LOOK_S
        self.space.filled(error)
        self._retention.hurry()
        if self._retention.wants_checkpoint:
            self.space.give_up_reserve()

    async def apply_retention(self, loop: asyncio.AbstractEventLoop, worker: Executor) -> None:
        """Delete now what may go, whatever the schedule; nothing else may be under way. Raises StorageFailed."""
        for _ in range(2):  # one checkpoint knows what goes, and with the next it does
            self._retention.hurry()
            if self._retention.wants_checkpoint:
                await self._write_checkpoint(loop, worker)

    def ask_checkpoint(self, answer: CheckpointAnswer) -> None:
        """Take a checkpoint soon, of everything appended so far; *answer* hears of it, or why there is none."""
        self._asking.append(answer)

    async def _take_checkpoint(self, loop: asyncio.AbstractEventLoop, worker: Executor) -> None:
        asking, self._asking = self._asking, []
        try:
            taken = await self._write_checkpoint(loop, worker)
        except BaseException as error:
            reason = STOPPING if isinstance(error, asyncio.CancelledError) else f"no checkpoint was written: {error}"
            for answer in asking:
                answer(None, reason)
            raise
        for answer in asking:
            answer(taken, "")

    async def _write_checkpoint(self, loop: asyncio.AbstractEventLoop, worker: Executor) -> CheckpointTaken:
        snapshot = self.source.begin_snapshot()
        # The indexes may hold exactly what records below the checkpoint publish: neither less, which waits
        # at the fence, nor more. The fence passes here at that moment.
        reached = self._checkpoint_reached = loop.create_future()
        self.fence.after(snapshot.lsn, _collect, reached, self)
        collected = await reached
        is_more = True
        while is_more:
            is_more = snapshot.go_on(ITEMS_PER_TURN)
            await asyncio.sleep(0)
        checkpoint = snapshot.checkpoint()
        files = await loop.run_in_executor(worker, self.indexes.write, collected)
        checkpoint = await self._retention.choose(loop, worker, checkpoint, collected)
        number = await loop.run_in_executor(worker, self.source.write_checkpoint, checkpoint, collected.marks)
        await loop.run_in_executor(worker, self.indexes.settle, collected, files)
        for count, _ in enumerate(self.indexes.filed(collected, files), 1):
            if count % FILES_PER_TURN == 0:
                await asyncio.sleep(0)
        note(self.source, number, checkpoint)
        for marks in (checkpoint.branches, checkpoint.batches):  # nobody needs them, and freeing all takes a while
            while marks:
                del marks[-ITEMS_PER_TURN:]
                await asyncio.sleep(0)
        self._on_checkpoint(checkpoint)
        await self._retention.checkpoint_written(loop, worker, number)
        return CheckpointTaken(number, checkpoint.lsn, self.journal.end - checkpoint.lsn)

    def last_checkpoint(self) -> None:
        """The checkpoint of a clean stop: blocks. Nothing may be appended before `close`.

        Where others have not acknowledged all that is here, none is taken: the indexes do not hold it.
        """
        self.journal.wait_flushed(self.journal.end)
        while not self.advance():
            pass
        if self.fence.acknowledged >= self.source.state.lsn:
            take_checkpoint(self.source, self.indexes)

    async def finish_checkpoint(self) -> None:
        """Wait for a checkpoint that is being written, if any; one that waits at the fence is given up.

        The repair of an index is given up, too.
        """
        await self._repair.stop()
        await self.space.finish()
        if self.watermark is not None:
            await self.watermark.finish()
        if self._checkpoint is not None:
            if self._checkpoint_reached is not None and not self._checkpoint_reached.done():
                self._checkpoint.cancel()  # the journal may have stopped: the fence would never pass
            await asyncio.wait([self._checkpoint])
        for answer in self._asking:
            answer(None, STOPPING)
        self._asking = []

    def close(self) -> None:
        """Write what is queued and let go of the directory. Idempotent. Raises StorageFailed if it had failed."""
        try:
            self.source.close()
            if self.watermark is not None:
                self.watermark.close()
        finally:
            self._storage.close()


def _read_steps(storage: DirectoryStorage) -> tuple[Step, ...]:
    if STEPS_FILE not in storage.names():
        return ()
    try:
        return msgspec.json.decode(storage.read(STEPS_FILE), type=tuple[Step, ...])
    except (StorageFailed, msgspec.DecodeError) as error:
        log.error("steps of the clock do not read back, they count as age file=%s error=%s", STEPS_FILE, error)
        return ()


def _collect(reached: "asyncio.Future[Collected]", store: MessageStore) -> None:
    if not reached.cancelled():
        reached.set_result(store.indexes.collect())
