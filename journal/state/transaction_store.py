"""JournalTransactionStore: begin, put, prepare, commit, rollback, recover, on one journal.

One owner thread (a broker's loop). A verb checks that it is legal, appends its record, folds it into the state and
returns the LSN below which the journal must be acknowledged before the reply. Memory runs ahead of the disk, replies
never do: every reply waits for the high watermark, an error too, because it may reveal another, unacknowledged record.
A record that cannot be written stops the journal for good.
"""

from collections.abc import Callable, Sequence

from journal.records.codec import commit_bytes_at_most, relocate_bytes_at_most
from journal.records.header import META_BYTES_MAX, Lsn
from journal.records.heuristics import EVENTS, HEURISTICS_MAX, STATES, HeuristicDecision
from journal.records.index_updates import IndexUpdate
from journal.records.ledger import LEDGER_BYTES_MAX, LedgerEntry
from journal.records.producer_state import BatchSequence
from journal.records.record import (
    NO_BRANCH,
    CheckpointWritten,
    Commit,
    Epoch,
    Forget,
    Heuristic,
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
from journal.records.states import BranchEvent, BranchNotStarted, BranchState, HeuristicallyEnded, XaCode, next_state
from journal.records.topic_changes import TopicChange, TopicState
from journal.records.xid import BranchKey, XaKey
from journal.state.checkpoint import Checkpoint
from journal.state.checkpointed import CheckpointedState
from journal.state.dropped_records import resolving_records
from journal.state.fold import apply
from journal.state.journal_state import Branch
from journal.state.live_branch import AppendResult, LiveBranch
from journal.state.recovery import IndexSink, NullSink, Recovered, recover
from journal.state.relocation import RelocationChunk
from journal.state.replay import PendingUpdates
from journal.state.wall_clock import check_clock, wall_clock_ms
from journal.wal.high_watermark import LSN_MAX
from journal.wal.inline_commit import LoopHooks
from journal.wal.journal import Journal
from journal.wal.open_journal import JournalConfig
from journal.wal.segments import JournalIdentity, Segments
from journal.wal.storage import Storage
from journal.wal.storage_file import Buffer


class JournalTransactionStore(CheckpointedState):
    """The store of one broker. Owner thread only, except `write_checkpoint`.

    `transactions` maps XA branches, started and prepared, in the order of their beginning; local transactions belong to
    their holder (a connection), the store only keeps their extents.
    """

    def __init__(self, journal: Journal, recovered: Recovered, clock_ms: Callable[[], int]) -> None:
        super().__init__(journal, recovered, clock_ms)
        self.journal: Journal = journal
        self.transactions: dict[XaKey, LiveBranch] = {}
        self.live_count = 0  # of both kinds, begun and not over
        self._meta_bytes_max = min(journal.body_bytes_max, META_BYTES_MAX)
        self._relocated_bytes_max = journal.body_bytes_max - relocate_bytes_at_most(1)

    @classmethod
    def open(
        cls,
        storage: Storage,
        identity: JournalIdentity,
        config: JournalConfig,
        *,
        version: str,
        sink: IndexSink | None = None,
        on_progress: Callable[[], None] = lambda: None,
        clock_ms: Callable[[], int] = wall_clock_ms,
        loop_hooks: LoopHooks | None = None,
        epoch: Callable[[Recovered], int] = lambda recovered: max(recovered.state.epoch, 1),
        publish_below: Lsn = LSN_MAX,
    ) -> "JournalTransactionStore":
        """Recover the directory, then append. PREPARED branches are in doubt, ACTIVE ones rolled back. Updates of
        records above *publish_below* go to `recovered.waiting` instead of *sink*, unless a checkpoint holds them: they
        may not have been acknowledged.

        *epoch* is called with what was recovered, epoch 0 of an empty journal, and returns the one to write with, which
        is durable on return: a promotion raises it. Its errors end the open before anything is appended.

        Returns with recovery done and its own records durable, or leaves nothing open. Raises ForeignJournal,
        CorruptJournal, InvalidRecord, ClockWrong, StorageFailed.
        """
        check_clock(clock_ms())
        sink = sink or NullSink()
        segments = Segments.open(storage, identity, config.segment_bytes, writable=True)
        try:
            recovered = recover(segments, sink, publish_below)
            journal = Journal.start(
                segments,
                recovered.end,
                epoch=epoch(recovered),
                incarnation=recovered.state.incarnation + 1,
                flush=config.flush,
                on_progress=on_progress,
                loop_hooks=loop_hooks,
            )
        except BaseException:
            segments.close()
            raise
        store = cls(journal, recovered, clock_ms)
        try:
            if published := store._begin_epoch(version):
                if journal.end > publish_below:
                    recovered.waiting.append(PendingUpdates(journal.end, published))
                else:
                    for update in published:
                        sink.publish(update)
        except BaseException:
            journal.close()
            raise
        return store

    def _begin_epoch(self, version: str) -> list[IndexUpdate]:
        """Append the records of an open, durable on return: the new epoch, ends that a repair left open, presumed
        rollbacks, and decisions of operators not carried out. Returns their updates."""
        self._append(Epoch(self.journal.epoch, self.journal.incarnation, version))
        published: list[IndexUpdate] = []
        if (loss := self.state.unresolved_loss) is not None:
            for record in resolving_records(self.state, loss, self._meta_bytes_max):
                published += self._append(record).updates
            self.state.unresolved_loss = None
        for branch in sorted(self.state.branches.values(), key=lambda branch: branch.first_lsn):
            if branch.decision is not None:
                published += self._apply_decision(branch, branch.decision).updates
            elif branch.state is BranchState.PREPARED and isinstance(branch.key, XaKey):
                self.transactions[branch.key] = LiveBranch(branch.key, branch.began_ms, branch=branch)
                self.live_count += 1
            else:
                self._append(Rollback(branch.key, branch.first_lsn, RollbackReason.PRESUMED))
        self.journal.wait_flushed(self.journal.end)
        return published

    # -- messages ---------------------------------------------------------------------------------------------

    def put(self, name: PartitionName, frames: Sequence[Buffer], frame_bytes: int, count: int) -> AppendResult:
        """Append *count* messages, outside any transaction, at the end of a partition.

        `updates[0].base` is their offset, final once acknowledged. *frames* must not change until then.
        """
        return self._append(PutRecord(name, self.state.end_of(name), count), frames, frame_bytes)

    def put_batch(
        self,
        name: PartitionName,
        frames: Sequence[Buffer],
        frame_bytes: int,
        count: int,
        first_id: int,
        sequence: BatchSequence,
    ) -> AppendResult:
        """Put a batch that `state.producers` does not know, and remember its number and place."""
        record = PutBatch(name, self.state.end_of(name), count, first_id, sequence)
        return self._append(record, frames, frame_bytes)

    def begin(self, key: BranchKey, timeout_ms: int = 0) -> LiveBranch:
        """Start a branch; nothing is journaled before its first put. Returns a live XA key's branch as it is (spec
        2.6)."""
        if isinstance(key, XaKey) and (live := self.transactions.get(key)) is not None:
            return live
        transaction = LiveBranch(key, self._clock_ms(), timeout_ms)
        self.live_count += 1
        if isinstance(key, XaKey):
            self.transactions[key] = transaction
        return transaction

    def find(self, key: XaKey) -> LiveBranch:
        """Return the live branch of *key*. Raises BranchNotStarted, HeuristicallyEnded."""
        if (transaction := self.transactions.get(key)) is not None:
            return transaction
        if (ended := self.state.heuristics.get(key)) is not None:
            raise HeuristicallyEnded(key, STATES[ended.decision])
        raise BranchNotStarted(key)

    def transactional_put(
        self, transaction: LiveBranch, name: PartitionName, frames: Sequence[Buffer], frame_bytes: int, count: int
    ) -> Lsn:
        """Store *count* messages inside a branch, not visible. Raises XaError once it is prepared or over,
        RecordTooLarge.

        The caller may reply at once: until PREPARE the broker promises nothing.
        """
        next_state(transaction.key, transaction.state, BranchEvent.PUT)
        branch = transaction.branch
        first_lsn = NO_BRANCH if branch is None else branch.first_lsn
        record = TxPut(transaction.key, first_lsn, name, count)
        if frame_bytes > self._relocated_bytes_max:  # an accepted put must fit into a CARRY too
            extent = RelocatedExtent(NO_BRANCH, frame_bytes, count, 0)
            self.journal.check_fits(Relocate(transaction.key, first_lsn, name, 0, 0, (extent,)), frame_bytes)
        lsn = self._append(record, frames, frame_bytes).lsn
        if branch is None:
            transaction.branch = next(reversed(self.state.branches.values()))
        return lsn

    # -- verbs ------------------------------------------------------------------------------------------------

    def prepare(self, transaction: LiveBranch) -> tuple[XaCode, Lsn]:
        """Prepare the branch: it can then commit or roll back after any crash.

        Returns the vote (XA_OK; XA_RDONLY if nothing was put, and the branch is over) and the LSN to wait for. Raises
        XaError, RecordTooLarge if the branch has more partitions than one COMMIT can name.
        """
        after = next_state(transaction.key, transaction.state, BranchEvent.PREPARE)
        branch = transaction.branch
        if after is BranchState.FINISHED or branch is None:
            self._release(transaction)
            return XaCode.XA_RDONLY, self.journal.end
        # Prepare only if the COMMIT record will fit, however far the offsets move meanwhile.
        if commit_bytes_at_most(len(branch.extents)) > self._meta_bytes_max:
            self.journal.check_fits(self._commit_of(branch))
        result = self._append(Prepare(branch.key, branch.first_lsn, branch.messages, branch.bytes))
        return XaCode.XA_OK, result.lsn

    def commit(self, transaction: LiveBranch, *, one_phase: bool) -> AppendResult:
        """Commit the branch: its messages get their offsets. The record, once durable, is the commit point.

        Raises XaError; in one phase also RecordTooLarge, as `prepare` does, and the branch stays as it was.
        """
        event = BranchEvent.COMMIT_ONE_PHASE if one_phase else BranchEvent.COMMIT_TWO_PHASE
        next_state(transaction.key, transaction.state, event)
        branch = transaction.branch
        if branch is None:
            result = AppendResult(self.journal.end, [])
        else:
            result = self._append(self._commit_of(branch, one_phase=one_phase))
        self._release(transaction)
        return result

    def rollback(self, transaction: LiveBranch, reason: RollbackReason = RollbackReason.ASKED) -> Lsn:
        """Roll the branch back. Returns the LSN to wait for. Raises XaError.

        For any reason other than ASKED, leaves a prepared branch as it is.
        """
        event = BranchEvent.ROLLBACK if reason is RollbackReason.ASKED else BranchEvent.TIMEOUT
        if next_state(transaction.key, transaction.state, event) is not BranchState.FINISHED:
            return self.journal.end
        branch = transaction.branch
        lsn = self.journal.end if branch is None else self._append(Rollback(branch.key, branch.first_lsn, reason)).lsn
        self._release(transaction)
        return lsn

    def recover(self, qualifier: str | None = None) -> list[LiveBranch]:
        """Return the prepared XA branches of a unique qualifier (None: all), in the order of their beginning."""
        return [
            transaction
            for key, transaction in self.transactions.items()
            if transaction.state is BranchState.PREPARED and qualifier in (None, key.qualifier)
        ]

    def relocate(self, chunk: RelocationChunk, frames: Sequence[Buffer]) -> Lsn | None:
        """Append copies of a live branch's extents, which then point at them. *frames*: from `read_chunk`.

        Returns the LSN below which that is durable once acknowledged; None, and does nothing, once the branch is over.
        """
        branch = chunk.branch
        if branch.first_lsn not in self.state.branches:
            return None
        relocated = tuple(RelocatedExtent(*extent) for extent in chunk.extents)
        record = Relocate(branch.key, branch.first_lsn, chunk.name, chunk.first, chunk.position, relocated)
        return self._append(record, frames, chunk.bytes).lsn

    # -- heuristics: what an operator decides, and finds ----------------------------------------------------------

    def end_heuristically(
        self, transaction: LiveBranch, decision: HeuristicDecision, who: str, why: str
    ) -> AppendResult:
        """End a prepared branch by an operator's decision, with its evidence. A second record carries it out, except
        for COMPLETE; if only the first survives, the next open appends the second. Raises XaError unless the branch is
        prepared, ValueError if *who* or *why* is empty or too long, or if too many decisions are not forgotten."""
        next_state(transaction.key, transaction.state, EVENTS[decision])
        if (known := len(self.state.heuristics)) >= HEURISTICS_MAX:
            raise ValueError(f"{known} decisions of operators are remembered: forget some with `metaq txn forget`")
        branch = transaction.branch
        assert branch is not None, "a prepared branch has messages"
        seen = branch.prepared_ms, branch.messages, branch.bytes
        result = self._append(Heuristic(branch.key, branch.first_lsn, decision, *seen, who, why))
        if decision is not HeuristicDecision.COMPLETE:
            result = self._apply_decision(branch, decision)
        self._release(transaction)
        return result

    def _apply_decision(self, branch: Branch, decision: HeuristicDecision) -> AppendResult:
        if decision is HeuristicDecision.COMMIT:
            return self._append(self._commit_of(branch))
        return self._append(Rollback(branch.key, branch.first_lsn, RollbackReason.ASKED))

    def _commit_of(self, branch: Branch, *, one_phase: bool = False) -> Commit:
        return Commit(branch.key, branch.first_lsn, one_phase, branch.assign_offsets(self.state.offset_ranges))

    def heuristics(self, qualifier: str | None = None) -> list[XaKey]:
        """Return the branches that operators ended, not forgotten, of a unique qualifier (None: all), oldest first."""
        return [key for key in self.state.heuristics if qualifier in (None, key.qualifier)]

    def forget(self, key: XaKey) -> Lsn:
        """Drop the operator's decision about *key* and its ledger entry; does nothing to a live or unknown branch (spec
        2.7). Returns the LSN to wait for."""
        is_kept = key in self.state.heuristics or self.state.ledger.find(str(key)) is not None
        return self._append(Forget(key)).lsn if is_kept else self.journal.end

    def record_finding(self, entry: LedgerEntry) -> Lsn:
        """Add *entry* to the ledger, replacing an older one about its branch; an equal one stays as it is.

        Returns the LSN to wait for. Raises ValueError for a text that is empty or too long, or if the ledger is full.
        """
        ledger, known = self.state.ledger, self.state.ledger.find(str(entry.key))
        if known is not None and (known.disagreement, known.evidence) == (entry.disagreement, entry.evidence):
            return self.journal.end
        if ledger.bytes >= LEDGER_BYTES_MAX:
            raise ValueError(f"the ledger is full, it holds {len(ledger)} entries: end some with `metaq txn forget`")
        return self._append(entry).lsn

    def change_topic(self, change: TopicChange) -> Lsn:
        """Decide about a topic: *change* replaces all earlier run-time decisions about it.

        Returns the LSN to wait for before replying. Raises RecordTooLarge, ValueError: the topic has live messages.
        """
        if change.state is TopicState.DELETED and (branch := self.state.branch_with(change.topic)) is not None:
            raise ValueError(f"{branch.key} has messages for it: finish that transaction first")
        return self._append(change).lsn

    def _release(self, transaction: LiveBranch) -> None:
        assert not transaction.is_over
        transaction.is_over = True
        self.live_count -= 1
        transaction.on_over()
        if isinstance(transaction.key, XaKey) and self.transactions.get(transaction.key) is transaction:
            del self.transactions[transaction.key]

    def _append(self, record: Record, frames: Sequence[Buffer] = (), frame_bytes: int = 0) -> AppendResult:
        time_ms = max(self._clock_ms(), self.state.time_ms)  # never decreasing, whatever the clock says
        updates = apply(self.state, self.journal.append(record, time_ms, frames, frame_bytes), record)
        return AppendResult(self.state.lsn, updates)

    def on_checkpoint(self, number: int, checkpoint: Checkpoint) -> None:
        """Append a record that checkpoint *number* exists."""
        self._append(CheckpointWritten(number, Lsn(checkpoint.lsn)))
