"""Reading a journal from outside, dead or over a live writer's shoulder: every record, and what it says in words.

Works on Segments opened for reading and never writes. A live writer is ahead of every reader: what is read here was
there when it was looked at.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, assert_never

from journal.checkpoint import Checkpoint, checkpoint_numbers, decode_checkpoint
from journal.errors import InvalidRecord, StorageFailed
from journal.frame import Header, Lsn, Offset, kind_name
from journal.record_codec import decode
from journal.records import (
    Carry,
    CheckpointMark,
    Commit,
    Decision,
    Epoch,
    Forget,
    Heuristic,
    Lost,
    Pad,
    PartitionName,
    Prepare,
    Put,
    PutBatch,
    Record,
    Rollback,
    TxPut,
)
from journal.refusals import Refused, describe_refused
from journal.scan import Entry, ScanEnd, Scanner, Verdict, record_at
from journal.segments import SEGMENT_HEADER_BYTES, Segments
from journal.storage import Storage
from journal.topic_changes import TopicChange, describe_change
from journal.xid import BranchKey


class Place(NamedTuple):
    """Messages of one record in one partition. *base* None: they have no offsets yet."""

    name: PartitionName
    base: Offset | None
    bytes: int
    messages: int


@dataclass(frozen=True, slots=True)
class Line:
    """One record for people and scripts. *bytes*: of messages; *note*: what no other member says."""

    lsn: Lsn
    kind: str
    key: BranchKey | None
    branch_lsn: Lsn | None
    places: tuple[Place, ...]
    bytes: int
    time_ms: int
    epoch: int
    incarnation: int
    durable: Lsn
    note: str


class _Said(NamedTuple):
    """What a record says, by the members of Line that depend on its kind."""

    key: BranchKey | None = None
    branch_lsn: Lsn | None = None
    places: tuple[Place, ...] = ()
    note: str = ""


def describe(entry: Entry) -> Line:
    """*entry* as a line. A record that passes its checksums and cannot be read is described as such."""
    header = entry.header
    try:
        said = _said(header, decode(header, entry.meta))
    except InvalidRecord as error:
        said = _Said(note=str(error))
    return Line(
        header.lsn,
        kind_name(header.kind),
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


def _said(header: Header, record: Record) -> _Said:
    match record:
        case Put(name, base, count):
            return _Said(places=(Place(name, base, header.body_bytes, count),))
        case PutBatch(name, base, count, first_id, (producer, number)):
            place = Place(name, base, header.body_bytes, count)
            return _Said(places=(place,), note=f"producer={producer} batch={number} first_id={first_id}")
        case TxPut(key, branch_lsn, name, count):
            place = Place(name, None, header.body_bytes, count)
            return _Said(key, branch_lsn or header.lsn, (place,), "" if branch_lsn else "begins the branch")
        case Prepare(key, branch_lsn, messages, size):
            return _Said(key, branch_lsn, (), f"messages={messages} bytes={size}")
        case Commit(key, branch_lsn, one_phase, takes):
            places = tuple(Place(take.name, take.base, take.bytes, take.count) for take in takes)
            return _Said(key, branch_lsn, places, "one phase" if one_phase else "two phases")
        case Rollback(key, branch_lsn, reason):
            return _Said(key, branch_lsn, (), reason.name.lower().replace("_", " "))
        case Heuristic(key, branch_lsn, decision, _, messages, size, who, why):
            note = f"{decision.name.lower()} {messages} messages of {size} bytes by {who}: {why}"
            return _Said(key, branch_lsn, (), note)
        case Epoch(_, _, version):
            return _Said(note=f"opened by metaq {version}")
        case CheckpointMark(number, lsn):
            return _Said(note=f"checkpoint.{number} holds what is below LSN {lsn}")
        case Decision(key, participants):
            return _Said(key, note=f"to commit: {participants}")
        case Forget(key):
            return _Said(key)
        case TopicChange(topic=topic):
            return _Said(note=f"{topic}: {describe_change(record)}")
        case Carry(key, branch_lsn, name, first, _, runs):
            place = Place(name, None, header.body_bytes, sum(run.messages for run in runs))
            last = first + len(runs) - 1
            note = f"carries runs {first} to {last} from LSN {min(run.lsn for run in runs)} on"
            return _Said(key, branch_lsn, (place,), note)
        case Lost(ends) if ends:
            return _Said(note="partitions go on: " + ", ".join(f"{one.name}@{one.end}" for one in ends))
        case Lost():
            return _Said(note=f"{header.bytes_total} bytes did not read back and were dropped by a repair")
        case Refused():
            return _Said(note=describe_refused(record))
        case Pad():
            return _Said()
    assert_never(record)


class Reading:
    """Iterates over every record from where *scanner* stands; `end` afterwards tells how they end.

    A verdict other than WHOLE is only believed on a second look. A live writer may have completed the record in
    the meantime; and a later one, seen in the first look, can only prove an fsync of bytes that the second look
    then sees.
    """

    def __init__(self, scanner: Scanner) -> None:
        self._scanner = scanner
        self._end: ScanEnd | None = None

    def __iter__(self) -> Iterator[Entry]:
        scanner = self._scanner
        yield from scanner
        while (end := scanner.finish()).verdict is not Verdict.WHOLE:
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
    """A scanner whose first record is the first one at or after *lsn*, as far as the segment reads. Raises KeyError.

    When a record begins at *lsn* itself, what stands before it does not matter: that is how to read on behind rot.
    """
    base, _ = segments.locate(max(lsn, segments.start))
    if lsn >= base + SEGMENT_HEADER_BYTES and isinstance(record_at(segments, lsn), Header):
        return Scanner(segments, lsn)
    scanner = Scanner(segments, base + SEGMENT_HEADER_BYTES)
    for entry in scanner:
        if entry.header.lsn >= lsn:
            return Scanner(segments, entry.header.lsn)
    return scanner


def read_checkpoints(storage: Storage) -> dict[int, Checkpoint | str]:
    """Every checkpoint file by number, rising: its content, or why it has none, as where the disk does not read it.

    Read them before the segments are opened: every record below their LSNs is then sure to be there. A file that a
    live broker deletes in between is left out.
    """
    found: dict[int, Checkpoint | str] = {}
    for number in checkpoint_numbers(storage):
        name = f"checkpoint.{number}"
        try:
            found[number] = decode_checkpoint(storage.read(name))
        except StorageFailed as error:
            if name in storage.names():
                found[number] = str(error)
    return found
