"""What the fold makes of a journal that a repair dropped records from. Pure.

A LOST record stands where records were. Those behind it assume what was in them: a PUT begins at an offset that
nobody has seen taken, a COMMIT names a branch that nobody has seen begin. `reconcile` moves the state to where such a
record can follow, once for every partition, and nothing else is let pass: without a LOST record before it, the
strict rules of the fold hold.

A branch that lost any of its messages is lost whole: it is never half committed.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from journal.frame import Header, Lsn, Offset
from journal.outcomes import Ended, Outcome
from journal.records import (
    NO_BRANCH,
    Carry,
    Commit,
    Forget,
    Heuristic,
    PartitionName,
    Prepare,
    Put,
    PutBatch,
    Record,
    Rollback,
    TxPut,
)
from journal.runs import Runs
from journal.states import BranchEvent, BranchState, next_state
from journal.topic_changes import TopicChange, TopicState
from journal.xid import BranchKey, XaKey

if TYPE_CHECKING:  # the fold, which calls this
    from journal.fold import Branch, JournalState

ZERO = Offset(0)


@dataclass(frozen=True, slots=True)
class Doubt:
    """What records that were dropped leave open.

    *lsn*: behind the last of them. *bytes*: at most so many message bytes were in them. *names*: partitions of which
    no later record has told where they go on; *is_open*: there may have been others.
    """

    lsn: Lsn
    bytes: int = 0
    names: set[PartitionName] = field(default_factory=set)
    is_open: bool = False
    branches: dict[BranchKey, "Branch"] = field(default_factory=dict)  # live before it; their ends may be lost

    @classmethod
    def after(cls, state: "JournalState", header: Header) -> "Doubt":
        """The doubt of *state* once the LOST record of *header* is added."""
        size = header.body_bytes + (state.doubt.bytes if state.doubt else 0)
        branches = {branch.key: branch for branch in state.branches.values()}
        return cls(header.end, size, set(state.spans), is_open=True, branches=branches)


def reconcile(
    state: "JournalState", doubt: Doubt, header: Header, record: Record
) -> tuple[list[tuple[PartitionName, Offset]], bool]:
    """Make *state* what *record* assumes. Returns the partitions that go on further on, each with that offset, and
    whether that was all there is to *record*, because what it speaks of is lost. Raises ValueError."""
    match record:
        case Put(name, base, _) | PutBatch(name, base, _):
            return _moved(state, doubt, [(name, base)]), False
        case TxPut(key, branch_lsn, name, _) if branch_lsn == NO_BRANCH:
            former = doubt.branches.pop(key, None)
            if former is not None and state.branches.get(former.first_lsn) is former:
                state.drop(former)  # its end was lost, or this one could not have begun
            return [], False
        case TxPut(_, branch_lsn, _, _):
            return [], _is_lost(state, doubt, branch_lsn)
        case Prepare(_, branch_lsn, messages, size):
            if _is_lost(state, doubt, branch_lsn):
                return [], True
            branch = state.branches.get(branch_lsn)
            if branch is not None and _is_older(branch, doubt) and (messages, size) != (branch.messages, branch.bytes):
                state.drop(branch)
                return [], True
            return [], False
        case Rollback(key, branch_lsn, _):
            if is_lost := _is_lost(state, doubt, branch_lsn):
                _note(state, key, Outcome.ROLLED_BACK, header)
            return [], is_lost
        case Commit():
            return _commit(state, doubt, header, record)
        case Carry() | Heuristic():
            if _is_lost(state, doubt, record.branch_lsn):
                return [], True
            branch = state.branches.get(record.branch_lsn)
            if branch is None or not _is_older(branch, doubt):
                return [], False
            is_whole = (
                _has_what_it_carries(branch, record) if isinstance(record, Carry) else _was_decided(branch, record)
            )
            if not is_whole:
                state.drop(branch)
            return [], not is_whole
        case Forget(key):
            return [], key not in state.heuristics  # that decision was lost
        case TopicChange(topic=topic, state=TopicState.DELETED):
            while (live := state.branch_with(topic)) is not None and _is_older(live, doubt):
                state.drop(live)  # its end was lost, or the topic could not have been deleted
            return [], False
        case _:
            return [], False


def ends_in_doubt(state: "JournalState", doubt: Doubt) -> dict[PartitionName, Offset]:
    """Where partitions go on of which no record told: beyond everything that the lost records can have put there.

    No offset is ever used twice: what a consumer group has stored must not point into other messages.
    """
    beyond = dict.fromkeys(doubt.names, doubt.bytes)
    for branch in state.branches.values():
        for name, runs in branch.runs.items():
            if name in beyond:
                beyond[name] += sum(run.bytes for run in runs)  # its commit may be what was lost
    return {name: Offset(state.end_of(name) + size) for name, size in sorted(beyond.items())}


def _commit(
    state: "JournalState", doubt: Doubt, header: Header, commit: Commit
) -> tuple[list[tuple[PartitionName, Offset]], bool]:
    branch = state.branches.get(commit.branch_lsn)
    if branch is None and not _is_lost(state, doubt, commit.branch_lsn):
        return [], False
    moved = _moved(state, doubt, [(take.name, take.base) for take in commit.takes])
    if branch is not None and (not _is_older(branch, doubt) or _is_whole(branch, commit)):
        if branch.state is BranchState.IN_USE and not commit.one_phase:
            branch.state = next_state(branch.key, branch.state, BranchEvent.PREPARE)  # that record was lost
        return moved, False
    if branch is not None:
        state.drop(branch)
    for take in commit.takes:
        end = Offset(take.base + take.bytes)
        if state.span(take.name).jump(end):
            moved.append((take.name, end))
    _note(state, commit.key, Outcome.COMMITTED, header)
    return moved, True


def _moved(
    state: "JournalState", doubt: Doubt, takes: list[tuple[PartitionName, Offset]]
) -> list[tuple[PartitionName, Offset]]:
    """Move the partitions of *takes* to where they are taken from, those that are in doubt."""
    moved = []
    for name, base in takes:
        if name in doubt.names or (doubt.is_open and name not in state.spans):
            doubt.names.discard(name)
            if base > state.end_of(name) and state.span(name).jump(base):
                moved.append((name, base))
    return moved


def _is_whole(branch: "Branch", commit: Commit) -> bool:
    """Has the branch everything that *commit* publishes?"""
    put = {name: runs.bytes for name, runs in branch.runs.items()}
    return put == {take.name: take.bytes for take in commit.takes}


def _has_what_it_carries(branch: "Branch", carry: Carry) -> bool:
    """Has the branch the runs that *carry* copies? It may have copied them before, in a record that was lost."""
    runs = branch.runs.get(carry.name, Runs())
    last = carry.first + len(carry.runs)
    if [run[1:] for run in runs[carry.first : last]] != [(run.bytes, run.messages, run.time_ms) for run in carry.runs]:
        return False
    for at, run in enumerate(carry.runs, carry.first):
        runs[at] = runs[at]._replace(lsn=run.lsn)
    return True


def _was_decided(branch: "Branch", decided: Heuristic) -> bool:
    """Is the branch the one that an operator saw? Its PREPARE may have been lost."""
    if (branch.messages, branch.bytes) != (decided.messages, decided.bytes):
        return False
    if branch.state is BranchState.IN_USE and decided.prepared_ms:
        branch.state = next_state(branch.key, branch.state, BranchEvent.PREPARE)
        branch.prepared_ms = decided.prepared_ms
    return branch.prepared_ms == decided.prepared_ms


def _is_older(branch: "Branch", doubt: Doubt) -> bool:
    return branch.first_lsn < doubt.lsn


def _is_lost(state: "JournalState", doubt: Doubt, branch_lsn: Lsn) -> bool:
    """Did the branch begin in what was dropped, or is it lost already?"""
    return branch_lsn < doubt.lsn and branch_lsn not in state.branches


def _note(state: "JournalState", key: BranchKey, outcome: Outcome, header: Header) -> None:
    if isinstance(key, XaKey):
        state.outcomes.note(Ended(str(key), outcome, header.time_ms))
