"""Checkpoint files: the fold of every record below an LSN, so that recovery reads only what came after.

`checkpoint.<n>` holds two lines: the CRC-32 of the second in eight hexadecimal digits, and the state as JSON. It is
written whole or not at all, and the newest three are kept: a damaged one costs a longer replay, nothing else. It
is complete; it is never needed, as long as the journal from its start is there.

There may be a hundred thousand branches. Their marks refer to nothing that refers back and are kept from the garbage
collector (gc=False), which would otherwise stop everything to look at the whole heap while they are made.
"""

import re
from itertools import islice, pairwise, takewhile
from typing import Any, Final, Literal, NamedTuple

import msgspec

from journal.batches import StoredBatch, Window
from journal.checksum import crc32
from journal.errors import StorageFailed
from journal.fold import Branch, JournalState, Span
from journal.frame import Lsn, Offset
from journal.heuristics import HeuristicDecision, HeuristicEnd
from journal.lives import Life
from journal.loss import Doubt
from journal.outcomes import Ended
from journal.records import NO_BRANCH, PartitionName
from journal.run_marks import AT_ONCE, Natural, RunMark, RunMarks, run_marks
from journal.runs import Run
from journal.states import BranchState
from journal.storage import Storage
from journal.topic_changes import TopicChange
from journal.xid import XaKey, parse_key

CHECKPOINTS_KEPT: Final = 3
FORMAT: Final = 1
_NO_RUNS = b'"runs":[]'
_PIECE = 1_000  # branches, or what is smaller: a fraction of a millisecond
_CRC_BYTES = len(b"01234567\n")
_NAME = re.compile(r"checkpoint\.(\d{1,18})", re.ASCII)


class IndexMark(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What of an index file belongs to the checkpoint: its first *entries*, and the CRC-32 of their last chunk."""

    entries: Natural
    crc: Natural


class PartitionMark(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One partition: offsets [start, end), and its index file when the writer of the checkpoint keeps one."""

    topic: str
    partition: Natural
    start: Natural
    end: Natural
    index: IndexMark | None = None


class BranchMark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One live branch, with everything a commit would publish."""

    key: str
    state: Literal["IN_USE", "PREPARED"]
    first_lsn: Natural
    began_ms: Natural
    prepared_ms: Natural
    runs: tuple[RunMark, ...]  # of a large branch that is to be written RunMarks, which stand for one
    decision: HeuristicDecision | None = None  # an operator's, which the next record about the branch carries out


class BatchesMark(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The last numbered batches of one producer to one partition, oldest first."""

    producer: str
    topic: str
    partition: Natural
    stored: tuple[StoredBatch, ...]


class LifeMark(msgspec.Struct, frozen=True, array_like=True, gc=False):
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
    partitions: list[PartitionMark]
    branches: list[BranchMark]
    batches: list[BatchesMark] = []  # by last use
    topics: list[TopicChange] = []  # what was decided at run time, by topic
    outcomes: list[Ended] = []  # how XA branches ended, the oldest first
    heuristics: list[HeuristicEnd] = []  # what operators ended and nobody forgot, the oldest first
    lives: list[LifeMark] = []  # who wrote, the oldest first; an older metaq did not write them down
    lost: Natural = 0  # a repair dropped records below this LSN, and branches that had messages there; 0: none


def checkpoint_of(
    state: JournalState,
    index: dict[PartitionName, IndexMark],
    branches: list[BranchMark] | None = None,
    batches: list[BatchesMark] | None = None,
) -> Checkpoint:
    """A checkpoint of *state* as it is now; *index* tells each partition's index file, if it has one.

    *branches* and *batches* instead of its own.
    """
    return Checkpoint(
        format=FORMAT,
        lsn=state.lsn,
        epoch=state.epoch,
        incarnation=state.incarnation,
        time_ms=state.time_ms,
        partitions=[
            PartitionMark(
                topic=name.topic, partition=name.partition, start=span.start, end=span.end, index=index.get(name)
            )
            for name, span in sorted(state.spans.items())
        ],
        branches=[branch_mark(branch) for branch in state.branches.values()] if branches is None else branches,
        batches=[batches_mark(*each) for each in state.batches] if batches is None else batches,
        topics=[change for _, change in sorted(state.topics.items())],
        outcomes=list(state.outcomes),
        heuristics=list(state.heuristics.values()),
        lives=[LifeMark(*life) for life in state.lives],
    )


def state_of(checkpoint: Checkpoint) -> JournalState:
    """The state a checkpoint holds: `checkpoint_of`, read backwards. Raises ValueError where that cannot be."""
    state = JournalState(Lsn(checkpoint.lsn), checkpoint.epoch, checkpoint.incarnation, checkpoint.time_ms)
    if checkpoint.lost:
        state.doubt = Doubt(Lsn(checkpoint.lost))
    for mark in checkpoint.partitions:
        name = PartitionName(mark.topic, mark.partition)
        if mark.start > mark.end or name in state.spans:
            raise ValueError(f"{name} named twice, or from {mark.start} to {mark.end}")
        state.spans[name] = Span(Offset(mark.start), Offset(mark.end))
    names: dict[PartitionName, PartitionName] = {}  # one object for the runs of all branches
    for live in checkpoint.branches:
        if not live.runs or live.first_lsn in state.branches:
            raise ValueError(f"a branch that began at LSN {live.first_lsn} named twice, or without messages")
        branch = Branch(
            parse_key(live.key), Lsn(live.first_lsn), live.began_ms, BranchState[live.state], live.prepared_ms
        )
        branch.decision = live.decision
        if live.decision is not None and (live.decision is HeuristicDecision.COMPLETE or live.state != "PREPARED"):
            raise ValueError(f"a live branch {live.key} in state {live.state}, decided as {live.decision.name}")
        for run in live.runs:
            name = PartitionName(run.topic, run.partition)
            run_of = Run(Lsn(run.lsn), run.bytes, run.messages, run.time_ms)
            branch.add(names.setdefault(name, name), run_of)
        state.branches[branch.first_lsn] = branch
        state.branches_weight += branch.weight
    for batch in checkpoint.batches:
        for stored in batch.stored:
            state.batches.note(batch.producer, batch.topic, batch.partition, stored)
    for change in checkpoint.topics:
        if change.says_nothing or change.topic in state.topics:
            raise ValueError(f"topic {change.topic!r} named twice, or for nothing")
        state.topics[change.topic] = change
    for ended in checkpoint.outcomes:
        if not isinstance(parse_key(ended.key), XaKey):
            raise ValueError(f"an outcome of {ended.key!r}, which is no XA branch")
        state.outcomes.note(ended)
    for decided in checkpoint.heuristics:
        key = parse_key(decided.key)
        if not isinstance(key, XaKey) or key in state.heuristics:
            raise ValueError(f"a decision about {decided.key!r}, which is no XA branch or named twice")
        state.heuristics[key] = decided
    state.lives = [Life(mark.epoch, mark.incarnation, Lsn(mark.lsn)) for mark in checkpoint.lives]
    if not state.lives and state.incarnation:
        # An older metaq's file. Those who begin with the same one share that life; where it began, neither knows.
        state.lives = [Life(state.epoch, state.incarnation, NO_BRANCH)]
    for earlier, later in pairwise(state.lives):
        if earlier[:2] >= later[:2] or earlier.lsn > later.lsn:
            raise ValueError(f"{later} after {earlier}")
    if state.lives and (state.lives[-1][:2] > (state.epoch, state.incarnation) or state.lives[-1].lsn > state.lsn):
        raise ValueError(f"{state.lives[-1]} is not the life that ends at LSN {state.lsn}")
    return state


def branch_mark(branch: Branch) -> BranchMark:
    """One live branch as it is now."""
    return BranchMark(
        key=str(branch.key),
        state="PREPARED" if branch.state is BranchState.PREPARED else "IN_USE",  # the only states of a live branch
        first_lsn=branch.first_lsn,
        began_ms=branch.began_ms,
        prepared_ms=branch.prepared_ms,
        runs=run_marks(branch.runs, branch.messages),
        decision=branch.decision,
    )


def batches_mark(window: Window, stored: tuple[StoredBatch, ...]) -> BatchesMark:
    """The numbered batches remembered of one producer and partition."""
    producer, topic, partition = window
    return BatchesMark(producer=producer, topic=topic, partition=partition, stored=stored)


def encode_checkpoint(checkpoint: Checkpoint) -> bytearray:
    """The file's content. Lists are encoded some items at a time, so that another thread is not held up by all, and
    into one buffer: a hundred thousand branches take tens of megabytes."""
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
    """Add *items*, some at a time; a branch that is large by itself, its runs some at a time."""
    raw += b"["
    at = 0
    while at < len(items):
        raw += b"," if at else b""
        if piece := list(takewhile(_is_small, items[at : at + _PIECE])):
            raw += memoryview(msgspec.json.encode(piece))[1:-1]
            at += len(piece)
        else:
            _encode_large(raw, items[at])
            at += 1
    raw += b"]"


def _is_small(item: object) -> bool:
    return not (isinstance(item, BranchMark) and isinstance(item.runs, RunMarks))


def _encode_large(raw: bytearray, mark: BranchMark) -> None:
    """Add the mark of one branch, its runs some at a time."""
    head, found, tail = msgspec.json.encode(msgspec.structs.replace(mark, runs=())).partition(_NO_RUNS)
    assert found  # as above
    raw += head
    raw += _NO_RUNS[:-1]
    runs, comma = iter(mark.runs), b""
    while piece := list(islice(runs, AT_ONCE)):
        raw += comma
        raw += memoryview(msgspec.json.encode(piece))[1:-1]
        comma = b","
    raw += b"]"
    raw += tail


def decode_checkpoint(raw: bytes | bytearray) -> Checkpoint | str:
    """The checkpoint, or the reason why these bytes are none."""
    decoded = _decode(raw)
    return decoded if isinstance(decoded, str) else decoded[0]


def _decode(raw: bytes | bytearray) -> tuple[Checkpoint, JournalState] | str:
    """As decode_checkpoint, with the state it holds: making that is the check, and most of the cost."""
    crc, _, body = raw.removesuffix(b"\n").partition(b"\n")
    if crc != f"{crc32(body):08x}".encode():
        return "checksum"
    try:
        checkpoint = msgspec.json.decode(body, type=Checkpoint)
        state = state_of(checkpoint)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:  # InvalidXid is a ValueError
        return f"{type(error).__name__}: {error}"
    if checkpoint.format != FORMAT:
        return f"format {checkpoint.format}, this metaq reads {FORMAT}"
    return checkpoint, state


def checkpoint_numbers(storage: Storage) -> list[int]:
    """Numbers of the checkpoint files in the directory, rising."""
    return sorted(int(match[1]) for name in storage.names() if (match := _NAME.fullmatch(name)))


class Newest(NamedTuple):
    """The newest valid checkpoint. *number* 0: there is none. *damaged*: a line for every newer one."""

    number: int
    content: tuple[Checkpoint, JournalState] | None
    damaged: list[str]


def read_newest(storage: Storage) -> Newest:
    """Look for the newest checkpoint that reads back. Raises StorageFailed if the directory does not."""
    damaged: list[str] = []
    for number in reversed(checkpoint_numbers(storage)):
        try:
            decoded = _decode(storage.read(f"checkpoint.{number}"))
        except StorageFailed as error:
            damaged.append(str(error))
            continue
        if not isinstance(decoded, str):
            return Newest(number, decoded, damaged)
        damaged.append(f"{storage.path}/checkpoint.{number}: {decoded}")
    return Newest(0, None, damaged)


def write_checkpoint(storage: Storage, number: int, checkpoint: Checkpoint) -> None:
    """Write checkpoint.<number>, durable on return, and delete all but the newest three.

    Every record below its LSN must be durable before: a checkpoint never knows more than the journal.
    """
    storage.replace(f"checkpoint.{number}", encode_checkpoint(checkpoint))
    for old in checkpoint_numbers(storage)[:-CHECKPOINTS_KEPT]:
        storage.remove(f"checkpoint.{old}")


def remove_checkpoints_below(storage: Storage, number: int) -> None:
    """Delete every checkpoint older than checkpoint.<number>; durable on return."""
    for old in checkpoint_numbers(storage):
        if old < number:
            storage.remove(f"checkpoint.{old}")
