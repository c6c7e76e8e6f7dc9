"""The state that a journal's records add up to, and the one function that adds a record. Pure.

Live appends, recovery, the audit and the tests all call `apply`: there is no second account of what a record
means. The state holds references to message bytes (LSN, length), never the bytes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, get_args

import msgspec

from journal.batches import Batches, StoredBatch
from journal.errors import InvalidRecord
from journal.frame import Header, Lsn, Offset
from journal.heuristics import EVENTS, HeuristicDecision, HeuristicEnd
from journal.lives import Life, note_life
from journal.loss import Doubt, reconcile
from journal.outcomes import Ended, Outcome, Outcomes
from journal.publications import Block, Publication, Publications
from journal.records import (
    NO_BRANCH,
    CarriedRun,
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
    RollbackReason,
    Take,
    TxPut,
)
from journal.refusals import Refused
from journal.runs import Run, Runs
from journal.states import BranchEvent, BranchState, XaError, next_state
from journal.topic_changes import TopicChange, TopicState
from journal.xid import BranchKey, XaKey

ZERO = Offset(0)


RUN_BYTES_MIN = 4096  # what a run counts for at least: its bookkeeping takes memory however few bytes it holds


def weight(run_bytes: int) -> int:
    """What a run of a live branch counts for against the bound of open transactions."""
    return max(run_bytes, RUN_BYTES_MIN)


@dataclass(slots=True)
class Span:
    """A partition's offsets: [start, end). Invariant: start <= end; end only grows."""

    start: Offset = ZERO
    end: Offset = ZERO

    def take(self, base: int, size: int) -> None:
        """Move the end over *size* bytes that begin at *base*. Raises ValueError unless that is the end."""
        if base != self.end:
            raise ValueError(f"offsets [{base}, {base + size}) do not follow the end {self.end}")
        self.end = Offset(base + size)

    def jump(self, end: int) -> bool:
        """Go on at *end*: what was below was lost. False if it is there already. Raises ValueError if it is beyond."""
        if end < self.end:
            raise ValueError(f"{end} is below the end {self.end}")
        is_behind, self.end = end > self.end, Offset(end)
        return is_behind


class Branch(msgspec.Struct, eq=False):
    """A transaction branch that has put something. Its runs are kept per partition, in put order."""

    key: BranchKey
    first_lsn: Lsn
    began_ms: int
    state: BranchState = BranchState.IN_USE
    prepared_ms: int = 0
    runs: dict[PartitionName, Runs] = msgspec.field(default_factory=dict)
    messages: int = 0
    bytes: int = 0
    weight: int = 0
    decision: HeuristicDecision | None = None  # an operator's, which the next record about the branch carries out
    noted_by: object = None  # the last snapshot that has written it down (snapshot.py), by its token

    def add(self, name: PartitionName, run: Run) -> None:
        if (runs := self.runs.get(name)) is None:
            runs = self.runs[name] = Runs()
        runs.append(run)
        self.messages += run.messages
        self.bytes += run.bytes
        self.weight += weight(run.bytes)

    @property
    def oldest_lsn(self) -> Lsn:
        """Where the journal must still begin for its sake: its first run, but for what a carry is in the middle of."""
        return next(iter(self.runs.values()))[0].lsn

    def takes(self, spans: dict[PartitionName, Span]) -> tuple[Take, ...]:
        """What a commit takes now: each partition's runs as one contiguous block from that partition's end."""
        return tuple(
            Take(name, spans[name].end if name in spans else ZERO, runs.bytes, runs.messages)
            for name, runs in self.runs.items()
        )


@dataclass(slots=True)
class JournalState:
    """The fold of every record below *lsn*."""

    lsn: Lsn = NO_BRANCH
    epoch: int = 0
    incarnation: int = 0
    time_ms: int = 0  # the latest time any record carries
    checkpoint: int = 0  # number of the newest checkpoint file that a record mentions
    spans: dict[PartitionName, Span] = field(default_factory=dict)
    batches: Batches = field(default_factory=Batches)  # what producers numbered: a retry is stored once
    # By first LSN; the one whose first run lies furthest behind comes first.
    branches: dict[Lsn, Branch] = field(default_factory=dict)
    outcomes: Outcomes = field(default_factory=Outcomes)  # how XA branches ended
    heuristics: dict[XaKey, HeuristicEnd] = field(default_factory=dict)  # what operators ended, until it is forgotten
    branches_weight: int = 0  # of all branches together
    topics: dict[str, TopicChange] = field(default_factory=dict)  # what run-time decisions still say, by topic
    lives: list[Life] = field(default_factory=list)  # who wrote, oldest first; older ones than LIVES_MAX are forgotten
    doubt: Doubt | None = None  # what dropped records leave open, until a start settles it
    before_change: Callable[[Branch], None] | None = None  # told of a live branch before a record changes it

    def end_of(self, name: PartitionName) -> Offset:
        """Where the partition's next message goes; nothing is made for a partition that has none."""
        return span.end if (span := self.spans.get(name)) is not None else ZERO

    def drop(self, branch: Branch) -> None:
        """Forget a live branch, with nothing published."""
        del self.branches[branch.first_lsn]
        self.branches_weight -= branch.weight

    def branch_with(self, topic: str) -> Branch | None:
        """A live branch that has messages for *topic*, if there is one."""
        branches = self.branches.values()
        return next((one for one in branches if any(name.topic == topic for name in one.runs)), None)

    def span(self, name: PartitionName) -> Span:
        """The partition's offsets; made on first use."""
        if (span := self.spans.get(name)) is None:
            span = self.spans[name] = Span()
        return span


def apply(state: JournalState, header: Header, record: Record) -> Sequence[Publication]:
    """Add one record; returns what it publishes, in offset order per partition.

    Records must come in LSN order. Raises InvalidRecord when the record contradicts the state.
    """
    jumps: list[Publication] = []
    is_over = False
    try:
        if state.doubt is not None:
            moved, is_over = reconcile(state, state.doubt, header, record)
            jumps = [_jump(name, base, header) for name, base in moved]
        publications = [] if is_over else _MEANINGS[type(record)](state, header, record)
    except (ValueError, XaError) as error:
        raise InvalidRecord(
            f"LSN {header.lsn}: {type(record).__name__} contradicts what came before: {error}"
        ) from error
    state.lsn = header.end
    if header.time_ms > state.time_ms:
        state.time_ms = header.time_ms
    return [*jumps, *publications] if jumps else publications


def _jump(name: PartitionName, base: Offset, header: Header) -> Publication:
    """A partition goes on at *base*, with nothing stored in front of it: a run without messages says so."""
    return Publication(name, base, Run(header.lsn, 0, 0, header.time_ms))


def _put(state: JournalState, header: Header, record: Put | PutBatch) -> Sequence[Publication]:
    name, base = record.name, record.base
    run = Run(header.body_lsn, header.body_bytes, record.count, header.time_ms)
    state.span(name).take(base, run.bytes)
    return [Publication(name, base, run)]


def _put_batch(state: JournalState, header: Header, record: PutBatch) -> Sequence[Publication]:
    name, sequence = record.name, record.sequence
    stored = StoredBatch(sequence.number, record.base, record.count, record.first_id)
    state.batches.note(sequence.producer, name.topic, name.partition, stored)
    return _put(state, header, record)


def _tx_put(state: JournalState, header: Header, record: TxPut) -> Sequence[Publication]:
    if record.branch_lsn == NO_BRANCH:
        branch = Branch(record.key, header.lsn, header.time_ms)
        if isinstance(record.key, XaKey):
            state.outcomes.drop(str(record.key))
        state.branches[header.lsn] = branch
    else:
        branch = _live(state, record.key, record.branch_lsn)
        next_state(branch.key, branch.state, BranchEvent.PUT)
    branch.add(record.name, Run(header.body_lsn, header.body_bytes, record.count, header.time_ms))
    state.branches_weight += weight(header.body_bytes)
    return []


def _prepare(state: JournalState, header: Header, record: Prepare) -> Sequence[Publication]:
    branch, messages, size = _live(state, record.key, record.branch_lsn), record.messages, record.bytes
    if messages != branch.messages or size != branch.bytes:
        raise ValueError(f"{messages} messages of {size} bytes, not {branch.messages} of {branch.bytes}")
    branch.state = next_state(branch.key, branch.state, BranchEvent.PREPARE)
    branch.prepared_ms = header.time_ms
    return []


def _commit(state: JournalState, header: Header, record: Commit) -> Sequence[Publication]:
    branch = _live(state, record.key, record.branch_lsn)
    if branch.decision is HeuristicDecision.ROLLBACK:
        raise ValueError("an operator decided to roll it back")
    event = BranchEvent.COMMIT_ONE_PHASE if record.one_phase else BranchEvent.COMMIT_TWO_PHASE
    branch.state = next_state(branch.key, branch.state, event)
    _end(state, branch, Outcome.COMMITTED, header.time_ms)
    return _publish(state, branch, record.takes)


def _rollback(state: JournalState, header: Header, record: Rollback) -> Sequence[Publication]:
    branch, reason = _live(state, record.key, record.branch_lsn), record.reason
    if branch.decision is HeuristicDecision.COMMIT:
        raise ValueError("an operator decided to commit it")
    if branch.state is BranchState.PREPARED and reason is not RollbackReason.ASKED:
        raise ValueError(f"a prepared branch is rolled back when it is asked for, not as {reason.name}")
    branch.state = next_state(branch.key, branch.state, BranchEvent.ROLLBACK)
    _end(state, branch, Outcome.ROLLED_BACK, header.time_ms)
    return []


def _carry(state: JournalState, header: Header, record: Carry) -> Sequence[Publication]:
    """From here on the branch's runs point at the copies; their order, times and counts stay."""
    branch = _live(state, record.key, record.branch_lsn)
    runs = branch.runs.get(record.name, Runs())
    first, carried = record.first, record.runs
    if [CarriedRun(*run) for run in runs[first : first + len(carried)]] != list(carried):
        raise ValueError(f"{len(carried)} runs from number {first} on in {record.name}: they are not the branch's")
    if sum(run.bytes for run in carried) != header.body_bytes:
        raise ValueError(f"a body of {header.body_bytes} bytes, where the runs have other lengths")
    if first == 0 and record.name == next(iter(branch.runs)):  # its very first put: a carry begins
        state.branches[branch.first_lsn] = state.branches.pop(branch.first_lsn)
    lsn = header.body_lsn
    for at, run in enumerate(carried, first):
        runs[at] = Run(lsn, run.bytes, run.messages, run.time_ms)
        lsn = Lsn(lsn + run.bytes)
    return []


def _decide(state: JournalState, header: Header, record: Heuristic) -> Sequence[Publication]:
    branch, key = _live(state, record.key, record.branch_lsn), record.key
    seen = branch.prepared_ms, branch.messages, branch.bytes
    if not isinstance(key, XaKey) or seen != (record.prepared_ms, record.messages, record.bytes):
        raise ValueError(f"decided about {record.messages} messages of {record.bytes} bytes, which is not what it put")
    after = next_state(key, branch.state, EVENTS[record.decision])
    state.heuristics.pop(key, None)  # of another branch of that name; this one is the newest
    state.heuristics[key] = HeuristicEnd(
        key=str(key),
        decision=record.decision,
        who=record.who,
        why=record.why,
        time_ms=header.time_ms,
        prepared_ms=record.prepared_ms,
        messages=record.messages,
        bytes=record.bytes,
    )
    if record.decision is HeuristicDecision.COMPLETE:
        branch.state = after
        state.drop(branch)
    else:
        branch.decision = record.decision
    return []


def _forget(state: JournalState, header: Header, record: Forget) -> Sequence[Publication]:
    del header
    if not isinstance(record.key, XaKey) or state.heuristics.pop(record.key, None) is None:
        raise ValueError(f"nobody decided about {record.key}")
    return []


def _begin_life(state: JournalState, header: Header, record: Epoch) -> Sequence[Publication]:
    del header
    state.epoch, state.incarnation = record.epoch, record.incarnation
    note_life(state.lives, Life(record.epoch, record.incarnation, state.lsn))
    return []


def _note_checkpoint(state: JournalState, header: Header, record: CheckpointMark) -> Sequence[Publication]:
    del header
    state.checkpoint = record.number
    return []


def _pass_over(state: JournalState, header: Header, record: Pad) -> Sequence[Publication]:
    del state, header, record
    return []


def _lose(state: JournalState, header: Header, record: Lost) -> Sequence[Publication]:
    if record.ends:
        state.doubt = None
        return [_jump(one.name, one.end, header) for one in record.ends if state.span(one.name).jump(one.end)]
    state.doubt = Doubt.after(state, header)
    return []


def _refuse(state: JournalState, header: Header, record: Decision | Refused) -> Sequence[Publication]:
    del state, header
    whose = "coordinator" if isinstance(record, Decision) else "consumer"
    raise ValueError(f"a {whose}'s record in a broker's journal")


def _end(state: JournalState, branch: Branch, outcome: Outcome, time_ms: int) -> None:
    state.drop(branch)
    if isinstance(branch.key, XaKey):  # a local one is its connection's, which has heard
        state.outcomes.note(Ended(str(branch.key), outcome, time_ms))


def _change_topic(state: JournalState, header: Header, change: TopicChange) -> Sequence[Publication]:
    del header
    topic = change.topic
    if change.state is TopicState.DELETED:
        if (branch := state.branch_with(topic)) is not None:
            raise ValueError(f"{topic} is deleted while branch {branch.key} has messages for it")
        for name, span in state.spans.items():
            if name.topic == topic:
                # An offset is never used twice: what a group has stored must not point into other messages.
                span.start = span.end
    if change.says_nothing:
        state.topics.pop(topic, None)
    else:
        state.topics[topic] = change
    return []


def _live(state: JournalState, key: BranchKey, branch_lsn: Lsn) -> Branch:
    if (branch := state.branches.get(branch_lsn)) is None:
        raise ValueError(f"no live branch began at LSN {branch_lsn}")
    if branch.key != key:
        raise ValueError(f"the branch that began at LSN {branch_lsn} is {branch.key}, not {key}")
    if state.before_change is not None:
        state.before_change(branch)
    return branch


def _publish(state: JournalState, branch: Branch, takes: tuple[Take, ...]) -> Sequence[Publication]:
    if len(takes) != len(branch.runs) or {take.name for take in takes} != branch.runs.keys():
        raise ValueError("the partitions it takes are not those the branch put to")
    blocks = []
    for take in takes:
        runs = branch.runs[take.name]
        if (runs.bytes, runs.messages) != (take.bytes, take.count):
            raise ValueError(
                f"{take.count} messages of {take.bytes} bytes taken in {take.name}: the branch did not put that there"
            )
        state.span(take.name).take(take.base, take.bytes)
        blocks.append(Block(take.name, take.base, runs))
    return Publications(blocks)


# By kind of record, each for its own: a match tries one class after the other with every record of a journal.
_MEANINGS: Final[dict[type[Record], Callable[[JournalState, Header, Any], Sequence[Publication]]]] = {
    Put: _put,
    PutBatch: _put_batch,
    TxPut: _tx_put,
    Prepare: _prepare,
    Commit: _commit,
    Rollback: _rollback,
    Carry: _carry,
    Heuristic: _decide,
    Forget: _forget,
    Epoch: _begin_life,
    CheckpointMark: _note_checkpoint,
    Pad: _pass_over,
    TopicChange: _change_topic,
    Lost: _lose,
    Decision: _refuse,
    Refused: _refuse,
}
assert _MEANINGS.keys() == set(get_args(Record)), "every kind of record means something"
