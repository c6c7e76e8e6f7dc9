"""The one function that adds a record to the state of a journal. Pure.

Live appends, recovery, checks and tests all call `apply`: no other code interprets records.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, get_args

from journal.errors import ContradictoryRecord
from journal.records.dead_letters import DeadLetter
from journal.records.epoch_history import WriterEpoch, add_epoch
from journal.records.extents import Extent, ExtentList
from journal.records.header import Lsn, Offset, RecordHeader
from journal.records.heuristics import EVENTS, HeuristicDecision, HeuristicEnd
from journal.records.index_updates import IndexUpdate, IndexUpdateRun, IndexUpdates
from journal.records.ledger import Finding, LedgerEntry
from journal.records.outcomes import FinishedBranch, Outcome
from journal.records.producer_state import StoredBatch
from journal.records.record import (
    NO_BRANCH,
    CheckpointWritten,
    Commit,
    Decision,
    DroppedRecords,
    Epoch,
    Forget,
    Heuristic,
    OffsetAssignment,
    Pad,
    PartitionName,
    Prepare,
    PutBatch,
    PutRecord,
    Record,
    Relocate,
    RelocatedExtent,
    Rollback,
    RollbackReason,
    TxPut,
)
from journal.records.states import BranchEvent, BranchState, VerbRefused, next_state
from journal.records.topic_changes import TopicChange, TopicState
from journal.records.xid import BranchKey, XaKey
from journal.state.dropped_records import reconcile
from journal.state.journal_state import Branch, JournalState, UnresolvedLoss, accounted_bytes


def apply(state: JournalState, header: RecordHeader, record: Record) -> Sequence[IndexUpdate]:
    """Add one record; returns the index updates it publishes, in offset order per partition.

    Records must come in LSN order. Raises ContradictoryRecord if the record contradicts the state.
    """
    jumps: list[IndexUpdate] = []
    is_lost = False
    try:
        if state.unresolved_loss is not None:
            moved, is_lost = reconcile(state, state.unresolved_loss, header, record)
            jumps = [_skip(name, base, header) for name, base in moved]
        updates = [] if is_lost else _MEANINGS[type(record)](state, header, record)
    except (ValueError, VerbRefused) as error:
        raise ContradictoryRecord(
            f"LSN {header.lsn}: {type(record).__name__} contradicts what came before: {error}"
        ) from error
    state.lsn = header.end
    if header.time_ms > state.time_ms:
        state.time_ms = header.time_ms
    return [*jumps, *updates] if jumps else updates


def _skip(name: PartitionName, base: Offset, header: RecordHeader) -> IndexUpdate:
    """Return an update that moves a partition's end to *base*, with nothing stored before it: an extent without
    messages."""
    return IndexUpdate(name, base, Extent(header.lsn, 0, 0, header.time_ms))


def _put(state: JournalState, header: RecordHeader, record: PutRecord | PutBatch) -> Sequence[IndexUpdate]:
    name, base = record.name, record.base
    extent = Extent(header.body_lsn, header.body_bytes, record.count, header.time_ms)
    state.offset_range(name).append(base, extent.bytes)
    return [IndexUpdate(name, base, extent)]


def _put_batch(state: JournalState, header: RecordHeader, record: PutBatch) -> Sequence[IndexUpdate]:
    name, sequence = record.name, record.sequence
    stored = StoredBatch(sequence.number, record.base, record.count, record.first_id)
    state.producers.add(sequence.producer, name.topic, name.partition, stored)
    return _put(state, header, record)


def _tx_put(state: JournalState, header: RecordHeader, record: TxPut) -> Sequence[IndexUpdate]:
    if record.branch_lsn == NO_BRANCH:
        branch = Branch(record.key, header.lsn, header.time_ms)
        if isinstance(record.key, XaKey):
            state.outcomes.remove(str(record.key))
        state.branches[header.lsn] = branch
    else:
        branch = _live(state, record.key, record.branch_lsn)
        next_state(branch.key, branch.state, BranchEvent.PUT)
    branch.add(record.name, Extent(header.body_lsn, header.body_bytes, record.count, header.time_ms))
    state.branches_accounted_bytes += accounted_bytes(header.body_bytes)
    return []


def _prepare(state: JournalState, header: RecordHeader, record: Prepare) -> Sequence[IndexUpdate]:
    branch, messages, size = _live(state, record.key, record.branch_lsn), record.messages, record.bytes
    if messages != branch.messages or size != branch.bytes:
        raise ValueError(f"{messages} messages of {size} bytes, not {branch.messages} of {branch.bytes}")
    branch.state = next_state(branch.key, branch.state, BranchEvent.PREPARE)
    branch.prepared_ms = header.time_ms
    return []


def _commit(state: JournalState, header: RecordHeader, record: Commit) -> Sequence[IndexUpdate]:
    branch = _live(state, record.key, record.branch_lsn)
    if branch.decision is HeuristicDecision.ROLLBACK:
        raise ValueError("an operator decided to roll it back")
    event = BranchEvent.COMMIT_ONE_PHASE if record.one_phase else BranchEvent.COMMIT_TWO_PHASE
    branch.state = next_state(branch.key, branch.state, event)
    _end_branch(state, branch, Outcome.COMMITTED, header.time_ms)
    return _publish(state, branch, record.assignments)


def _rollback(state: JournalState, header: RecordHeader, record: Rollback) -> Sequence[IndexUpdate]:
    branch, reason = _live(state, record.key, record.branch_lsn), record.reason
    if branch.decision is HeuristicDecision.COMMIT:
        raise ValueError("an operator decided to commit it")
    if branch.state is BranchState.PREPARED and reason is not RollbackReason.ASKED:
        raise ValueError(f"a prepared branch is rolled back when it is asked for, not as {reason.name}")
    branch.state = next_state(branch.key, branch.state, BranchEvent.ROLLBACK)
    _end_branch(state, branch, Outcome.ROLLED_BACK, header.time_ms)
    return []


def _relocate(state: JournalState, header: RecordHeader, record: Relocate) -> Sequence[IndexUpdate]:
    """Point the branch's extents at the copies; their order, times and counts stay."""
    branch = _live(state, record.key, record.branch_lsn)
    extents = branch.extents.get(record.name, ExtentList())
    first, relocated = record.first, record.extents
    if [RelocatedExtent(*extent) for extent in extents[first : first + len(relocated)]] != list(relocated):
        raise ValueError(f"{len(relocated)} runs from number {first} on in {record.name}: they are not the branch's")
    if sum(extent.bytes for extent in relocated) != header.body_bytes:
        raise ValueError(f"a body of {header.body_bytes} bytes, where the runs have other lengths")
    if first == 0 and record.name == next(iter(branch.extents)):  # its first put: a relocation begins
        state.branches[branch.first_lsn] = state.branches.pop(branch.first_lsn)
    lsn = header.body_lsn
    for at, extent in enumerate(relocated, first):
        extents[at] = Extent(lsn, extent.bytes, extent.messages, extent.time_ms)
        lsn = Lsn(lsn + extent.bytes)
    return []


def _end_heuristically(state: JournalState, header: RecordHeader, record: Heuristic) -> Sequence[IndexUpdate]:
    branch, key = _live(state, record.key, record.branch_lsn), record.key
    seen = branch.prepared_ms, branch.messages, branch.bytes
    if not isinstance(key, XaKey) or seen != (record.prepared_ms, record.messages, record.bytes):
        raise ValueError(f"decided about {record.messages} messages of {record.bytes} bytes, which is not what it put")
    after = next_state(key, branch.state, EVENTS[record.decision])
    state.heuristics.pop(key, None)  # of an earlier branch of that name
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


def _forget(state: JournalState, header: RecordHeader, record: Forget) -> Sequence[IndexUpdate]:
    del header
    is_found = state.ledger.remove(str(record.key))
    is_decided = isinstance(record.key, XaKey) and state.heuristics.pop(record.key, None) is not None
    if not is_found and not is_decided:
        raise ValueError(f"{record.key} has neither a heuristic decision nor a finding")
    return []


def _record_finding(state: JournalState, header: RecordHeader, record: LedgerEntry) -> Sequence[IndexUpdate]:
    if not isinstance(record.key, XaKey):
        raise ValueError(f"{record.key} is no XA branch")
    state.ledger.add(
        Finding(
            key=str(record.key),
            disagreement=record.disagreement,
            who=record.who,
            why=record.why,
            evidence=record.evidence,
            time_ms=header.time_ms,
        )
    )
    return []


def _begin_epoch(state: JournalState, header: RecordHeader, record: Epoch) -> Sequence[IndexUpdate]:
    del header
    state.epoch, state.incarnation = record.epoch, record.incarnation
    add_epoch(state.epoch_history, WriterEpoch(record.epoch, record.incarnation, state.lsn))
    return []


def _note_checkpoint(state: JournalState, header: RecordHeader, record: CheckpointWritten) -> Sequence[IndexUpdate]:
    del header
    state.checkpoint = record.number
    return []


def _pass_over(state: JournalState, header: RecordHeader, record: Pad) -> Sequence[IndexUpdate]:
    del state, header, record
    return []


def _drop_records(state: JournalState, header: RecordHeader, record: DroppedRecords) -> Sequence[IndexUpdate]:
    if record.ends:
        state.unresolved_loss = None
        return [
            _skip(one.name, one.end, header) for one in record.ends if state.offset_range(one.name).skip_to(one.end)
        ]
    state.unresolved_loss = UnresolvedLoss.after(state, header)
    return []


def _reject(state: JournalState, header: RecordHeader, record: Decision | DeadLetter) -> Sequence[IndexUpdate]:
    del state, header
    whose = "coordinator" if isinstance(record, Decision) else "consumer"
    raise ValueError(f"a {whose}'s record in a broker's journal")


def _end_branch(state: JournalState, branch: Branch, outcome: Outcome, time_ms: int) -> None:
    state.drop(branch)
    if isinstance(branch.key, XaKey):  # a local one concerns its connection only, which got the reply
        state.outcomes.add(FinishedBranch(str(branch.key), outcome, time_ms))


def _change_topic(state: JournalState, header: RecordHeader, change: TopicChange) -> Sequence[IndexUpdate]:
    del header
    topic = change.topic
    if change.state is TopicState.DELETED:
        if (branch := state.branch_with(topic)) is not None:
            raise ValueError(f"{topic} is deleted while branch {branch.key} has messages for it")
        for name, offset_range in state.offset_ranges.items():
            if name.topic == topic:
                # No offset is reused: stored offsets of groups must not point into other messages.
                offset_range.start = offset_range.end
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


def _publish(state: JournalState, branch: Branch, assignments: tuple[OffsetAssignment, ...]) -> Sequence[IndexUpdate]:
    if (
        len(assignments) != len(branch.extents)
        or {assignment.name for assignment in assignments} != branch.extents.keys()
    ):
        raise ValueError("the partitions it takes are not those the branch put to")
    update_runs = []
    for assignment in assignments:
        extents = branch.extents[assignment.name]
        if (extents.bytes, extents.messages) != (assignment.bytes, assignment.count):
            raise ValueError(
                f"{assignment.count} messages of {assignment.bytes} bytes taken in {assignment.name}: "
                f"the branch did not put that there"
            )
        state.offset_range(assignment.name).append(assignment.base, assignment.bytes)
        update_runs.append(IndexUpdateRun(assignment.name, assignment.base, extents))
    return IndexUpdates(update_runs)


# A table by record type: a match would try one class after the other for every record of a journal.
_MEANINGS: Final[dict[type[Record], Callable[[JournalState, RecordHeader, Any], Sequence[IndexUpdate]]]] = {
    PutRecord: _put,
    PutBatch: _put_batch,
    TxPut: _tx_put,
    Prepare: _prepare,
    Commit: _commit,
    Rollback: _rollback,
    Relocate: _relocate,
    Heuristic: _end_heuristically,
    LedgerEntry: _record_finding,
    Forget: _forget,
    Epoch: _begin_epoch,
    CheckpointWritten: _note_checkpoint,
    Pad: _pass_over,
    TopicChange: _change_topic,
    DroppedRecords: _drop_records,
    Decision: _reject,
    DeadLetter: _reject,
}
assert _MEANINGS.keys() == set(get_args(Record)), "every kind of record means something"
