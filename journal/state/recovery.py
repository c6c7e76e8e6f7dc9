"""Recovers the state of a directory: newest valid checkpoint, then a fold over the records after it.

The cost is that of the records after the checkpoint. Truncates a torn tail, refuses corruption, and changes nothing on
disk before the verdict.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from journal.errors import CorruptJournal
from journal.records.codec import decode
from journal.records.header import Lsn, Offset
from journal.records.index_updates import IndexUpdate
from journal.records.record import PartitionName
from journal.state.checkpoint import Checkpoint, PartitionEntry, read_newest
from journal.state.fold import apply
from journal.state.initial_sync import refuse_unfinished_sync
from journal.state.journal_state import JournalState
from journal.state.replay import PendingUpdates, ReplicaFold
from journal.state.truncation import finish_truncation
from journal.wal.high_watermark import LSN_MAX
from journal.wal.open_journal import make_end_durable
from journal.wal.recovery_point import remove_recovery_point
from journal.wal.scan import ScanEnd, Scanner, Verdict
from journal.wal.segments import SEGMENT_HEADER_BYTES, Segments
from journal.wal.watermark_file import lower_watermark

log = logging.getLogger(__name__)


class IndexSink(Protocol):
    """Receiver of the partition indexes: first the entries of a checkpoint, then every update in order."""

    def restore(self, entries: list[PartitionEntry]) -> None:
        """Return to the checkpoint's entries. The sink must rebuild a lost or damaged index later."""

    def publish(self, update: IndexUpdate) -> None:
        """Add one index entry."""

    def trim(self, name: PartitionName, start: Offset) -> None:
        """Drop entries below *start*, the partition's new start. It may be there already, or unknown."""


class NullSink:
    """A sink that keeps nothing, for readers without an index."""

    def restore(self, entries: list[PartitionEntry]) -> None:
        del entries

    def publish(self, update: IndexUpdate) -> None:
        del update

    def trim(self, name: PartitionName, start: Offset) -> None:
        del name, start


@dataclass(slots=True)
class Recovered:
    """Result of recovery. *end*: LSN of the next record."""

    state: JournalState
    end: Lsn
    scan: ScanEnd
    checkpoint_number: int
    replayed_bytes: int
    replayed_records: int
    damaged: list[str] = field(default_factory=list)  # checkpoints that were skipped
    waiting: list[PendingUpdates] = field(default_factory=list)  # not given to the sink: perhaps not acknowledged


def replay(scanner: Scanner, state: JournalState, publish: Callable[[IndexUpdate], None]) -> int:
    """Fold every record of *scanner* into *state*; returns their number. Raises InvalidRecord."""
    count = 0
    for entry in scanner:
        for update in apply(state, entry.header, decode(entry.header, entry.meta)):
            publish(update)
        count += 1
    return count


class Replayed(NamedTuple):
    """Result of replaying. *end*: of the last record. *waiting*: updates of records above a limit, in order.
    *is_trimmed*: the sink was given the starts of partitions, before the first record above the limit."""

    end: Lsn
    records: int
    waiting: list[PendingUpdates]
    is_trimmed: bool


def replay_to(scanner: Scanner, fold: ReplicaFold, sink: IndexSink, publish_below: Lsn) -> Replayed:
    """Add every record of *scanner*, and give *sink* the updates of those below *publish_below*. Raises
    InvalidRecord."""
    end, count, waiting, is_trimmed = scanner.end, 0, list[PendingUpdates](), False
    for entry in scanner:
        if not is_trimmed and entry.header.end > publish_below:
            trim(sink, fold.state)
            is_trimmed = True
        said = fold.add(entry.header, decode(entry.header, entry.meta))
        end, count = entry.header.end, count + 1
        if said is not None and said.lsn > publish_below:
            waiting.append(said)
        elif said is not None:
            for update in said.updates:
                sink.publish(update)
    return Replayed(end, count, waiting, is_trimmed)


def recover(segments: Segments, sink: IndexSink, publish_below: Lsn = LSN_MAX) -> Recovered:
    """Rebuild the state, feed *sink*, truncate a torn tail. On return the journal can be appended to at `end`.

    Keeps updates of records above *publish_below* in `waiting`, unless a checkpoint holds them. Raises UnfinishedSync,
    CorruptJournal (nothing was changed then), InvalidRecord, StorageFailed.
    """
    finish_truncation(segments)
    refuse_unfinished_sync(segments.storage)
    number, state, damaged = restore(segments, sink)
    start = state.lsn
    scanner = Scanner(segments, start)
    _, count, waiting, is_trimmed = replay_to(scanner, ReplicaFold(state, None), sink, publish_below)
    end = clear_torn_tail(segments, scanner)
    if not is_trimmed:
        trim(sink, state)
    return Recovered(state, end.end, end, number, max(end.end - start, 0), count, damaged, waiting)


def recover_below(segments: Segments, sink: IndexSink, lsn: int) -> Recovered:
    """Recover without records that end above *lsn*, also for *sink*: the next start adds them.

    The whole journal is durable on return all the same. Accepts a checkpoint that holds more than *lsn*.
    """
    finish_truncation(segments)
    refuse_unfinished_sync(segments.storage)
    number, state, damaged = restore(segments, sink)
    start, scanner, count = state.lsn, Scanner(segments, state.lsn), 0
    for entry in scanner:
        if entry.header.end <= lsn:
            count += 1
            for update in apply(state, entry.header, decode(entry.header, entry.meta)):
                sink.publish(update)
    end = clear_torn_tail(segments, scanner)
    trim(sink, state)
    return Recovered(state, end.end, end, number, state.lsn - start, count, damaged)


def restore(segments: Segments, sink: IndexSink) -> tuple[int, JournalState, list[str]]:
    """Restore the newest checkpoint and *sink* to it; returns its number, its state, and a line for each damaged one.

    Changes nothing on disk.
    """
    number, content, damaged = read_newest(segments.storage)
    checkpoint, state = content or (None, JournalState(segments.start))
    check_reaches(segments, checkpoint)
    sink.restore(checkpoint.partitions if checkpoint else [])
    for line in damaged:
        log.warning("damaged, passed over %s", line)
    return number, state, damaged


def clear_torn_tail(segments: Segments, scanner: Scanner) -> ScanEnd:
    """Judge the end of *scanner*'s records, and clear a torn tail. The rest is durable on return. Raises
    CorruptJournal, StorageFailed."""
    end = scanner.finish()
    if end.verdict is Verdict.CORRUPT:
        raise CorruptJournal(end.end, end.next_valid_lsn, end.reason, segments.storage.path)
    if end.trailing_garbage:
        log.warning("torn tail cut lsn=%d reason=%s", end.end, end.reason)
    make_end_durable(segments, end.durable, end.end, is_clear=not end.trailing_garbage)
    remove_recovery_point(segments.storage)
    lower_watermark(segments.storage, end.end)
    return end


def trim(sink: IndexSink, state: JournalState) -> None:
    """Give *sink* the starts of all partitions."""
    for name, offset_range in state.offset_ranges.items():
        if offset_range.start:
            sink.trim(name, offset_range.start)


def check_reaches(segments: Segments, checkpoint: Checkpoint | None) -> None:
    """Check that the segments continue where *checkpoint* ends. Raises CorruptJournal."""
    path = segments.storage.path
    if checkpoint is None:
        if segments.start != SEGMENT_HEADER_BYTES:
            raise CorruptJournal(0, segments.start, "its records were dropped, and no checkpoint reads back", path)
    elif checkpoint.lsn < segments.start:
        raise CorruptJournal(checkpoint.lsn, segments.start, "no segment, and the newest checkpoint ends there", path)
    elif checkpoint.lsn > segments.end:
        raise CorruptJournal(segments.end, None, f"no segment, but a checkpoint up to LSN {checkpoint.lsn}", path)
