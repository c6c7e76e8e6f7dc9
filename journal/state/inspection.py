"""Reads a journal from outside, dead or live: every record, and its description.

Works on Segments opened for reading and never writes. A live writer is ahead of every reader: the result is a recent
state.
"""

import errno
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, assert_never

from journal.errors import InvalidContent, InvalidRecord, StorageFailed
from journal.records.codec import decode
from journal.records.dead_letters import DeadLetter, describe_dead_letter
from journal.records.header import Lsn, Offset, RecordHeader, record_type_name
from journal.records.ledger import LedgerEntry
from journal.records.record import (
    CheckpointWritten,
    Commit,
    Decision,
    DroppedRecords,
    Epoch,
    Forget,
    Heuristic,
    Pad,
    PartitionName,
    Prepare,
    PutBatch,
    PutRecord,
    Record,
    Relocate,
    Rollback,
    TxPut,
)
from journal.records.topic_changes import TopicChange, describe_change
from journal.records.xid import BranchKey
from journal.state.checkpoint import Checkpoint, checkpoint_numbers, decode_checkpoint
from journal.wal.scan import EndVerdict, ScanEnd, ScannedRecord, Scanner, record_at
from journal.wal.segments import SEGMENT_HEADER_BYTES, Segments
from journal.wal.storage import Storage


class StoredMessages(NamedTuple):
    """Messages of one record in one partition. *base* None: they have no offsets yet."""

    name: PartitionName
    base: Offset | None
    bytes: int
    messages: int


@dataclass(frozen=True, slots=True)
class RecordSummary:
    """One record for people and scripts. *bytes*: of messages; *note*: what no other field holds."""

    lsn: Lsn
    kind: str
    key: BranchKey | None
    branch_lsn: Lsn | None
    places: tuple[StoredMessages, ...]
    bytes: int
    time_ms: int
    epoch: int
    incarnation: int
    durable: Lsn
    note: str


class _Summary(NamedTuple):
    """The fields of RecordSummary that depend on the record's type."""

    key: BranchKey | None = None
    branch_lsn: Lsn | None = None
    places: tuple[StoredMessages, ...] = ()
    note: str = ""


def describe(entry: ScannedRecord) -> RecordSummary:
    """Describe *entry* as a line, also if it has valid checksums and cannot be decoded."""
    header = entry.header
    try:
        said = _summarize(header, decode(header, entry.meta))
    except InvalidRecord as error:
        said = _Summary(note=str(error))
    return RecordSummary(
        header.lsn,
        record_type_name(header.record_type),
        said.key,
        said.branch_lsn,
        said.places,
        sum(place.bytes for place in said.places),
        header.time_ms,
        header.epoch,
        header.incarnation,
        header.durable,
        said.note,
    )


def _summarize(header: RecordHeader, record: Record) -> _Summary:
    match record:
        case PutRecord(name, base, count):
            return _Summary(places=(StoredMessages(name, base, header.body_bytes, count),))
        case PutBatch(name, base, count, first_id, (producer, number)):
            place = StoredMessages(name, base, header.body_bytes, count)
            return _Summary(places=(place,), note=f"producer={producer} batch={number} first_id={first_id}")
        case TxPut(key, branch_lsn, name, count):
            place = StoredMessages(name, None, header.body_bytes, count)
            return _Summary(key, branch_lsn or header.lsn, (place,), "" if branch_lsn else "begins the branch")
        case Prepare(key, branch_lsn, messages, size):
            return _Summary(key, branch_lsn, (), f"messages={messages} bytes={size}")
        case Commit(key, branch_lsn, one_phase, assignments):
            places = tuple(
                StoredMessages(assignment.name, assignment.base, assignment.bytes, assignment.count)
                for assignment in assignments
            )
            return _Summary(key, branch_lsn, places, "one phase" if one_phase else "two phases")
        case Rollback(key, branch_lsn, reason):
            return _Summary(key, branch_lsn, (), reason.name.lower().replace("_", " "))
        case Heuristic(key, branch_lsn, decision, _, messages, size, who, why):
            note = f"{decision.name.lower()} {messages} messages of {size} bytes by {who}: {why}"
            return _Summary(key, branch_lsn, (), note)
        case LedgerEntry(key, disagreement, who, why, evidence):
            return _Summary(key, note=f"{disagreement.name.lower()} by {who}: {why}: {evidence}")
        case Epoch(_, _, version):
            return _Summary(note=f"opened by metaq {version}")
        case CheckpointWritten(number, lsn):
            return _Summary(note=f"checkpoint.{number} holds what is below LSN {lsn}")
        case Decision(key, participants):
            return _Summary(key, note=f"to commit: {participants}")
        case Forget(key):
            return _Summary(key)
        case TopicChange(topic=topic):
            return _Summary(note=f"{topic}: {describe_change(record)}")
        case Relocate(key, branch_lsn, name, first, _, extents):
            place = StoredMessages(name, None, header.body_bytes, sum(extent.messages for extent in extents))
            last = first + len(extents) - 1
            note = f"carries runs {first} to {last} from LSN {min(extent.lsn for extent in extents)} on"
            return _Summary(key, branch_lsn, (place,), note)
        case DroppedRecords(ends) if ends:
            return _Summary(note="partitions go on: " + ", ".join(f"{one.name}@{one.end}" for one in ends))
        case DroppedRecords():
            return _Summary(note=f"{header.bytes_total} bytes did not read back and were dropped by a repair")
        case DeadLetter():
            return _Summary(note=describe_dead_letter(record))
        case Pad():
            return _Summary()
    assert_never(record)


def open_beside_writer(storage: Storage, segment_bytes: int) -> Segments:
    """Open segments of any identity for reading; again if their writer, who may be alive, deletes one meanwhile. Raises
    as Segments.open."""
    while True:
        before = storage.names()
        try:
            return Segments.open(storage, None, segment_bytes, writable=False)
        except StorageFailed as error:
            if error.errno != errno.ENOENT or storage.names() == before:
                raise


class RecordReader:
    """Iterates over every record from *scanner*'s position; `end` then tells how they end.

    Confirms a verdict other than WHOLE by a second look: a live writer may have completed the record meanwhile; and a
    later one, seen in the first look, can only prove an fsync of bytes that the second look then sees.
    """

    def __init__(self, scanner: Scanner) -> None:
        self._scanner = scanner
        self._end: ScanEnd | None = None

    def __iter__(self) -> Iterator[ScannedRecord]:
        scanner = self._scanner
        yield from scanner
        while (end := scanner.judge_end()).verdict is not EndVerdict.WHOLE:
            stopped = scanner.end
            yield from scanner
            if scanner.end == stopped:
                break
        self._end = end

    @property
    def end(self) -> ScanEnd:
        assert self._end is not None, "iterate first"
        return self._end


def scanner_from(segments: Segments, lsn: int) -> Scanner:
    """Return a scanner whose first record is the first at or after *lsn*, as far as the segment reads. Raises KeyError.

    If a record begins at *lsn*, the bytes before it do not matter: this is the way to continue after corruption.
    """
    base, _ = segments.locate(max(lsn, segments.start))
    if lsn >= base + SEGMENT_HEADER_BYTES and isinstance(record_at(segments, lsn), RecordHeader):
        return Scanner(segments, lsn)
    scanner = Scanner(segments, base + SEGMENT_HEADER_BYTES)
    for entry in scanner:
        if entry.header.lsn >= lsn:
            return Scanner(segments, entry.header.lsn)
    return scanner


def read_checkpoints(storage: Storage) -> dict[int, Checkpoint | InvalidContent]:
    """Read every checkpoint file: its content, or the reason why it is unreadable, by rising number.

    Call it before the segments are opened: every record below their LSNs is then certainly there. Omits a file that a
    live broker deletes meanwhile.
    """
    found: dict[int, Checkpoint | InvalidContent] = {}
    for number in checkpoint_numbers(storage):
        name = f"checkpoint.{number}"
        try:
            found[number] = decode_checkpoint(storage.read(name))
        except InvalidContent as error:
            found[number] = error
        except StorageFailed as error:
            if name in storage.names():
                found[number] = InvalidContent(str(error))
    return found
