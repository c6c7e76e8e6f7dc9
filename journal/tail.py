"""What the end of a journal holds, for people: what is lost where another copy goes on without it. Pure.

Branches are told apart by the LSN of their first record, as the records do: a key may be begun again once its branch is
over, and means another one then.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from journal.errors import InvalidRecord
from journal.fold import Branch, JournalState
from journal.frame import Kind, Lsn
from journal.heuristics import HeuristicDecision
from journal.record_codec import decode
from journal.records import Commit, Forget, Heuristic, PartitionName, Prepare, Put, PutBatch, Record, Rollback
from journal.scan import Entry
from journal.states import BranchState
from journal.topic_changes import TopicChange

KEYS_MAX = 1_000  # named of each kind; beyond, they are counted


class Stretch(NamedTuple):
    """Offsets [start, end) of one partition, and the messages there."""

    start: int
    end: int
    messages: int


class Branches(msgspec.Struct):
    """Branches of which the same was said: how many, and the keys of the first KEYS_MAX."""

    count: int = 0
    keys: list[str] = []

    def add(self, key: str) -> None:
        self.count += 1
        if len(self.keys) < KEYS_MAX:
            self.keys.append(key)


class Decided(NamedTuple):
    """What an operator decided about a branch in doubt: `commit`, `rollback` or `complete`; who, and why."""

    key: str
    decision: str
    who: str
    why: str


class Decisions(msgspec.Struct):
    """How many, and the first KEYS_MAX."""

    count: int = 0
    first: list[Decided] = []

    def add(self, said: Heuristic) -> None:
        self.count += 1
        if len(self.first) < KEYS_MAX:
            self.first.append(Decided(str(said.key), said.decision.name.lower(), said.who, said.why))


class Tail(msgspec.Struct):
    """The records of LSNs [start, end). *ranges* by partition, written ``topic-partition``.

    *again* and *redone* are about the copy that goes on. *again*: branches that are in doubt in it, by what became of
    them there: `committed`, `rolled back`, `completed`, or `decided`, by an operator, and not carried out. *redone*:
    branches whose end it appends itself, at the same offsets, for it has the operator's decision; nothing else here
    counts those.
    """

    start: int
    end: int
    records: int = 0
    ranges: dict[str, Stretch] = {}
    prepared: Branches = msgspec.field(default_factory=Branches)  # and not ended there: in doubt when it ended
    committed: Branches = msgspec.field(default_factory=Branches)
    rolled_back: Branches = msgspec.field(default_factory=Branches)
    decided: Decisions = msgspec.field(default_factory=Decisions)
    forgotten: Branches = msgspec.field(default_factory=Branches)  # of those that operators decided about
    again: dict[str, Branches] = {}
    redone: Branches = msgspec.field(default_factory=Branches)
    others: dict[str, int] = {}  # records of other kinds that somebody decided, by kind

    @property
    def messages(self) -> int:
        """How many messages could be read there, and nowhere else."""
        return sum(stretch.messages for stretch in self.ranges.values())

    @property
    def is_silent(self) -> bool:
        """Nobody was told of anything that the copy will not have: opens, checkpoints and what is redone alone."""
        told = (self.prepared, self.committed, self.rolled_back, self.decided, self.forgotten)
        return not (self.ranges or self.others or any(one.count for one in told))


class _Copy:
    """What the copy that goes on holds of branches that began before the tail does."""

    def __init__(self, state: JournalState | None, start: int) -> None:
        self._state = state or JournalState()
        self._start = start

    def is_in_doubt(self, lsn: Lsn) -> bool:
        branch = self._find(lsn)
        return branch is not None and branch.state is BranchState.PREPARED and branch.decision is None

    def redoes(self, record: Commit | Rollback) -> bool:
        """Will its next open, that of a promotion, append just this?"""
        branch = self._find(record.branch_lsn)
        if branch is None:
            return False
        if isinstance(record, Rollback):
            return branch.decision is HeuristicDecision.ROLLBACK
        return branch.decision is HeuristicDecision.COMMIT and record.takes == branch.takes(self._state.spans)

    def _find(self, lsn: Lsn) -> Branch | None:
        # From *start* on it has records of its own, if any: another branch may begin at the same LSN there.
        return self._state.branches.get(lsn) if lsn < self._start else None


def tail_of(entries: Iterable[Entry], start: int, copy: JournalState | None = None) -> Tail:
    """What *entries*, in LSN order from *start* on, hold. *copy*: the state of the journal that has the same records
    below *start* and goes on without these. Never raises for what they say: what can't be read is only counted."""
    tail, here = Tail(start, start), _Copy(copy, start)
    prepared: dict[Lsn, str] = {}  # there, and nothing was said since: keys, by the branches' first LSNs
    again: dict[Lsn, tuple[str, str]] = {}  # in doubt in the copy: what became of them there, and the keys
    for entry in entries:
        tail.end = entry.header.end
        tail.records += 1
        match record := _maybe_record(entry):
            case Put(name, base, count) | PutBatch(name, base, count):
                _add_range(tail, name, base, entry.header.body_bytes, count)
            case Prepare(key, lsn):
                prepared[lsn] = str(key)
            case Commit(key, lsn) | Rollback(key, lsn):
                prepared.pop(lsn, None)
                if here.redoes(record):
                    tail.redone.add(str(key))
                    continue
                if here.is_in_doubt(lsn):
                    again[lsn] = ("committed" if isinstance(record, Commit) else "rolled back", str(key))
                if isinstance(record, Rollback):
                    tail.rolled_back.add(str(key))
                    continue
                tail.committed.add(str(key))
                for take in record.takes:
                    _add_range(tail, take.name, take.base, take.bytes, take.count)
            case Heuristic(key, lsn, decision):
                prepared.pop(lsn, None)
                tail.decided.add(record)
                if here.is_in_doubt(lsn):
                    is_over = decision is HeuristicDecision.COMPLETE  # of the others, a record more says so
                    again[lsn] = ("completed" if is_over else "decided", str(key))
            case Forget(key):
                tail.forgotten.add(str(key))
            case TopicChange():
                tail.others[Kind.TOPIC.name] = tail.others.get(Kind.TOPIC.name, 0) + 1
    for text in prepared.values():
        tail.prepared.add(text)
    for became, text in again.values():
        tail.again.setdefault(became, Branches()).add(text)
    return tail


def _maybe_record(entry: Entry) -> Record | None:
    try:
        return decode(entry.header, entry.meta)
    except InvalidRecord:
        return None


def _add_range(tail: Tail, name: PartitionName, base: int, size: int, messages: int) -> None:
    before = tail.ranges.get(str(name), Stretch(base, base, 0))
    tail.ranges[str(name)] = Stretch(before.start, max(before.end, base + size), before.messages + messages)


def tail_lines(tail: Tail) -> Iterator[str]:
    """*tail* for people: each range of offsets, each branch that is named, each decision of an operator."""
    for name, (start, end, messages) in sorted(tail.ranges.items()):
        yield f"{name}: offsets {start} to {end}, {messages} messages"
    yield from _branch_lines("in doubt there", tail.prepared)
    yield from _branch_lines("committed there", tail.committed)
    yield from _branch_lines("rolled back there", tail.rolled_back)
    for key, decision, who, why in tail.decided.first:
        yield f"decided there: {key}, {decision}, by {who}: {why}"
    if tail.decided.count > len(tail.decided.first):
        yield f"decided there: {tail.decided.count - len(tail.decided.first)} more"
    yield from _branch_lines("forgotten there", tail.forgotten)
    for became, branches in sorted(tail.again.items()):
        yield from _branch_lines(f"in doubt again here, {became} there", branches)
    yield from _branch_lines("ended there, and so it will here, as an operator's decision says", tail.redone)
    for kind, count in sorted(tail.others.items()):
        yield f"{count} {kind} records"


def _branch_lines(what: str, branches: Branches) -> Iterator[str]:
    for key in branches.keys:
        yield f"{what}: {key}"
    if branches.count > len(branches.keys):
        yield f"{what}: {branches.count - len(branches.keys)} more"
