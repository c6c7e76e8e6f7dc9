"""Takes checkpoints of an open store, and runs what goes with them: retention and the repair of damaged indexes."""

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import NamedTuple

import msgspec

from journal.errors import JournalError, StorageFailed
from journal.state.checkpoint import Checkpoint
from journal.state.checkpointed import CheckpointedState
from journal.state.transaction_store import JournalTransactionStore
from journal.wal.high_watermark import HighWatermark
from journal.wal.reserve import is_full
from journal.wal.storage import Storage
from meta_broker.config.broker_config import BrokerConfig
from meta_broker.store.archive_tier import ArchiveTier
from meta_broker.store.checkpoint_taking import record_checkpoint
from meta_broker.store.clock import Clock, ClockStep
from meta_broker.store.disk_space import CHECK_S, DiskSpace
from meta_broker.store.indexes import Collected, Indexes, IndexRepair
from meta_broker.store.retention_job import STOP_WAIT_S, Retention
from meta_client.protocol.answers import CheckpointTaken

log = logging.getLogger(__name__)

STEPS_FILE = "clock-steps"
IDLE_BYTES = 128  # size of a checkpoint's own record: no more than that needs no new checkpoint

# Work for a checkpoint in one turn of the loop: a millisecond or two.
ITEMS_PER_TURN = 500
FILES_PER_TURN = 100

STOPPING = "the broker stops, and takes a checkpoint then"


class NoCheckpoint(NamedTuple):
    """No checkpoint was written."""

    reason: str


CheckpointAnswer = Callable[[CheckpointTaken | NoCheckpoint], None]


class CheckpointJob:
    """Checkpoints of one store, one at a time. Loop thread only, except what a worker runs."""

    def __init__(
        self,
        storage: Storage,
        source: CheckpointedState,
        indexes: Indexes,
        config: BrokerConfig,
        clock: Clock,
        high_watermark: HighWatermark,
        space: DiskSpace,
        tier: ArchiveTier | None = None,
    ) -> None:
        self._storage = storage
        self._source = source
        self._journal = source.journal
        self._indexes = indexes
        self._config = config
        self._clock = clock
        self._high_watermark = high_watermark
        self._space = space
        self._steps = _read_steps(storage)  # of the clock, as saved on disk
        clock.begin_after(source.recovered_ms, self._steps)
        self._due = time.monotonic() + config.broker.checkpoint_seconds
        self._not_before = 0.0
        self._listener: Callable[[Checkpoint], None] = lambda checkpoint: None
        self._repair = IndexRepair(indexes, self._journal)
        self._retention = Retention(config.retention, source, indexes, clock, tier)
        self._requests: list[CheckpointAnswer] = []  # for the next checkpoint
        self._task: asyncio.Task[None] | None = None
        self._reached: asyncio.Future[Collected] | None = None

    def subscribe(self, on_checkpoint: Callable[[Checkpoint], None]) -> None:
        """Call *on_checkpoint* after each checkpoint: what it covers is durable."""
        self._listener = on_checkpoint

    def maybe_begin(self, worker: Executor) -> None:
        """Begin a checkpoint if one is due and none is running, and the repair of damaged indexes."""
        self._clock.now_ms()  # reads the clock every tick
        if self._clock.steps != self._steps:
            self._keep_steps()
        written = self._journal.end - self._source.checkpoint_lsn
        overdue = time.monotonic() >= self._due and written > IDLE_BYTES
        if not isinstance(self._source, JournalTransactionStore):
            self._space.check_segments(worker)
        elif self._space.tick(worker):
            self._retention.run_soon()
        if self._space.why_gone:
            self._refuse_requests(self._space.why_gone)
            return
        if self._task is not None or time.monotonic() < self._not_before:
            return
        if not self._retention.is_uploading:
            self._repair.maybe_begin()
        is_due = overdue or written >= self._config.broker.checkpoint_bytes or self._retention.wants_checkpoint
        is_due = is_due or self._repair.wants_checkpoint or self._source.wants_checkpoint
        if is_due or self._requests:
            self._due = time.monotonic() + self._config.broker.checkpoint_seconds
            self._repair.wants_checkpoint = self._source.wants_checkpoint = False
            self._task = asyncio.create_task(self._take_checkpoint(worker))
            self._task.add_done_callback(self._ended)

    def _keep_steps(self) -> None:
        """Save the clock's steps forward: after a restart they must not count as age. Blocks, once a step."""
        self._steps = self._clock.steps
        try:
            self._storage.replace(STEPS_FILE, msgspec.json.encode(self._steps))
        except StorageFailed as error:
            log.error("step of the clock not written down, after a restart it counts as age error=%s", error)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        error = None if task.cancelled() else task.exception()
        if isinstance(error, JournalError):
            # The journal has not failed, or `advance` would raise: recovery only has more to replay.
            log.error("checkpoint failed error=%s", error)
            if isinstance(error, StorageFailed) and is_full(error):
                self._disk_filled(error)
        elif error is not None:
            raise error

    def _disk_filled(self, error: StorageFailed) -> None:
        """Let retention make room after a checkpoint had none. It needs two checkpoints: the reserve is for those,
        too.
        """
        self._not_before = time.monotonic() + CHECK_S
        self._space.filled(error)
        self._retention.run_soon()
        if self._retention.wants_checkpoint:
            self._space.give_up_reserve()

    async def apply_retention(self, worker: Executor) -> None:
        """Delete now what retention allows, whatever the schedule; nothing else may be running. Raises
        StorageFailed.
        """
        await self._retention.prepare()
        for _ in range(2):  # the first checkpoint chooses, the second deletes
            self._retention.run_soon()
            if self._retention.wants_checkpoint:
                await self._write(worker)
        await self._retention.uploaded(None)

    def request(self, answer: CheckpointAnswer) -> None:
        """Take a checkpoint soon, of everything appended so far; call *answer* with it, or with why there is
        none.
        """
        self._requests.append(answer)

    async def _take_checkpoint(self, worker: Executor) -> None:
        requests, self._requests = self._requests, []
        try:
            taken = await self._write(worker)
        except BaseException as error:
            reason = STOPPING if isinstance(error, asyncio.CancelledError) else f"no checkpoint was written: {error}"
            for answer in requests:
                answer(NoCheckpoint(reason))
            raise
        for answer in requests:
            answer(taken)

    async def _write(self, worker: Executor) -> CheckpointTaken:
        loop, snapshot = asyncio.get_running_loop(), self._source.begin_snapshot()
        # The indexes must hold exactly what records below the checkpoint publish, as they do when the high watermark
        # reaches this action.
        reached = self._reached = loop.create_future()
        self._high_watermark.run_after(snapshot.lsn, _collect, reached, self._indexes)
        collected = await reached
        is_more = True
        while is_more:
            is_more = snapshot.step(ITEMS_PER_TURN)
            await asyncio.sleep(0)
        checkpoint = snapshot.checkpoint()
        files = await loop.run_in_executor(worker, self._indexes.write, collected)
        checkpoint = await self._retention.choose(worker, checkpoint, collected)
        if self._space.why_gone:  # the next start would pass over records that are not in the files that are put back
            raise StorageFailed(self._space.why_gone)
        number = await loop.run_in_executor(worker, self._source.write_checkpoint, checkpoint, collected.marks)
        await loop.run_in_executor(worker, self._indexes.install, collected, files)
        for count, _ in enumerate(self._indexes.filed(collected, files), 1):
            if count % FILES_PER_TURN == 0:
                await asyncio.sleep(0)
        record_checkpoint(self._source, number, checkpoint)
        for entries in (checkpoint.branches, checkpoint.batches):  # freeing them at once would take long
            while entries:
                del entries[-ITEMS_PER_TURN:]
                await asyncio.sleep(0)
        self._listener(checkpoint)
        await self._retention.checkpoint_written(worker, number)
        return CheckpointTaken(number, checkpoint.lsn, self._journal.end - checkpoint.lsn)

    def close(self) -> None:
        """Let retention drop nothing from now on."""
        self._retention.close()

    async def stop(self) -> None:
        """Wait for a checkpoint being written; cancel one that waits at the high watermark, and the repair of an
        index.
        """
        await self._repair.stop()
        await self._space.stop()
        await self._retention.uploaded(STOP_WAIT_S)
        if self._task is not None:
            if self._reached is not None and not self._reached.done():
                self._task.cancel()  # if the journal has stopped, the high watermark never passes
            await asyncio.wait([self._task])
        self._refuse_requests(STOPPING)

    def _refuse_requests(self, reason: str) -> None:
        requests, self._requests = self._requests, []
        for answer in requests:
            answer(NoCheckpoint(reason))


def _read_steps(storage: Storage) -> tuple[ClockStep, ...]:
    if STEPS_FILE not in storage.names():
        return ()
    try:
        return msgspec.json.decode(storage.read(STEPS_FILE), type=tuple[ClockStep, ...])
    except (StorageFailed, msgspec.DecodeError) as error:
        log.error("steps of the clock do not read back, they count as age file=%s error=%s", STEPS_FILE, error)
        return ()


def _collect(reached: "asyncio.Future[Collected]", indexes: Indexes) -> None:
    if not reached.cancelled():
        reached.set_result(indexes.collect())
