"""From a directory to a state: newest valid checkpoint, then a fold over the records after it.

Cost follows what came after the checkpoint. The torn tail is cut here, rot is refused here. Nothing is changed
on disk before the verdict is in.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from journal.bootstrap import refuse_unfinished
from journal.checkpoint import Checkpoint, PartitionMark, read_newest
from journal.copy_mark import remove_mark
from journal.cutting import finish_cut
from journal.errors import RottenJournal
from journal.fence import LSN_MAX
from journal.fold import JournalState, apply
from journal.frame import Lsn, Offset
from journal.open_journal import make_end_durable
from journal.publications import Publication
from journal.record_codec import decode
from journal.records import PartitionName
from journal.replaying import Fold, Received
from journal.scan import ScanEnd, Scanner, Verdict
from journal.segments import SEGMENT_HEADER_BYTES, Segments
from journal.watermark import lower_watermark

log = logging.getLogger(__name__)


class PublicationSink(Protocol):
    """Who keeps the partition indexes: told what a checkpoint covers, then of every publication in order."""

    def restore(self, marks: list[PartitionMark]) -> None:
        """Go back to what the checkpoint knew. An index that is lost or damaged is the sink's to rebuild, later."""

    def publish(self, publication: Publication) -> None:
        """Add one index entry."""

    def trim(self, name: PartitionName, start: Offset) -> None:
        """Forget what lies below *start*: the partition begins there now. It may be there already, or unknown."""


class NoSink:
    """For readers that keep no index."""

    def restore(self, marks: list[PartitionMark]) -> None:
        del marks

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
    damaged: list[str] = field(default_factory=list)  # checkpoints that were passed over
    waiting: list[Received] = field(default_factory=list)  # not told to the sink: nobody knows that it was acknowledged


def replay(scanner: Scanner, state: JournalState, publish: Callable[[Publication], None]) -> int:
    """Fold every record that *scanner* yields into *state*; returns how many. Raises InvalidRecord."""
    count = 0
    for entry in scanner:
        for publication in apply(state, entry.header, decode(entry.header, entry.meta)):
            publish(publication)
        count += 1
    return count


class Replayed(NamedTuple):
    """Result of replaying. *end*: of the last record. *waiting*: what records above a limit say, in order.

    *is_trimmed*: the sink knows where partitions begin; it was told before the first record above the limit.
    """

    end: Lsn
    records: int
    waiting: list[Received]
    is_trimmed: bool


def replay_to(scanner: Scanner, fold: Fold, sink: PublicationSink, publish_below: Lsn) -> Replayed:
    """Add every record that *scanner* yields, and tell *sink* what those below *publish_below* say.

    Raises InvalidRecord.
    """
    end, count, waiting, is_trimmed = scanner.end, 0, list[Received](), False
    for entry in scanner:
        if not is_trimmed and entry.header.end > publish_below:
            trim(sink, fold.state)
            is_trimmed = True
        said = fold.add(entry.header, decode(entry.header, entry.meta))
        end, count = entry.header.end, count + 1
        if said is not None and said.lsn > publish_below:
            waiting.append(said)
        elif said is not None:
            for publication in said.publications:
                sink.publish(publication)
    return Replayed(end, count, waiting, is_trimmed)


def recover(segments: Segments, sink: PublicationSink, publish_below: Lsn = LSN_MAX) -> Recovered:
    """Rebuild the state, feed *sink*, cut a torn tail. On return the journal can be appended to at `end`.

    What records above *publish_below* say is kept in `waiting`, unless a checkpoint holds it. Raises UnfinishedCopy,
    RottenJournal (nothing was changed then), InvalidRecord, StorageFailed.
    """
    finish_cut(segments)
    refuse_unfinished(segments.storage)
    number, state, damaged = restore(segments, sink)
    start = state.lsn
    scanner = Scanner(segments, start)
    _, count, waiting, is_trimmed = replay_to(scanner, Fold(state, None), sink, publish_below)
    end = cut_tail(segments, scanner)
    if not is_trimmed:
        trim(sink, state)
    return Recovered(state, end.end, end, number, max(end.end - start, 0), count, damaged, waiting)


def recover_below(segments: Segments, sink: PublicationSink, lsn: int) -> Recovered:
    """Recover, but leave out records that end above *lsn*, for *sink*, too: the next start adds them.

    The whole journal is durable on return all the same. A checkpoint that holds more than *lsn* is no reason to fail.
    """
    finish_cut(segments)
    refuse_unfinished(segments.storage)
    number, state, damaged = restore(segments, sink)
    start, scanner, count = state.lsn, Scanner(segments, state.lsn), 0
    for entry in scanner:
        if entry.header.end <= lsn:
            count += 1
            for publication in apply(state, entry.header, decode(entry.header, entry.meta)):
                sink.publish(publication)
    end = cut_tail(segments, scanner)
    trim(sink, state)
    return Recovered(state, end.end, end, number, state.lsn - start, count, damaged)


def restore(segments: Segments, sink: PublicationSink) -> tuple[int, JournalState, list[str]]:
    """The newest checkpoint, *sink* as of it, and a line for each one that was damaged. Changes nothing on disk."""
    number, content, damaged = read_newest(segments.storage)
    checkpoint, state = content or (None, JournalState(segments.start))
    check_reaches(segments, checkpoint)
    sink.restore(checkpoint.partitions if checkpoint else [])
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
    make_end_durable(segments, end.durable, end.end, is_clear=not end.dirty)
    remove_mark(segments.storage)
    lower_watermark(segments.storage, end.end)
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
