"""Deleting or archiving old segments, in steps that a crash may part anywhere.

1. With a checkpoint, choose a cut; the partitions begin behind it from that moment, and the checkpoint says so.
2. After the next checkpoint the two newest know it. Older ones are deleted, then the segments, oldest first.

So whichever checkpoint a start finds, the journal begins no later than it needs, and every offset it names is there.
"""

import asyncio
import datetime
import logging
import time
from concurrent.futures import Executor
from itertools import chain

from journal.checkpoint import Checkpoint, remove_checkpoints_below
from journal.checkpointed import Checkpointed
from journal.records import PartitionName
from journal.segments import Segments
from meta_broker.clock import STEP_MS, Clock
from meta_broker.config import RetentionSection
from meta_broker.schedule import Schedule
from meta_broker.store.indexes import Collected, Indexes
from meta_broker.store.partition_index import Covered
from meta_broker.store.retention import Cut, CutUnknown, cut_at, floor_of

log = logging.getLogger(__name__)


class Retention:
    """One broker's. Loop thread only; one checkpoint at a time."""

    def __init__(
        self,
        section: RetentionSection,
        source: Checkpointed,
        indexes: Indexes,
        clock: Clock,
    ) -> None:
        self._section = section
        self._source = source
        self._indexes = indexes
        self._clock = clock
        self._newest_ms = source.state.time_ms  # of all records, and when it was first seen on the steady clock
        self._newest_at = clock.steady_ms()
        self._schedule = Schedule(section.when)
        self._due = time.monotonic() + self._schedule.first_s(_now())
        self._chosen: Cut | None = None  # in no durable checkpoint yet
        self._durable: tuple[Cut, int] | None = None  # and the number of the first checkpoint that knows it

    @property
    def wants_checkpoint(self) -> bool:
        """Whether there is something to choose or to delete, for which a checkpoint must be written."""
        self._look_at_newest()
        if self._indexes.damaged:
            return False  # what is rebuilt needs the journal as it is
        if self._durable is not None:
            return True
        if time.monotonic() < self._due or self._section.hours is self._section.bytes is None:
            return False
        journal = self._source.journal
        if not len(journal.segments):
            return False  # a copy that waits for its first bytes
        if self._floor(journal.end) > next(iter(journal.segments))[0]:
            return True
        self._due = time.monotonic() + self._schedule.next_s(_now())
        return False

    def hurry(self) -> None:
        """Look now, whatever the schedule: the disk is full."""
        self._due = time.monotonic()

    def _floor(self, end: int) -> int:
        return floor_of(self._source.journal.segments, end, self._age_ms, self._section)

    def _age_ms(self, time_ms: int) -> int:
        """How old a record of *time_ms* is, at least: by the clock here, and by the newest record and the time since,
        which in a copy are another clock's."""
        self._look_at_newest()
        since_newest_ms = self._clock.steady_ms() - self._newest_at
        # Two hosts' clocks differ a little, and the newest record was there before it was seen.
        return min(self._clock.age_ms(time_ms), self._newest_ms + since_newest_ms - time_ms + STEP_MS)

    def _look_at_newest(self) -> None:
        if self._newest_ms != (newest_ms := self._source.state.time_ms):
            self._newest_ms, self._newest_at = newest_ms, self._clock.steady_ms()

    async def choose(
        self,
        loop: asyncio.AbstractEventLoop,
        worker: Executor,
        checkpoint: Checkpoint,
        collected: Collected,
    ) -> Checkpoint:
        """Choose a cut if one is due, and let the partitions begin behind it: *checkpoint*, which says so."""
        if self._durable is not None or not self.wants_checkpoint or not collected.is_complete:
            return checkpoint
        self._due = time.monotonic() + self._schedule.next_s(_now())
        by_name = self._indexes.by_name
        floor, segments = self._floor(checkpoint.lsn), self._source.journal.segments
        try:
            covered = {name: by_name[name].covered_with(spill) for name, spill in collected.every()}
            self._chosen = await loop.run_in_executor(worker, _choose, segments, floor, checkpoint, covered)
        except CutUnknown as error:
            by_name[error.name].damaged()
            log.warning("nothing dropped error=%s", error)
            return checkpoint
        if self._chosen is None:
            return checkpoint
        for name, start in self._chosen.starts.items():
            by_name[name].trim(start)
        return self._source.trim(checkpoint, self._chosen.starts)

    async def checkpoint_written(self, loop: asyncio.AbstractEventLoop, worker: Executor, number: int) -> None:
        """Checkpoint *number*, which `choose` returned, is durable: delete what the one before it let go.

        Raises StorageFailed: what is left is tried again.
        """
        if self._indexes.damaged:
            return
        durable, self._durable = self._durable, None
        if durable is not None:
            count = await loop.run_in_executor(worker, self._drop, *durable)
            log.info("segments dropped count=%d policy=%s start=%d", count, self._section.policy, durable[0].lsn)
        if self._chosen is not None:
            self._durable, self._chosen = (self._chosen, number), None

    def _drop(self, cut: Cut, number: int) -> int:
        journal = self._source.journal
        remove_checkpoints_below(journal.storage, number)
        return journal.drop_before(cut.lsn, self._section.archive)


def _choose(
    segments: Segments, floor: int, checkpoint: Checkpoint, covered: dict[PartitionName, Covered]
) -> Cut | None:
    """A worker's job: looks into every index. Raises CutUnknown."""
    ends = {PartitionName(mark.topic, mark.partition): mark.end for mark in checkpoint.partitions}
    runs = (run.lsn for branch in checkpoint.branches for run in branch.runs)
    needed = min(chain([checkpoint.lsn], runs))
    return cut_at(segments, floor, needed, covered, ends)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
