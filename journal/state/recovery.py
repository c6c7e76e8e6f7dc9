"""Recovers the state of a directory: newest valid checkpoint, then a fold over the records after it.

The cost is that of the records after the checkpoint. Truncates a torn tail, refuses corruption, and changes nothing on
disk before the verdict.
"""

import logging
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple, Protocol

from journal.errors import CorruptJournal
from journal.records.header import Lsn, Offset
from journal.records.index_updates import IndexUpdate
from journal.records.record import PartitionName
from journal.state.checkpoint import Checkpoint, PartitionEntry, read_newest
from journal.state.initial_sync import refuse_unfinished_sync
from journal.state.journal_state import JournalState
from journal.state.replay import PendingUpdates, RecordFold, replay
from journal.state.truncation import finish_truncation
from journal.wal.high_watermark import LSN_MAX
from journal.wal.marks import lower_watermark, remove_recovery_point
from journal.wal.open_journal import make_end_durable
from journal.wal.scan import EndVerdict, ScanEnd, ScannedRecord, Scanner
from journal.wal.segments import SEGMENT_HEADER_BYTES, Segments

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


class Replayed(NamedTuple):
    """Result of replaying. *end*: of the last record. *waiting*: updates of records above a limit, in order."""

    end: Lsn
    records: int
    waiting: list[PendingUpdates]


def replay_into(
    sink: IndexSink, entries: Iterable[ScannedRecord], fold: RecordFold, start: Lsn, publish_below: Lsn = LSN_MAX
) -> Replayed:
    """Replay *entries*, which begin at *start*, and give *sink* the updates of those below *publish_below*. Raises
    InvalidRecord."""
    end, count, waiting = start, 0, list[PendingUpdates]()
    for header, said in replay(entries, fold):
        end, count = header.end, count + 1
        if said is None:
            continue
        if said.lsn > publish_below:
            waiting.append(said)
            continue
        for update in said.updates:
            sink.publish(update)
        for name, first in said.starts:
            sink.trim(name, first)
    return Replayed(end, count, waiting)


def recover(
    segments: Segments, sink: IndexSink, publish_below: Lsn = LSN_MAX, *, fold_below: int | None = None
) -> Recovered:
    """Rebuild the state, feed *sink*, truncate a torn tail. On return the journal can be appended to at `end`.

    Keeps updates of records above *publish_below* in `waiting`, unless a checkpoint holds them. Leaves records that end
    above *fold_below* to the next start, *sink* too, though all are durable on return; the checkpoint may hold more.
    Raises UnfinishedSync, CorruptJournal (nothing was changed then), InvalidRecord, StorageFailed.
    """
    finish_truncation(segments)
    refuse_unfinished_sync(segments.storage)
    number, state, damaged = restore(segments, sink)
    start, scanner = state.lsn, Scanner(segments, state.lsn)
    entries: Iterable[ScannedRecord] = scanner
    if fold_below is not None:
        entries = takewhile(lambda entry: entry.header.end <= fold_below, scanner)
    _, count, waiting = replay_into(sink, entries, RecordFold(state), start, publish_below)
    if fold_below is not None:
        deque(scanner, maxlen=0)  # up to where the records end
    end = clear_torn_tail(segments, scanner)
    return Recovered(state, end.end, end, number, max(end.end - start, 0), count, damaged, waiting)


def restore(segments: Segments, sink: IndexSink) -> tuple[int, JournalState, list[str]]:
    """Restore the newest checkpoint and *sink* to it; returns its number, its state, and a line for each damaged one.

    Changes nothing on disk.
    """
    number, content, damaged = read_newest(segments.storage)
    checkpoint, state = content or (None, JournalState(segments.start))
    check_reaches(segments, checkpoint)
    sink.restore(checkpoint.partitions if checkpoint else [])
    trim(sink, state)
    for line in damaged:
        log.warning("damaged, passed over %s", line)
    return number, state, damaged


def clear_torn_tail(segments: Segments, scanner: Scanner) -> ScanEnd:
    """Judge the end of *scanner*'s records, and clear a torn tail. The rest is durable on return. Raises
    CorruptJournal, StorageFailed."""
    end = scanner.judge_end()
    if end.verdict is EndVerdict.CORRUPT:
        raise CorruptJournal(end.end, end.next_valid_lsn, end.reason, segments.storage.path)
    if end.trailing_garbage:
        log.warning("torn tail truncated lsn=%d reason=%s", end.end, end.reason)
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
