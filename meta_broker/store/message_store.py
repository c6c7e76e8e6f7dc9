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

from journal.checkpoint import Checkpoint
from journal.checkpointed import Checkpointed
from journal.errors import JournalError, StorageFailed
from journal.fence import LSN_MAX, PAUSE, Action, Fence, Pause
from journal.frame import Lsn
from journal.open_journal import JournalConfig
from journal.publications import Publication, Publications, pieces
from journal.records import PartitionName
from journal.segments import Identity
from journal.storage import DirectoryStorage
from journal.transaction_store import JournalTransactionStore
from journal.turns import Turns
from meta_broker.config import BrokerConfig
from meta_broker.memory import memory_bytes
from meta_broker.store.checkpoint_taking import note, take_checkpoint
from meta_broker.store.held import HeldBack
from meta_broker.store.horizon import Horizon
from meta_broker.store.indexes import Collected, Indexes, IndexRepair
from meta_broker.store.partition_index import Place
from meta_broker.store.retention_job import Retention
from meta_client.protocol.answers import CheckpointTaken

log = logging.getLogger(__name__)

IDLE_BYTES = 128  # a checkpoint's own record: nothing happened since that needs another checkpoint
RUNS_PER_TURN = 10_000  # published between two turns of the loop: some milliseconds
COPIED_PLACES_MIN = 16  # more runs than this are joined into one buffer: cheaper than an iovec each

# Of a checkpoint, what the loop does between two turns: a millisecond or two.
BRANCHES_PER_TURN = 500
FILES_PER_TURN = 100

# Pages of the journal that readers touched count as this process's until they are unmapped. They come back from the
# page cache at 0.1 ms a MiB at most, so that this costs readers of a gigabyte a second less than a hundredth.
RELEASE_BYTES = 16 * 1024 * 1024


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
        limit: Lsn = LSN_MAX,
    ) -> None:
        """*limit*: as in `limit_to`."""
        self._storage = storage
        self._config = config
        self.source = source
        self.journal = source.journal
        self.indexes = indexes
        self._limit = limit
        self.fence = Fence(min(self.journal.acknowledged_here, limit))
        self._checkpoint_due = time.monotonic() + config.broker.checkpoint_seconds
        self.horizon = Horizon(self.journal, config.broker.memory_ratio * memory_bytes())
        self._read_bytes = 0  # since the journal let go of the memory that this took
        self._on_checkpoint: Callable[[Checkpoint], None] = lambda checkpoint: None
        self._watched: Container[PartitionName] = ()
        self._on_published: Callable[[PartitionName], None] = lambda name: None
        self._touched: dict[PartitionName, None] = {}  # watched, and published to since the fence began to move
        self._repair = IndexRepair(indexes, self.journal)
        self._retention = Retention(config.retention, source, indexes)
        self._checkpoint: asyncio.Task[None] | None = None
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
    ) -> "MessageStore":
        """A master's: lock the data directory, recover it. Raises JournalError of any kind; leaves nothing open then.

        *on_progress* is called on the journal's writer thread: it must only wake the loop, which calls `advance`.
        *clock_ms* gives the time that records carry. *turns* are the loop's: what one of them appends is written
        together. *epoch*: as `JournalTransactionStore.open` has it.

        In mode sync nothing counts as acknowledged but what the newest checkpoint holds, until `limit_to` says more.
        """
        held: list[HeldBack] = []

        def open_source(storage: DirectoryStorage, indexes: Indexes) -> Checkpointed:
            if config.replication.mode == "sync":
                held.append(HeldBack(indexes))
            return JournalTransactionStore.open(
                storage,
                Identity(config.broker.cluster, config.broker_id),
                JournalConfig(segment_bytes=config.broker.segment_bytes, flush=config.flush),
                version=version,
                sink=held[0] if held else indexes,
                on_progress=on_progress,
                clock_ms=clock_ms,
                turns=turns,
                epoch=epoch,
            )

        if config.replication.mode == "async":
            return cls.open_over(config, open_source)
        store = cls.open_over(config, open_source, Lsn(0))
        store.limit_to(store.source.checkpoint_lsn)
        store.advance()
        store.fence.after(store.journal.end, held[0].release, store.publish)
        return store

    @classmethod
    def open_over(
        cls,
        config: BrokerConfig,
        open_source: Callable[[DirectoryStorage, Indexes], Checkpointed],
        limit: Lsn = LSN_MAX,
    ) -> "MessageStore":
        """Lock the data directory, and keep what *open_source* recovers of it; *limit* as in `limit_to`.

        Raises as `open`.
        """
        try:
            storage = DirectoryStorage.open_for_writing(config.data)
            try:
                if not os.access(config.data, os.W_OK | os.X_OK, effective_ids=True):
                    raise StorageFailed(
                        f"{config.data}: {os.strerror(errno.EACCES)}"
                    )  # the next segment would find out
                return cls._recovered(storage, config, open_source, limit)
            except BaseException:
                storage.close()
                raise
        except StorageFailed as error:
            raise StorageFailed(f"{error}: give --data a directory that this user can read and write") from error

    @classmethod
    def _recovered(
        cls,
        storage: DirectoryStorage,
        config: BrokerConfig,
        open_source: Callable[[DirectoryStorage, Indexes], Checkpointed],
        limit: Lsn,
    ) -> "MessageStore":
        indexes = Indexes(config.data / "index")
        source = open_source(storage, indexes)
        try:
            indexes.make_directory()  # only now: a directory that is not ours stays as it was
        except StorageFailed:
            source.close()
            raise
        source.journal.release()  # recovery may have read all of it
        return cls(storage, source, indexes, config, limit)

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

    def slices(self, places: Sequence[Place], size: int) -> list[memoryview | bytes]:
        """The *size* bytes of *places*, to be sent: of the mapped journal, or joined where they are many.

        Waits for the disk unless they are in memory: see `horizon`.
        """
        buffers: list[memoryview | bytes] = [self.journal.slice(lsn, size) for lsn, size in places]
        if len(buffers) > COPIED_PLACES_MIN:
            buffers = [b"".join(buffers)]
        self._read_bytes += size
        if self._read_bytes >= RELEASE_BYTES:
            self._read_bytes = 0
            self.journal.release()
        return buffers

    # -- checkpoints ------------------------------------------------------------------------------------------

    def maybe_checkpoint(self, loop: asyncio.AbstractEventLoop, worker: Executor) -> None:
        """Begin a checkpoint if one is due and none is running; and the repair of an index that needs it."""
        written = self.journal.end - self.source.checkpoint_lsn
        overdue = time.monotonic() >= self._checkpoint_due and written > IDLE_BYTES
        if self._checkpoint is not None:
            return
        self._repair.maybe_begin(loop)
        is_due = overdue or written >= self._config.broker.checkpoint_bytes or self._retention.wants_checkpoint
        if is_due or self._asking:
            self._checkpoint_due = time.monotonic() + self._config.broker.checkpoint_seconds
            self._checkpoint = loop.create_task(self._take_checkpoint(loop, worker))
            self._checkpoint.add_done_callback(self._checkpoint_ended)

    def _checkpoint_ended(self, task: asyncio.Task[None]) -> None:
        self._checkpoint = None
        error = None if task.cancelled() else task.exception()
        if isinstance(error, JournalError):
            # The journal itself is well, or `advance` would say so: recovery has more to replay, no more.
            log.error("checkpoint failed error=%s", error)
        elif error is not None:
            raise error

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
            is_more = snapshot.go_on(BRANCHES_PER_TURN)
            await asyncio.sleep(0)
        checkpoint = snapshot.checkpoint()
        files = await loop.run_in_executor(worker, self.indexes.write, collected)
        checkpoint = await self._retention.choose(loop, worker, checkpoint, collected)
        number = await loop.run_in_executor(worker, self.source.write_checkpoint, checkpoint, collected.marks)
        await loop.run_in_executor(worker, self.indexes.settle, collected, files)
        for count, (name, file) in enumerate(files.items(), 1):
            self.indexes.by_name[name].filed(collected.spills[name], file)
            if count % FILES_PER_TURN == 0:
                await asyncio.sleep(0)
        note(self.source, number, checkpoint)
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
        finally:
            self._storage.close()


def _collect(reached: "asyncio.Future[Collected]", store: MessageStore) -> None:
    if not reached.cancelled():
        reached.set_result(store.indexes.collect())
