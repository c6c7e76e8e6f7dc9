"""Folds a journal from which a repair dropped records. Pure.

A LOST record stands in place of records. Later ones assume their content: a PUT begins at an offset beyond the known
end, a COMMIT names an unknown branch. `reconcile` moves the state to where such a record can follow, once for every
partition, and permits nothing else: without a LOST record before it, the strict rules of the fold hold.

A branch that lost any of its messages is lost whole: it is never committed in part.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from journal.records.extents import ExtentList
from journal.records.header import Lsn, Offset, RecordHeader
from journal.records.outcomes import FinishedBranch, Outcome
from journal.records.record import (
    NO_BRANCH,
    Commit,
    DroppedRecords,
    Forget,
    Heuristic,
    PartitionEnd,
    PartitionName,
    Prepare,
    PutBatch,
    PutRecord,
    Record,
    Relocate,
    Rollback,
    TxPut,
)
from journal.records.states import BranchEvent, BranchState, next_state
from journal.records.topic_changes import TopicChange, TopicState
from journal.records.xid import BranchKey, XaKey
from journal.state.journal_state import Branch, JournalState, UnresolvedLoss


class Reconciled(NamedTuple):
    """Result of reconciling. *moved*: partitions that skip ahead, each with its new offset.
    *is_lost*: the record needs no folding, because its subject is lost."""

    moved: Sequence[tuple[PartitionName, Offset]] = ()
    is_lost: bool = False


AS_IT_IS: Final = Reconciled()
LOST: Final = Reconciled(is_lost=True)


def reconcile(state: JournalState, loss: UnresolvedLoss, header: RecordHeader, record: Record) -> Reconciled:
    """Change *state* to what *record* assumes. Raises ValueError."""
    assume = _ASSUMPTIONS.get(type(record))
    return AS_IT_IS if assume is None else assume(state, loss, header, record)


def resolving_records(state: JournalState, loss: UnresolvedLoss, record_bytes_max: int) -> Iterator[DroppedRecords]:
    """Yield the records that resolve *loss*: they name the ends of the partitions that no record named since."""
    names = list(unresolved_ends(state, loss).items())
    # Without any, append one of any partition all the same: it tells a copy that the loss is resolved.
    names = names or [(name, offset_range.end) for name, offset_range in islice(state.offset_ranges.items(), 1)]
    count = max(record_bytes_max // 300, 1)  # a topic takes 255 bytes at most, and the numbers beside it 13
    for at in range(0, len(names), count):
        yield DroppedRecords(tuple(PartitionEnd(name, end) for name, end in names[at : at + count]))


def unresolved_ends(state: JournalState, loss: UnresolvedLoss) -> dict[PartitionName, Offset]:
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


def _put(state: JournalState, loss: UnresolvedLoss, header: RecordHeader, put: PutRecord | PutBatch) -> Reconciled:
    del header
    return Reconciled(_moved(state, loss, [(put.name, put.base)]))


def _tx_put(state: JournalState, loss: UnresolvedLoss, header: RecordHeader, put: TxPut) -> Reconciled:
    del header
    if put.branch_lsn != NO_BRANCH:
        return Reconciled(is_lost=_is_lost(state, loss, put.branch_lsn))
    former = loss.branches.pop(put.key, None)
    if former is not None and state.branches.get(former.first_lsn) is former:
        state.drop(former)  # its end was lost, or this one could not have begun
    return AS_IT_IS


def _prepare(state: JournalState, loss: UnresolvedLoss, header: RecordHeader, prepare: Prepare) -> Reconciled:
    del header
    return _unless_whole(
        state,
        loss,
        prepare.branch_lsn,
        lambda branch: (prepare.messages, prepare.bytes) == (branch.messages, branch.bytes),
    )


def _rollback(state: JournalState, loss: UnresolvedLoss, header: RecordHeader, rollback: Rollback) -> Reconciled:
    if not _is_lost(state, loss, rollback.branch_lsn):
        return AS_IT_IS
    _add_outcome(state, rollback.key, Outcome.ROLLED_BACK, header)
    return LOST


def _commit(state: JournalState, loss: UnresolvedLoss, header: RecordHeader, commit: Commit) -> Reconciled:
    branch = state.branches.get(commit.branch_lsn)
    if branch is None and not _is_lost(state, loss, commit.branch_lsn):
        return AS_IT_IS
    moved = _moved(state, loss, [(assignment.name, assignment.base) for assignment in commit.assignments])
    if branch is not None and not _is_older(branch, loss):
        return Reconciled(moved)
    if branch is not None and _is_whole(branch, commit):
        if branch.state is BranchState.IN_USE and not commit.one_phase:
            branch.state = next_state(branch.key, branch.state, BranchEvent.PREPARE)  # that record was lost
        return Reconciled(moved)
    if branch is not None:
        state.drop(branch)
    for assignment in commit.assignments:
        end = Offset(assignment.base + assignment.bytes)
        if state.offset_range(assignment.name).skip_to(end):
            moved.append((assignment.name, end))
    _add_outcome(state, commit.key, Outcome.COMMITTED, header)
    return Reconciled(moved, is_lost=True)


def _relocate(state: JournalState, loss: UnresolvedLoss, header: RecordHeader, relocate: Relocate) -> Reconciled:
    del header
    return _unless_whole(state, loss, relocate.branch_lsn, lambda branch: _has_relocated_extents(branch, relocate))


def _end_heuristically(
    state: JournalState, loss: UnresolvedLoss, header: RecordHeader, decided: Heuristic
) -> Reconciled:
    del header
    return _unless_whole(state, loss, decided.branch_lsn, lambda branch: _is_decided_branch(branch, decided))


def _forget(state: JournalState, loss: UnresolvedLoss, header: RecordHeader, forget: Forget) -> Reconciled:
    del loss, header
    return Reconciled(is_lost=forget.key not in state.heuristics and state.ledger.find(str(forget.key)) is None)


def _change_topic(state: JournalState, loss: UnresolvedLoss, header: RecordHeader, change: TopicChange) -> Reconciled:
    del header
    while (
        change.state is TopicState.DELETED
        and (live := state.branch_with(change.topic)) is not None
        and _is_older(live, loss)
    ):
        state.drop(live)  # its end was lost, or the topic could not have been deleted
    return AS_IT_IS


_ASSUMPTIONS: Final[dict[type[Record], Callable[[JournalState, UnresolvedLoss, RecordHeader, Any], Reconciled]]] = {
    PutRecord: _put,
    PutBatch: _put,
    TxPut: _tx_put,
    Prepare: _prepare,
    Rollback: _rollback,
    Commit: _commit,
    Relocate: _relocate,
    Heuristic: _end_heuristically,
    Forget: _forget,
    TopicChange: _change_topic,
}


def _unless_whole(
    state: JournalState, loss: UnresolvedLoss, branch_lsn: Lsn, is_whole: Callable[[Branch], bool]
) -> Reconciled:
    """Drop the branch that began at *branch_lsn* if it lost any of its messages."""
    if _is_lost(state, loss, branch_lsn):
        return LOST
    branch = state.branches.get(branch_lsn)
    if branch is None or not _is_older(branch, loss) or is_whole(branch):
        return AS_IT_IS
    state.drop(branch)
    return LOST


def _moved(
    state: JournalState, loss: UnresolvedLoss, assignments: list[tuple[PartitionName, Offset]]
) -> list[tuple[PartitionName, Offset]]:
    """Skip ahead to their base offsets those partitions of *assignments* whose end is unknown."""
    moved = []
    for name, base in assignments:
        if name in loss.names or (loss.is_open and name not in state.offset_ranges):
            loss.names.discard(name)
            if base > state.end_of(name) and state.offset_range(name).skip_to(base):
                moved.append((name, base))
    return moved


def _is_whole(branch: Branch, commit: Commit) -> bool:
    """Return True if the branch has everything that *commit* publishes."""
    put = {name: extents.bytes for name, extents in branch.extents.items()}
    return put == {assignment.name: assignment.bytes for assignment in commit.assignments}


def _has_relocated_extents(branch: Branch, relocate: Relocate) -> bool:
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


def _is_decided_branch(branch: Branch, decided: Heuristic) -> bool:
    """Return True if the branch is the one the operator decided about. Its PREPARE may have been lost."""
    if (branch.messages, branch.bytes) != (decided.messages, decided.bytes):
        return False
    if branch.state is BranchState.IN_USE and decided.prepared_ms:
        branch.state = next_state(branch.key, branch.state, BranchEvent.PREPARE)
        branch.prepared_ms = decided.prepared_ms
    return branch.prepared_ms == decided.prepared_ms


def _is_older(branch: Branch, loss: UnresolvedLoss) -> bool:
    return branch.first_lsn < loss.lsn


def _is_lost(state: JournalState, loss: UnresolvedLoss, branch_lsn: Lsn) -> bool:
    """Return True if the branch began in a dropped record, or is lost already."""
    return branch_lsn < loss.lsn and branch_lsn not in state.branches


def _add_outcome(state: JournalState, key: BranchKey, outcome: Outcome, header: RecordHeader) -> None:
    if isinstance(key, XaKey):
        state.outcomes.add(FinishedBranch(str(key), outcome, header.time_ms))
