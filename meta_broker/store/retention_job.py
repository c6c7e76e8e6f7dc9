"""Deletes or archives old segments, in steps that a crash may separate anywhere.

1. With a checkpoint, choose a cut; the partitions begin after it from that moment, and the checkpoint says so.
2. After the next checkpoint both of the two newest include it. Delete older ones, then the segments, oldest first, each
   once the archive has it, if there is one. That has a thread of its own: an archive that is slow, full or away delays
   nothing but its segments.

If the archive is read through the broker, an archived index has what partitions lose in step 1 before they do.

Whichever checkpoint a start finds, the journal begins no later than it needs, and every offset it names is stored.
"""

import asyncio
import datetime
import functools
import logging
import time
from concurrent.futures import Executor, Future
from itertools import chain

from journal.archive.keeper import SegmentKeeper
from journal.archive.places import archive_place
from journal.errors import StorageFailed
from journal.records.header import Lsn
from journal.records.record import PartitionName
from journal.state.checkpoint import Checkpoint, remove_checkpoints_below
from journal.state.checkpointed import CheckpointedState
from journal.wal.segments import Segments
from meta_broker.config.schedule import Schedule
from meta_broker.config.sections import RetentionSection
from meta_broker.daemon_call import in_daemon_thread
from meta_broker.store.archive_tier import ArchiveTier
from meta_broker.store.clock import STEP_MS, Clock
from meta_broker.store.index_file import IndexDamaged
from meta_broker.store.indexes import Collected, Indexes
from meta_broker.store.partition_index import Covered
from meta_broker.store.retention import RetentionPoint, RetentionPointUnknown, floor_of, retention_point

log = logging.getLogger(__name__)

# Dropped in one run with an archived index, of which a reader downloads all: the larger of both.
INDEXED_SEGMENTS_MAX = 4
INDEXED_BYTES_MAX = 64 * 1024 * 1024
STOP_WAIT_S = 5.0  # for an upload: a journal that is closed is not touched by it any more


class Retention:
    """Retention of one broker. Loop thread only; one checkpoint at a time."""

    def __init__(
        self,
        section: RetentionSection,
        source: CheckpointedState,
        indexes: Indexes,
        clock: Clock,
        tier: ArchiveTier | None = None,
    ) -> None:
        """*tier*: reads the archive, if consumers may."""
        self._section = section
        self._tier = tier
        self._source = source
        self._indexes = indexes
        self._clock = clock
        self._newest_ms = source.state.time_ms  # of the newest record, and when it was first seen
        self._newest_at = clock.steady_ms()
        self._schedule = Schedule(section.when)
        self._due = time.monotonic() + self._schedule.first_s(_now())
        self._keeper: SegmentKeeper | None = None
        if section.archive is not None:
            place = archive_place(section.archive)
            self._keeper = SegmentKeeper(place, lambda: "an index is being rebuilt" if indexes.damaged else None, tier)
        self._upload: Future[None] | None = None  # the last one
        self._is_limited = False  # more may go with the next run, at once
        self._chosen: RetentionPoint | None = None  # in no durable checkpoint yet
        self._durable: tuple[RetentionPoint, int] | None = None  # with the first checkpoint that has it

    @property
    def is_uploading(self) -> bool:
        """True while segments may be dropped on another thread: no index can be rebuilt."""
        return self._upload is not None and not self._upload.done()

    @property
    def wants_checkpoint(self) -> bool:
        """True if segments can be chosen or deleted, which needs a checkpoint."""
        self._look_at_newest()
        if self._indexes.damaged:
            return False  # rebuilding needs the journal as it is
        if self.is_uploading:
            return False  # one after the other
        if self._durable is not None:
            return True
        if time.monotonic() < self._due or self._section.hours is self._section.bytes is None:
            return False
        if self._tier is not None and not self._tier.is_ready:
            return False  # what is archived next continues what is archived: unknown while the archive is away
        journal = self._source.journal
        if not len(journal.segments):
            return False  # a copy that waits for its first bytes
        if self._floor(journal.end) > next(iter(journal.segments))[0]:
            return True
        self._due = time.monotonic() + self._schedule.next_s(_now())
        return False

    def run_soon(self) -> None:
        """Run now, whatever the schedule: the disk is full."""
        self._due = time.monotonic()

    def _floor(self, end: int) -> Lsn:
        segments = self._source.journal.segments
        floor = floor_of(segments, end, self._age_ms, self._section)
        if self._tier is None:
            return floor
        first = next(iter(segments))[0]
        limit = Lsn(first + max(INDEXED_SEGMENTS_MAX * segments.segment_bytes, INDEXED_BYTES_MAX))
        self._is_limited = floor > limit
        return min(floor, limit)

    def _age_ms(self, time_ms: int) -> int:
        """Return the least age of a record of *time_ms*: by the clock here, and by the newest record and the time
        since.

        In a copy the records' times are another host's.
        """
        self._look_at_newest()
        since_newest_ms = self._clock.steady_ms() - self._newest_at
        # STEP_MS allows for differences between hosts' clocks, and for a newest record seen late.
        return min(self._clock.age_ms(time_ms), self._newest_ms + since_newest_ms - time_ms + STEP_MS)

    def _look_at_newest(self) -> None:
        if self._newest_ms != (newest_ms := self._source.state.time_ms):
            self._newest_ms, self._newest_at = newest_ms, self._clock.steady_ms()

    async def choose(self, worker: Executor, checkpoint: Checkpoint, collected: Collected) -> Checkpoint:
        """Choose a cut if one is due, and trim the partitions to it; return *checkpoint* with the new starts."""
        if self._durable is not None or not self.wants_checkpoint or not collected.is_complete:
            return checkpoint
        by_name = self._indexes.by_name
        floor, segments = self._floor(checkpoint.lsn), self._source.journal.segments
        self._due = time.monotonic() + (0.0 if self._is_limited else self._schedule.next_s(_now()))
        covered = {name: by_name[name].covered_with(spill) for name, spill in collected.every()}
        try:
            choose = functools.partial(_choose, segments, floor, checkpoint, covered, is_tiered=self._tier is not None)
            self._chosen = await asyncio.get_running_loop().run_in_executor(worker, choose)
        except RetentionPointUnknown as error:
            by_name[error.name].damaged()
            log.warning("nothing dropped error=%s", error)
            return checkpoint
        if self._chosen is None:
            return checkpoint
        if self._tier is not None and not await self._index(worker, self._tier, self._chosen, covered):
            self._chosen = None
            return checkpoint
        for name, start in self._chosen.starts.items():
            by_name[name].trim(start)
        return self._source.trim(checkpoint, self._chosen.starts)

    async def _index(
        self, worker: Executor, tier: ArchiveTier, point: RetentionPoint, covered: dict[PartitionName, Covered]
    ) -> bool:
        """Keep what the partitions lose at *point* in an archived index. False: it could not be written."""
        taken = {name: (covered[name], start) for name, start in point.starts.items()}
        if not taken:
            return True
        try:
            writing = functools.partial(tier.write, point.lsn, taken, tier.ranges())
            tier.add(await asyncio.get_running_loop().run_in_executor(worker, writing))
        except (StorageFailed, IndexDamaged) as error:
            log.error("nothing dropped, no archived index could be written error=%s", error)
            return False
        return True

    async def checkpoint_written(self, worker: Executor, number: int) -> None:
        """Delete what the checkpoint before *number* dropped, now that *number*, returned by `choose`, is durable.

        Raises StorageFailed: the rest is tried again.
        """
        if self._indexes.damaged:
            return
        loop = asyncio.get_running_loop()
        durable, self._durable = self._durable, None
        if durable is not None:
            point, with_it = durable
            await loop.run_in_executor(worker, remove_checkpoints_below, self._source.journal.storage, with_it)
            if self._keeper is not None:
                assert not self.is_uploading
                self._upload = in_daemon_thread(functools.partial(self._drop_archived, point.lsn), "archive")
            else:
                await loop.run_in_executor(worker, self._drop, point.lsn)
        if self._chosen is not None:
            self._durable, self._chosen = (self._chosen, number), None

    def _drop(self, lsn: int) -> None:
        count = self._source.journal.segments.drop_before(lsn, self._keeper)
        log.info("segments dropped count=%d policy=%s start=%d", count, self._section.policy, lsn)

    def _drop_archived(self, lsn: int) -> None:
        """Drop segments on the thread for uploads, whose errors end here: the segments stay, and the next run tries
        again."""
        try:
            self._drop(lsn)
        except StorageFailed as error:
            log.error("segments not archived, kept and tried again until_lsn=%d error=%s", lsn, error)
        except Exception:
            log.exception("segments not archived, kept and tried again until_lsn=%d", lsn)

    def close(self) -> None:
        """Drop nothing from now on; an upload may still run, and changes nothing here."""
        if self._keeper is not None:
            self._keeper.close()

    async def prepare(self) -> None:
        """Wait until it is known what the archive has, if it is read; for some seconds only."""
        if self._tier is not None:
            await self._tier.prepare(STOP_WAIT_S)

    async def uploaded(self, seconds_max: float | None) -> None:
        """Wait until no upload runs; *seconds_max* at most."""
        if self._upload is not None:
            await asyncio.wait([asyncio.wrap_future(self._upload)], timeout=seconds_max)


def _choose(
    segments: Segments, floor: int, checkpoint: Checkpoint, covered: dict[PartitionName, Covered], *, is_tiered: bool
) -> RetentionPoint | None:
    """Choose a cut. A worker's job: reads every index. Raises RetentionPointUnknown."""
    ends = {PartitionName(entry.topic, entry.partition): entry.end for entry in checkpoint.partitions}
    extents = (extent.lsn for branch in checkpoint.branches for extent in branch.extents)
    needed = min(chain([checkpoint.lsn], extents))
    return retention_point(segments, floor, needed, covered, ends, is_tiered=is_tiered)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
