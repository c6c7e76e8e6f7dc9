"""From a directory to a state: newest valid checkpoint, then a fold over the records after it.

Cost follows what came after the checkpoint. The torn tail is cut here, rot is refused here. Nothing is changed
on disk before the verdict is in.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from journal.bootstrap import refuse_unfinished
from journal.checkpoint import Checkpoint, PartitionMark, read_newest
from journal.copy_mark import remove_mark
from journal.cutting import finish_cut
from journal.errors import RottenJournal
from journal.fold import JournalState, apply
from journal.frame import Lsn, Offset
from journal.history import history, without_gaps
from journal.open_journal import clear_beyond
from journal.publications import Publication
from journal.record_codec import decode
from journal.records import PartitionName
from journal.scan import ScanEnd, Scanner, Verdict
from journal.segments import SEGMENT_HEADER_BYTES, Segments

log = logging.getLogger(__name__)


class PublicationSink(Protocol):
    """Who keeps the partition indexes: told what a checkpoint covers, then of every publication in order."""

    def restore(self, marks: list[PartitionMark]) -> set[PartitionName]:
        """Go back to what the checkpoint knew. Returns the partitions whose index is lost or damaged."""

    def publish(self, publication: Publication) -> None:
        """Add one index entry."""

    def trim(self, name: PartitionName, start: Offset) -> None:
        """Forget what lies below *start*: the partition begins there now. It may be there already, or unknown."""


class NoSink:
    """For readers that keep no index."""

    def restore(self, marks: list[PartitionMark]) -> set[PartitionName]:
        del marks
        return set()

    def publish(self, publication: Publication) -> None:
        del publication

    def trim(self, name: PartitionName, start: Offset) -> None:
        del name, start


@dataclass(slots=True)
class Recovered:
    """What recovery found. *end*: where appending goes on."""

    state: JournalState
    end: Lsn
    scan: ScanEnd
    checkpoint_number: int
    replayed_bytes: int
    replayed_records: int
    damaged: list[str] = field(default_factory=list)  # checkpoints and indexes that were passed over or rebuilt


def replay(scanner: Scanner, state: JournalState, publish: Callable[[Publication], None]) -> int:
    """Fold every record that *scanner* yields into *state*; returns how many. Raises InvalidRecord."""
    count = 0
    for entry in scanner:
        for publication in apply(state, entry.header, decode(entry.header, entry.meta)):
            publish(publication)
        count += 1
    return count


def recover(segments: Segments, sink: PublicationSink) -> Recovered:
    """Rebuild the state, feed *sink*, cut a torn tail. On return the journal can be appended to at `end`.

    Raises UnfinishedCopy, RottenJournal (nothing was changed then), InvalidRecord, StorageFailed.
    """
    finish_cut(segments)
    refuse_unfinished(segments.storage)
    number, state, damaged = restore(segments, sink)
    start = state.lsn
    scanner = Scanner(segments, start)
    count = replay(scanner, state, sink.publish)
    end = cut_tail(segments, scanner)
    trim(sink, state)
    return Recovered(state, end.end, end, number, max(end.end - start, 0), count, damaged)


def restore(segments: Segments, sink: PublicationSink) -> tuple[int, JournalState, list[str]]:
    """The newest checkpoint, *sink* as of it, and a line for each thing that was damaged. Changes nothing on disk."""
    number, content, damaged = read_newest(segments.storage)
    checkpoint, state = content or (None, JournalState(segments.start))
    check_reaches(segments, checkpoint)
    lost = sink.restore(checkpoint.partitions if checkpoint else [])
    for name in sorted(lost):
        damaged.append(f"index of {name}: rebuilt from the journal")
    spans = {name: (state.spans[name].start, state.spans[name].end) for name in lost}
    for publication in without_gaps(history(segments, state.lsn, lost), spans):
        sink.publish(publication)
    for line in damaged:
        log.warning("damaged, passed over %s", line)
    return number, state, damaged


def cut_tail(segments: Segments, scanner: Scanner) -> ScanEnd:
    """Judge the end that *scanner* came to, and clear what is torn. What is left is durable.

    Raises RottenJournal, StorageFailed.
    """
    end = scanner.finish()
    if end.verdict is Verdict.ROTTEN:
        raise RottenJournal(end.end, end.resumes, end.reason, segments.storage.path)
    if end.dirty:
        log.warning("torn tail cut lsn=%d reason=%s", end.end, end.reason)
    clear_beyond(segments, end.end)
    remove_mark(segments.storage)
    return end


def trim(sink: PublicationSink, state: JournalState) -> None:
    """Tell *sink* where partitions begin."""
    for name, span in state.spans.items():
        if span.start:
            sink.trim(name, span.start)


def check_reaches(segments: Segments, checkpoint: Checkpoint | None) -> None:
    """Raises RottenJournal unless the segments go on where *checkpoint* ends."""
    path = segments.storage.path
    if checkpoint is None:
        if segments.start != SEGMENT_HEADER_BYTES:
            raise RottenJournal(0, segments.start, "its records were dropped, and no checkpoint reads back", path)
    elif checkpoint.lsn < segments.start:
        raise RottenJournal(checkpoint.lsn, segments.start, "no segment, and the newest checkpoint ends there", path)
    elif checkpoint.lsn > segments.end:
        raise RottenJournal(segments.end, None, f"no segment, but a checkpoint up to LSN {checkpoint.lsn}", path)
