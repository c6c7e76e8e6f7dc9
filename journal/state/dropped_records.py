"""Folds a journal from which a repair dropped records. Pure.

A LOST record stands in place of records. Later ones assume their content: a PUT begins at an offset beyond the known
end, a COMMIT names an unknown branch. `reconcile` moves the state to where such a record can follow, once for every
partition, and permits nothing else: without a LOST record before it, the strict rules of the fold hold.

A branch that lost any of its messages is lost whole: it is never committed in part.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from journal.records.extents import ExtentList
from journal.records.header import Lsn, Offset, RecordHeader
from journal.records.outcomes import Ended, Outcome
from journal.records.record import (
    NO_BRANCH,
    Commit,
    Forget,
    Heuristic,
    PartitionName,
    Prepare,
    Put,
    PutBatch,
    Record,
    Relocate,
    Rollback,
    TxPut,
)
from journal.records.states import BranchEvent, BranchState, next_state
from journal.records.topic_changes import TopicChange, TopicState
from journal.records.xid import BranchKey, XaKey

if TYPE_CHECKING:  # the fold, which calls this
    from journal.state.fold import Branch, JournalState

ZERO = Offset(0)


@dataclass(frozen=True, slots=True)
class UnresolvedLoss:
    """Unknowns that dropped records leave.

    *lsn*: after the last of them. *bytes*: upper bound on their message bytes. *names*: partitions whose end no later
    record has named; *is_open*: there may have been others.
    """

    lsn: Lsn
    bytes: int = 0
    names: set[PartitionName] = field(default_factory=set)
    is_open: bool = False
    branches: dict[BranchKey, "Branch"] = field(default_factory=dict)  # live before it; their ends may be lost

    @classmethod
    def after(cls, state: "JournalState", header: RecordHeader) -> "UnresolvedLoss":
        """Return the unresolved loss of *state* once the LOST record of *header* is added."""
        size = header.body_bytes + (state.unresolved_loss.bytes if state.unresolved_loss else 0)
        branches = {branch.key: branch for branch in state.branches.values()}
        return cls(header.end, size, set(state.offset_ranges), is_open=True, branches=branches)


def reconcile(
    state: "JournalState", loss: UnresolvedLoss, header: RecordHeader, record: Record
) -> tuple[list[tuple[PartitionName, Offset]], bool]:
    """Change *state* to what *record* assumes. Returns the partitions that skip ahead, each with its new offset, and
    whether *record* needs no folding, because its subject is lost. Raises ValueError."""
    match record:
        case Put(name, base, _) | PutBatch(name, base, _):
            return _moved(state, loss, [(name, base)]), False
        case TxPut(key, branch_lsn, name, _) if branch_lsn == NO_BRANCH:
            former = loss.branches.pop(key, None)
            if former is not None and state.branches.get(former.first_lsn) is former:
                state.drop(former)  # its end was lost, or this one could not have begun
            return [], False
        case TxPut(_, branch_lsn, _, _):
            return [], _is_lost(state, loss, branch_lsn)
        case Prepare(_, branch_lsn, messages, size):
            if _is_lost(state, loss, branch_lsn):
                return [], True
            branch = state.branches.get(branch_lsn)
            if branch is not None and _is_older(branch, loss) and (messages, size) != (branch.messages, branch.bytes):
                state.drop(branch)
                return [], True
            return [], False
        case Rollback(key, branch_lsn, _):
            if is_lost := _is_lost(state, loss, branch_lsn):
                _note(state, key, Outcome.ROLLED_BACK, header)
            return [], is_lost
        case Commit():
            return _commit(state, loss, header, record)
        case Relocate() | Heuristic():
            if _is_lost(state, loss, record.branch_lsn):
                return [], True
            branch = state.branches.get(record.branch_lsn)
            if branch is None or not _is_older(branch, loss):
                return [], False
            is_whole = (
                _has_relocated_extents(branch, record)
                if isinstance(record, Relocate)
                else _is_decided_branch(branch, record)
            )
            if not is_whole:
                state.drop(branch)
            return [], not is_whole
        case Forget(key):
            return [], key not in state.heuristics and state.ledger.find(str(key)) is None  # that was lost
        case TopicChange(topic=topic, state=TopicState.DELETED):
            while (live := state.branch_with(topic)) is not None and _is_older(live, loss):
                state.drop(live)  # its end was lost, or the topic could not have been deleted
            return [], False
        case _:
            return [], False


def unresolved_ends(state: "JournalState", loss: UnresolvedLoss) -> dict[PartitionName, Offset]:
    """Return ends for the partitions that no record named since: beyond everything that the lost records can have put
    there.

    No offset is ever reused: stored offsets of consumer groups must not point into other messages.
    """
    beyond = dict.fromkeys(loss.names, loss.bytes)
    for branch in state.branches.values():
        for name, extents in branch.extents.items():
            if name in beyond:
                beyond[name] += sum(extent.bytes for extent in extents)  # its commit may be what was lost
    return {name: Offset(state.end_of(name) + size) for name, size in sorted(beyond.items())}


def _commit(
    state: "JournalState", loss: UnresolvedLoss, header: RecordHeader, commit: Commit
) -> tuple[list[tuple[PartitionName, Offset]], bool]:
    branch = state.branches.get(commit.branch_lsn)
    if branch is None and not _is_lost(state, loss, commit.branch_lsn):
        return [], False
    moved = _moved(state, loss, [(assignment.name, assignment.base) for assignment in commit.assignments])
    if branch is not None and (not _is_older(branch, loss) or _is_whole(branch, commit)):
        if branch.state is BranchState.IN_USE and not commit.one_phase:
            branch.state = next_state(branch.key, branch.state, BranchEvent.PREPARE)  # that record was lost
        return moved, False
    if branch is not None:
        state.drop(branch)
    for assignment in commit.assignments:
        end = Offset(assignment.base + assignment.bytes)
        if state.offset_range(assignment.name).skip_to(end):
            moved.append((assignment.name, end))
    _note(state, commit.key, Outcome.COMMITTED, header)
    return moved, True


def _moved(
    state: "JournalState", loss: UnresolvedLoss, assignments: list[tuple[PartitionName, Offset]]
) -> list[tuple[PartitionName, Offset]]:
    """Skip ahead to their base offsets those partitions of *assignments* whose end is unknown."""
    moved = []
    for name, base in assignments:
        if name in loss.names or (loss.is_open and name not in state.offset_ranges):
            loss.names.discard(name)
            if base > state.end_of(name) and state.offset_range(name).skip_to(base):
                moved.append((name, base))
    return moved


def _is_whole(branch: "Branch", commit: Commit) -> bool:
    """Return True if the branch has everything that *commit* publishes."""
    put = {name: extents.bytes for name, extents in branch.extents.items()}
    return put == {assignment.name: assignment.bytes for assignment in commit.assignments}


def _has_relocated_extents(branch: "Branch", relocate: Relocate) -> bool:
    """Return True if the branch has the extents that *relocate* copies. An earlier copy may be in a lost record."""
    extents = branch.extents.get(relocate.name, ExtentList())
    last = relocate.first + len(relocate.extents)
    if [extent[1:] for extent in extents[relocate.first : last]] != [
        (extent.bytes, extent.messages, extent.time_ms) for extent in relocate.extents
    ]:
        return False
    for at, extent in enumerate(relocate.extents, relocate.first):
        extents[at] = extents[at]._replace(lsn=extent.lsn)
    return True


def _is_decided_branch(branch: "Branch", decided: Heuristic) -> bool:
    """Return True if the branch is the one the operator decided about. Its PREPARE may have been lost."""
    if (branch.messages, branch.bytes) != (decided.messages, decided.bytes):
        return False
    if branch.state is BranchState.IN_USE and decided.prepared_ms:
        branch.state = next_state(branch.key, branch.state, BranchEvent.PREPARE)
        branch.prepared_ms = decided.prepared_ms
    return branch.prepared_ms == decided.prepared_ms


def _is_older(branch: "Branch", loss: UnresolvedLoss) -> bool:
    return branch.first_lsn < loss.lsn


def _is_lost(state: "JournalState", loss: UnresolvedLoss, branch_lsn: Lsn) -> bool:
    """Return True if the branch began in a dropped record, or is lost already."""
    return branch_lsn < loss.lsn and branch_lsn not in state.branches


def _note(state: "JournalState", key: BranchKey, outcome: Outcome, header: RecordHeader) -> None:
    if isinstance(key, XaKey):
        state.outcomes.note(Ended(str(key), outcome, header.time_ms))
