"""Describes the end of a journal for people: what is lost if another copy continues without it. Pure.

Branches are identified by the LSN of their first record, as in records: a key may be reused once its branch is over.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from journal.errors import InvalidRecord
from journal.records.codec import decode
from journal.records.header import Lsn, record_type_name
from journal.records.heuristics import HeuristicDecision
from journal.records.ledger import LedgerEntry
from journal.records.record import (
    Commit,
    Forget,
    Heuristic,
    PartitionName,
    Prepare,
    PutBatch,
    PutRecord,
    Record,
    Rollback,
)
from journal.records.states import BranchState
from journal.records.topic_changes import TopicChange
from journal.state.journal_state import Branch, JournalState
from journal.wal.scan import ScannedRecord

KEYS_MAX = 1_000  # listed of each kind; the others are counted


class TailRange(NamedTuple):
    """Offsets [start, end) of one partition, and the messages there."""

    start: int
    end: int
    messages: int


class BranchSample(msgspec.Struct):
    """Branches of one kind: their number, and the first KEYS_MAX keys."""

    count: int = 0
    keys: list[str] = []

    def add(self, key: str) -> None:
        self.count += 1
        if len(self.keys) < KEYS_MAX:
            self.keys.append(key)


class OperatorDecision(NamedTuple):
    """A decision of an operator about a branch in doubt: `commit`, `rollback` or `complete`; its author and reason."""

    key: str
    decision: str
    who: str
    why: str


class OperatorDecisions(msgspec.Struct):
    """Number of decisions, and the first KEYS_MAX."""

    count: int = 0
    first: list[OperatorDecision] = []

    def add(self, said: Heuristic) -> None:
        self.count += 1
        if len(self.first) < KEYS_MAX:
            self.first.append(OperatorDecision(str(said.key), said.decision.name.lower(), said.who, said.why))


class Tail(msgspec.Struct):
    """The records of LSNs [start, end). *ranges* by partition, written ``topic-partition``.

    *reopened* and *reapplied* are about the copy that continues. *reopened*: branches that are in doubt in it, by their
    outcome in the tail: `committed`, `rolled back`, `completed`, or `decided`, by an operator, and not carried out.
    *reapplied*: branches whose end it appends itself, at the same offsets, since it has the operator's decision; no
    other field counts those.
    """

    start: int
    end: int
    records: int = 0
    ranges: dict[str, TailRange] = {}
    prepared: BranchSample = msgspec.field(default_factory=BranchSample)  # and not ended there: in doubt when it ended
    committed: BranchSample = msgspec.field(default_factory=BranchSample)
    rolled_back: BranchSample = msgspec.field(default_factory=BranchSample)
    decided: OperatorDecisions = msgspec.field(default_factory=OperatorDecisions)
    forgotten: BranchSample = msgspec.field(default_factory=BranchSample)  # of those that operators decided about
    reopened: dict[str, BranchSample] = msgspec.field(name="again", default_factory=dict)
    reapplied: BranchSample = msgspec.field(name="redone", default_factory=BranchSample)
    others: dict[str, int] = {}  # other records that an operator caused, by type

    @property
    def messages(self) -> int:
        """Number of messages that could be read there, and nowhere else."""
        return sum(offsets.messages for offsets in self.ranges.values())

    @property
    def is_silent(self) -> bool:
        """True if nothing that the copy will lack was acknowledged: only opens, checkpoints, and records that it
        reapplies."""
        told = (self.prepared, self.committed, self.rolled_back, self.decided, self.forgotten)
        return not (self.ranges or self.others or any(one.count for one in told))


class _OtherCopy:
    """State, in the copy that continues, of branches that began before the tail."""

    def __init__(self, state: JournalState | None, start: int) -> None:
        self._state = state or JournalState()
        self._start = start

    def is_in_doubt(self, lsn: Lsn) -> bool:
        branch = self._find(lsn)
        return branch is not None and branch.state is BranchState.PREPARED and branch.decision is None

    def reapplies(self, record: Commit | Rollback) -> bool:
        """Return True if the copy's next open, that of a promotion, appends the same record."""
        branch = self._find(record.branch_lsn)
        if branch is None:
            return False
        if isinstance(record, Rollback):
            return branch.decision is HeuristicDecision.ROLLBACK
        return branch.decision is HeuristicDecision.COMMIT and record.assignments == branch.assign_offsets(
            self._state.offset_ranges
        )

    def _find(self, lsn: Lsn) -> Branch | None:
        # From *start* on the copy has other records: another branch may begin at the same LSN there.
        return self._state.branches.get(lsn) if lsn < self._start else None


def tail_of(entries: Iterable[ScannedRecord], start: int, copy: JournalState | None = None) -> Tail:
    """Summarize *entries*, in LSN order from *start* on. *copy*: the state of the journal that has the same records
    below *start* and continues without these. Never raises for their content: unreadable ones are only counted."""
    tail, here = Tail(start, start), _OtherCopy(copy, start)
    prepared: dict[Lsn, str] = {}  # prepared and not ended in the tail: keys, by the branches' first LSNs
    reopened: dict[Lsn, tuple[str, str]] = {}  # in doubt in the copy: outcome in the tail, and key
    for entry in entries:
        tail.end = entry.header.end
        tail.records += 1
        match record := _maybe_record(entry):
            case PutRecord(name, base, count) | PutBatch(name, base, count):
                _add_range(tail, name, base, entry.header.body_bytes, count)
            case Prepare(key, lsn):
                prepared[lsn] = str(key)
            case Commit(key, lsn) | Rollback(key, lsn):
                prepared.pop(lsn, None)
                if here.reapplies(record):
                    tail.reapplied.add(str(key))
                    continue
                if here.is_in_doubt(lsn):
                    reopened[lsn] = ("committed" if isinstance(record, Commit) else "rolled back", str(key))
                if isinstance(record, Rollback):
                    tail.rolled_back.add(str(key))
                    continue
                tail.committed.add(str(key))
                for assignment in record.assignments:
                    _add_range(tail, assignment.name, assignment.base, assignment.bytes, assignment.count)
            case Heuristic(key, lsn, decision):
                prepared.pop(lsn, None)
                tail.decided.add(record)
                if here.is_in_doubt(lsn):
                    is_over = decision is HeuristicDecision.COMPLETE  # another record ends the others
                    reopened[lsn] = ("completed" if is_over else "decided", str(key))
            case Forget(key):
                tail.forgotten.add(str(key))
            case TopicChange() | LedgerEntry():
                kind = record_type_name(entry.header.record_type)
                tail.others[kind] = tail.others.get(kind, 0) + 1
    for text in prepared.values():
        tail.prepared.add(text)
    for became, text in reopened.values():
        tail.reopened.setdefault(became, BranchSample()).add(text)
    return tail


def _maybe_record(entry: ScannedRecord) -> Record | None:
    try:
        return decode(entry.header, entry.meta)
    except InvalidRecord:
        return None


def _add_range(tail: Tail, name: PartitionName, base: int, size: int, messages: int) -> None:
    before = tail.ranges.get(str(name), TailRange(base, base, 0))
    tail.ranges[str(name)] = TailRange(before.start, max(before.end, base + size), before.messages + messages)


def tail_lines(tail: Tail) -> Iterator[str]:
    """Format *tail* for people: each range of offsets, each listed branch, each decision of an operator."""
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
    for became, branches in sorted(tail.reopened.items()):
        yield from _branch_lines(f"in doubt again here, {became} there", branches)
    yield from _branch_lines("ended there, and so it will here, as an operator's decision says", tail.reapplied)
    for kind, count in sorted(tail.others.items()):
        yield f"{count} {kind} records"


def _branch_lines(what: str, branches: BranchSample) -> Iterator[str]:
    for key in branches.keys:
        yield f"{what}: {key}"
    if branches.count > len(branches.keys):
        yield f"{what}: {branches.count - len(branches.keys)} more"
