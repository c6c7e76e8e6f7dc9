"""Checkpoint files: the fold of every record below an LSN, so that recovery reads only what came after.

`checkpoint.<n>` holds two lines: the CRC-32 of the second in eight hexadecimal digits, and the state as JSON. It is
written atomically, and the newest three are kept: a damaged one only costs a longer replay. It is complete, and
needed only once retention has dropped the beginning of the journal.

There may be a hundred thousand branches. Their entries have no reference cycles and are hidden from the garbage
collector (gc=False), which would otherwise traverse the whole heap while they are made.
"""

import re
from itertools import islice, pairwise, takewhile
from typing import Any, Final, Literal, NamedTuple

import msgspec

from journal.checksum import crc32
from journal.errors import InvalidContent, StorageFailed
from journal.records.epoch_history import WriterEpoch
from journal.records.extents import Extent
from journal.records.header import Lsn, Natural, Offset
from journal.records.heuristics import HeuristicDecision, HeuristicEnd
from journal.records.ledger import Finding
from journal.records.outcomes import FinishedBranch
from journal.records.producer_state import ProducerKey, StoredBatch
from journal.records.record import NO_BRANCH, PartitionName
from journal.records.states import BranchState
from journal.records.topic_changes import TopicChange
from journal.records.xid import XaKey, parse_key
from journal.state.extent_entries import ENTRIES_AT_ONCE, ExtentEntries, ExtentEntry, extent_entries
from journal.state.journal_state import Branch, JournalState, OffsetRange, UnresolvedLoss
from journal.wal.storage import Storage

CHECKPOINTS_KEPT: Final = 3
FORMAT: Final = 1
_NO_EXTENTS = b'"runs":[]'
_ITEMS_AT_ONCE = 1_000  # branches or smaller items: a fraction of a millisecond
_CRC_BYTES = len(b"01234567\n")
_NAME = re.compile(r"checkpoint\.(\d{1,18})", re.ASCII)


class IndexFileEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Part of an index file that the checkpoint covers: its first *entries*, and the CRC-32 of their last chunk."""

    entries: Natural
    crc: Natural


class PartitionEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One partition: offsets [start, end), and its index file if the writer of the checkpoint keeps one."""

    topic: str
    partition: Natural
    start: Natural
    end: Natural
    index: IndexFileEntry | None = None


class BranchEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One live branch, with everything that a commit would publish."""

    key: str
    state: Literal["IN_USE", "PREPARED"]
    first_lsn: Natural
    began_ms: Natural
    prepared_ms: Natural
    extents: tuple[ExtentEntry, ...] = msgspec.field(name="runs")  # or ExtentEntries, which stand for a tuple
    decision: HeuristicDecision | None = None  # an operator's, carried out by the next record about the branch


class ProducerEntry(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The last numbered batches of one producer to one partition, oldest first."""

    producer: str
    topic: str
    partition: Natural
    stored: tuple[StoredBatch, ...]


class WriterEpochEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One open of the journal: epoch, incarnation, and the end of the last record before it."""

    epoch: Natural
    incarnation: Natural
    lsn: Natural


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The content of a checkpoint file. *lsn*: replay starts here."""

    format: Natural
    lsn: Natural
    epoch: Natural
    incarnation: Natural
    time_ms: Natural
    partitions: list[PartitionEntry]
    branches: list[BranchEntry]
    batches: list[ProducerEntry] = []  # by last use
    topics: list[TopicChange] = []  # run-time decisions, by topic
    outcomes: list[FinishedBranch] = []  # of XA branches, the oldest first
    heuristics: list[HeuristicEnd] = []  # branches ended by operators and not forgotten, the oldest first
    ledger: list[Finding] = []  # findings about transactions, not forgotten, the oldest first
    # Writer epochs, the oldest first; an older metaq did not store them.
    epoch_history: list[WriterEpochEntry] = msgspec.field(name="lives", default_factory=list)
    lost: Natural = 0  # a repair dropped records below this LSN, and branches that had messages there; 0: none


def checkpoint_of(
    state: JournalState,
    index: dict[PartitionName, IndexFileEntry],
    branches: list[BranchEntry] | None = None,
    batches: list[ProducerEntry] | None = None,
) -> Checkpoint:
    """Return a checkpoint of *state* as it is now; *index*: the index files, of partitions that have one.

    *branches* and *batches* replace those of *state*.
    """
    return Checkpoint(
        format=FORMAT,
        lsn=state.lsn,
        epoch=state.epoch,
        incarnation=state.incarnation,
        time_ms=state.time_ms,
        partitions=[
            PartitionEntry(
                topic=name.topic,
                partition=name.partition,
                start=offset_range.start,
                end=offset_range.end,
                index=index.get(name),
            )
            for name, offset_range in sorted(state.offset_ranges.items())
        ],
        branches=[branch_entry(branch) for branch in state.branches.values()] if branches is None else branches,
        batches=[producer_entry(*each) for each in state.producers] if batches is None else batches,
        topics=[change for _, change in sorted(state.topics.items())],
        outcomes=list(state.outcomes),
        heuristics=list(state.heuristics.values()),
        ledger=list(state.ledger),
        epoch_history=[WriterEpochEntry(*writer_epoch) for writer_epoch in state.epoch_history],
    )


def state_of(checkpoint: Checkpoint) -> JournalState:
    """Return the state in a checkpoint: the inverse of `checkpoint_of`. Raises ValueError if it is impossible."""
    state = JournalState(Lsn(checkpoint.lsn), checkpoint.epoch, checkpoint.incarnation, checkpoint.time_ms)
    if checkpoint.lost:
        state.unresolved_loss = UnresolvedLoss(Lsn(checkpoint.lost))
    for entry in checkpoint.partitions:
        name = PartitionName(entry.topic, entry.partition)
        if entry.start > entry.end or name in state.offset_ranges:
            raise ValueError(f"{name} named twice, or from {entry.start} to {entry.end}")
        state.offset_ranges[name] = OffsetRange(Offset(entry.start), Offset(entry.end))
    names: dict[PartitionName, PartitionName] = {}  # one object for the extents of all branches
    for live in checkpoint.branches:
        if not live.extents or live.first_lsn in state.branches:
            raise ValueError(f"a branch that began at LSN {live.first_lsn} named twice, or without messages")
        branch = Branch(
            parse_key(live.key), Lsn(live.first_lsn), live.began_ms, BranchState[live.state], live.prepared_ms
        )
        branch.decision = live.decision
        if live.decision is not None and (live.decision is HeuristicDecision.COMPLETE or live.state != "PREPARED"):
            raise ValueError(f"a live branch {live.key} in state {live.state}, decided as {live.decision.name}")
        for extent in live.extents:
            name = PartitionName(extent.topic, extent.partition)
            extent_of = Extent(Lsn(extent.lsn), extent.bytes, extent.messages, extent.time_ms)
            branch.add(names.setdefault(name, name), extent_of)
        state.branches[branch.first_lsn] = branch
        state.branches_accounted_bytes += branch.accounted_bytes
    for batch in checkpoint.batches:
        for stored in batch.stored:
            state.producers.add(batch.producer, batch.topic, batch.partition, stored)
    for change in checkpoint.topics:
        if change.says_nothing or change.topic in state.topics:
            raise ValueError(f"topic {change.topic!r} named twice, or for nothing")
        state.topics[change.topic] = change
    for ended in checkpoint.outcomes:
        if not isinstance(parse_key(ended.key), XaKey):
            raise ValueError(f"an outcome of {ended.key!r}, which is no XA branch")
        state.outcomes.add(ended)
    for decided in checkpoint.heuristics:
        key = parse_key(decided.key)
        if not isinstance(key, XaKey) or key in state.heuristics:
            raise ValueError(f"a decision about {decided.key!r}, which is no XA branch or named twice")
        state.heuristics[key] = decided
    for finding in checkpoint.ledger:
        if not isinstance(parse_key(finding.key), XaKey) or state.ledger.find(finding.key) is not None:
            raise ValueError(f"a finding about {finding.key!r}, which is no XA branch or named twice")
        state.ledger.add(finding)
    state.epoch_history = [
        WriterEpoch(entry.epoch, entry.incarnation, Lsn(entry.lsn)) for entry in checkpoint.epoch_history
    ]
    if not state.epoch_history and state.incarnation:
        # An older metaq's file. Copies that begin with the same one share that writer epoch, of unknown beginning.
        state.epoch_history = [WriterEpoch(state.epoch, state.incarnation, NO_BRANCH)]
    for earlier, later in pairwise(state.epoch_history):
        if earlier[:2] >= later[:2] or earlier.lsn > later.lsn:
            raise ValueError(f"{later} after {earlier}")
    if state.epoch_history and (
        state.epoch_history[-1][:2] > (state.epoch, state.incarnation) or state.epoch_history[-1].lsn > state.lsn
    ):
        raise ValueError(f"{state.epoch_history[-1]} is not the writer epoch that ends at LSN {state.lsn}")
    return state


def branch_entry(branch: Branch) -> BranchEntry:
    """Return the entry of one live branch as it is now."""
    return BranchEntry(
        key=str(branch.key),
        state="PREPARED" if branch.state is BranchState.PREPARED else "IN_USE",  # the only states of a live branch
        first_lsn=branch.first_lsn,
        began_ms=branch.began_ms,
        prepared_ms=branch.prepared_ms,
        extents=extent_entries(branch.extents, branch.messages),
        decision=branch.decision,
    )


def producer_entry(window: ProducerKey, stored: tuple[StoredBatch, ...]) -> ProducerEntry:
    """Return the entry of the batches remembered of one producer and partition."""
    producer, topic, partition = window
    return ProducerEntry(producer=producer, topic=topic, partition=partition, stored=stored)


def encode_checkpoint(checkpoint: Checkpoint) -> bytearray:
    """Return the file's content. Encodes lists some items at a time, so that other threads get to run, and into one
    buffer: a hundred thousand branches take tens of megabytes."""
    raw = bytearray(_CRC_BYTES)
    raw += b"{"
    for field in msgspec.structs.fields(checkpoint):
        value = getattr(checkpoint, field.name)
        if isinstance(field.default_factory, type) and not value:
            continue  # an empty list
        if field.default is not msgspec.NODEFAULT and value == field.default:
            continue
        raw += b'%b"%b":' % (b"," if len(raw) > _CRC_BYTES + 1 else b"", field.encode_name.encode())
        if isinstance(value, list):
            _encode_list(raw, value)
        else:
            raw += msgspec.json.encode(value)
    raw += b"}"
    with memoryview(raw) as view:
        view[:_CRC_BYTES] = b"%08x\n" % crc32(view[_CRC_BYTES:])
    raw += b"\n"
    return raw


def _encode_list(raw: bytearray, items: list[Any]) -> None:
    """Append *items*, some at a time; of a large branch, its extents some at a time."""
    raw += b"["
    at = 0
    while at < len(items):
        raw += b"," if at else b""
        if piece := list(takewhile(_is_small, items[at : at + _ITEMS_AT_ONCE])):
            raw += memoryview(msgspec.json.encode(piece))[1:-1]
            at += len(piece)
        else:
            _encode_large(raw, items[at])
            at += 1
    raw += b"]"


def _is_small(item: object) -> bool:
    return not (isinstance(item, BranchEntry) and isinstance(item.extents, ExtentEntries))


def _encode_large(raw: bytearray, entry: BranchEntry) -> None:
    """Append the entry of one branch, its extents some at a time."""
    head, found, tail = msgspec.json.encode(msgspec.structs.replace(entry, extents=())).partition(_NO_EXTENTS)
    assert found  # as above
    raw += head
    raw += _NO_EXTENTS[:-1]
    extents, comma = iter(entry.extents), b""
    while piece := list(islice(extents, ENTRIES_AT_ONCE)):
        raw += comma
        raw += memoryview(msgspec.json.encode(piece))[1:-1]
        comma = b","
    raw += b"]"
    raw += tail


def decode_checkpoint(raw: bytes | bytearray) -> Checkpoint:
    """Decode a checkpoint. Raises InvalidContent."""
    return _decode(raw)[0]


def _decode(raw: bytes | bytearray) -> tuple[Checkpoint, JournalState]:
    """Decode a checkpoint and its state: making that is the check, and most of the cost. Raises InvalidContent."""
    crc, _, body = raw.removesuffix(b"\n").partition(b"\n")
    if crc != f"{crc32(body):08x}".encode():
        raise InvalidContent("checksum")
    try:
        checkpoint = msgspec.json.decode(body, type=Checkpoint)
        state = state_of(checkpoint)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:  # InvalidXid is a ValueError
        raise InvalidContent(f"{type(error).__name__}: {error}") from error
    if checkpoint.format != FORMAT:
        raise InvalidContent(f"format {checkpoint.format}, this metaq reads {FORMAT}")
    return checkpoint, state


def checkpoint_numbers(storage: Storage) -> list[int]:
    """Return the numbers of the checkpoint files in the directory, rising."""
    return sorted(int(match[1]) for name in storage.names() if (match := _NAME.fullmatch(name)))


class NewestCheckpoint(NamedTuple):
    """The newest valid checkpoint. *number* 0: there is none. *damaged*: a line for every newer one."""

    number: int
    content: tuple[Checkpoint, JournalState] | None
    damaged: list[str]


def read_newest(storage: Storage) -> NewestCheckpoint:
    """Find the newest checkpoint that reads back. Raises StorageFailed if the directory cannot be read."""
    damaged: list[str] = []
    for number in reversed(checkpoint_numbers(storage)):
        try:
            return NewestCheckpoint(number, _decode(storage.read(f"checkpoint.{number}")), damaged)
        except StorageFailed as error:
            damaged.append(str(error))
        except InvalidContent as error:
            damaged.append(f"{storage.path}/checkpoint.{number}: {error}")
    return NewestCheckpoint(0, None, damaged)


def write_checkpoint(storage: Storage, number: int, checkpoint: Checkpoint) -> None:
    """Write checkpoint.<number>, durable on return, and delete all except the newest three.

    Every record below its LSN must be durable before: a checkpoint never runs ahead of the journal.
    """
    storage.replace(f"checkpoint.{number}", encode_checkpoint(checkpoint))
    for old in checkpoint_numbers(storage)[:-CHECKPOINTS_KEPT]:
        storage.remove(f"checkpoint.{old}")


def remove_checkpoints_below(storage: Storage, number: int) -> None:
    """Delete every checkpoint older than checkpoint.<number>; durable on return."""
    for old in checkpoint_numbers(storage):
        if old < number:
            storage.remove(f"checkpoint.{old}")
