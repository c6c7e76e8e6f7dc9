"""JournalTransactionStore: begin, put, prepare, commit, rollback, recover, on one journal.

One owner thread (a broker's loop). A verb checks that it is legal, appends its record, folds it into the state and
returns the LSN below which the journal must be acknowledged before anybody may be told. Memory runs ahead of
the disk, knowledge never does: whoever answers waits at the fence, errors included, because an error too
tells what another, unacknowledged record did. A record that cannot be written stops the journal for good.
"""

import time
from collections.abc import Callable, Sequence
from itertools import islice

import msgspec

from journal.batches import BatchSequence, StoredBatch
from journal.carrying import Piece
from journal.checkpoint import Checkpoint
from journal.checkpointed import Checkpointed
from journal.fence import LSN_MAX
from journal.fold import Branch, apply
from journal.frame import META_BYTES_MAX, Header, Lsn
from journal.heuristics import EVENTS, HEURISTICS_MAX, STATES, HeuristicDecision
from journal.journal import Journal
from journal.loss import ends_in_doubt
from journal.open_journal import JournalConfig
from journal.publications import Publication
from journal.record_codec import carry_bytes_at_most, commit_bytes_at_most
from journal.records import (
    NO_BRANCH,
    CarriedRun,
    Carry,
    CheckpointMark,
    Commit,
    Epoch,
    Forget,
    Heuristic,
    Lost,
    PartitionEnd,
    PartitionName,
    Prepare,
    Put,
    PutBatch,
    Record,
    Rollback,
    RollbackReason,
    TxPut,
)
from journal.recovery import NoSink, PublicationSink, Recovered, recover
from journal.replaying import Received
from journal.segments import Identity, Segments
from journal.states import BranchEvent, BranchNotStarted, BranchState, HeuristicallyEnded, XaCode, next_state
from journal.storage import Buffer, Storage
from journal.topic_changes import TopicChange, TopicState
from journal.turns import Turns
from journal.xid import BranchKey, XaKey


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


class Transaction(msgspec.Struct, eq=False):
    """One live branch as the store's callers hold it. *branch* is None until something was put.

    *timeout_ms*: rolled back when it is still active that long after *began_ms*; 0 never.
    """

    key: BranchKey
    began_ms: int
    timeout_ms: int = 0
    branch: Branch | None = None
    is_over: bool = False
    origin: str = ""  # who began it, for people; not known of a branch that is older than this life of the broker

    @property
    def state(self) -> BranchState:
        if self.is_over:
            return BranchState.FINISHED
        return self.branch.state if self.branch is not None else BranchState.START


class Done(msgspec.Struct, frozen=True):
    """A record was appended: what it publishes, and the LSN to wait for before anyone is told."""

    lsn: Lsn
    publications: Sequence[Publication]


class JournalTransactionStore(Checkpointed):
    """The store of one broker. Owner thread only, but for `write_checkpoint`.

    `transactions` is the map of XA branches, started and prepared, in the order of their beginning; local
    transactions belong to whoever holds them (a connection), the store only keeps their runs.
    """

    def __init__(self, journal: Journal, recovered: Recovered, clock_ms: Callable[[], int]) -> None:
        super().__init__(journal, recovered, clock_ms)
        self.journal: Journal = journal
        self.transactions: dict[XaKey, Transaction] = {}
        self.alive = 0  # branches of both kinds that are begun and not over
        self._carried_bytes_max = journal.body_bytes_max - carry_bytes_at_most(1)

    @classmethod
    def open(
        cls,
        storage: Storage,
        identity: Identity,
        config: JournalConfig,
        *,
        version: str,
        sink: PublicationSink | None = None,
        on_progress: Callable[[], None] = lambda: None,
        clock_ms: Callable[[], int] = wall_clock_ms,
        turns: Turns | None = None,
        epoch: Callable[[int], int] = lambda recovered: max(recovered, 1),
        publish_below: Lsn = LSN_MAX,
    ) -> "JournalTransactionStore":
        """Recover what the directory holds, then append. PREPARED branches are in doubt, ACTIVE ones rolled back.

        What records above *publish_below* say is kept in `recovered.waiting` and not told to *sink*, unless a
        checkpoint holds it: nobody knows that it was acknowledged.

        *epoch* is told the epoch of the last record, 0 in an empty journal, and says the one to write with, which is
        durable on return: a promotion raises it. What it raises ends this before anything is appended.

        Returns with recovery done and its own records durable, or leaves nothing open. Raises ForeignJournal,
        RottenJournal, InvalidRecord, StorageFailed.
        """
        sink = sink or NoSink()
        segments = Segments.open(storage, identity, config.segment_bytes, writable=True)
        try:
            recovered = recover(segments, sink, publish_below)
            state = recovered.state
            journal = Journal.start(
                segments,
                recovered.end,
                epoch=epoch(state.epoch),
                incarnation=state.incarnation + 1,
                flush=config.flush,
                on_progress=on_progress,
                turns=turns,
            )
        except BaseException:
            segments.close()
            raise
        store = cls(journal, recovered, clock_ms)
        try:
            if published := store._begin_life(version):
                if journal.end > publish_below:
                    recovered.waiting.append(Received(journal.end, published))
                else:
                    for publication in published:
                        sink.publish(publication)
        except BaseException:
            journal.close()
            raise
        return store

    def _begin_life(self, version: str) -> list[Publication]:
        """The records of an open, durable on return: who writes from now on, what a repair left open, what is presumed
        aborted, and what an operator had decided when the power went. Returns what that publishes."""
        self._append(Epoch(self.journal.epoch, self.journal.incarnation, version))
        published = self._settle()
        for branch in sorted(self.state.branches.values(), key=lambda branch: branch.first_lsn):
            if branch.decision is not None:
                published += self._carry_out(branch, branch.decision).publications
            elif branch.state is BranchState.PREPARED and isinstance(branch.key, XaKey):
                self.transactions[branch.key] = Transaction(branch.key, branch.began_ms, branch=branch)
                self.alive += 1
            else:
                self._append(Rollback(branch.key, branch.first_lsn, RollbackReason.PRESUMED))
        self.journal.wait_flushed(self.journal.end)
        return published

    def _settle(self) -> list[Publication]:
        """Say where partitions go on whose last records a repair dropped."""
        doubt = self.state.doubt
        published: list[Publication] = []
        if doubt is not None:
            names = list(ends_in_doubt(self.state, doubt).items())
            # With nothing left to say it is said all the same, of any partition: a copy must know that nothing is open.
            names = names or [(name, span.end) for name, span in islice(self.state.spans.items(), 1)]
            # A topic takes 255 bytes at most, and the numbers beside it 13.
            count = max(min(self.journal.body_bytes_max, META_BYTES_MAX) // 300, 1)
            for at in range(0, len(names), count):
                ends = tuple(PartitionEnd(name, end) for name, end in names[at : at + count])
                published += self._append(Lost(ends)).publications
            self.state.doubt = None
        return published

    # -- messages ---------------------------------------------------------------------------------------------

    def put(self, name: PartitionName, frames: Sequence[Buffer], frame_bytes: int, count: int) -> Done:
        """Append *count* messages, outside any transaction, at the end of a partition.

        `publications[0].base` is their offset, final once acknowledged. *frames* must not change until then.
        """
        return self._append(Put(name, self.state.end_of(name), count), frames, frame_bytes)

    def find_batch(self, name: PartitionName, sequence: BatchSequence) -> StoredBatch | None:
        """Where a numbered batch is stored already, acknowledged or not; None if it is new. Raises BatchTooOld."""
        return self.state.batches.find(sequence, name.topic, name.partition)

    def put_batch(
        self,
        name: PartitionName,
        frames: Sequence[Buffer],
        frame_bytes: int,
        count: int,
        first_id: int,
        sequence: BatchSequence,
    ) -> Done:
        """As put, for a batch that `find_batch` did not find: its number is remembered with its place."""
        record = PutBatch(name, self.state.end_of(name), count, first_id, sequence)
        return self._append(record, frames, frame_bytes)

    def begin(self, key: BranchKey, timeout_ms: int = 0) -> Transaction:
        """Start a branch; nothing is journaled before its first put. A live XA key is returned as it is (spec 2.6)."""
        if isinstance(key, XaKey) and (live := self.transactions.get(key)) is not None:
            return live
        transaction = Transaction(key, self._clock_ms(), timeout_ms)
        self.alive += 1
        if isinstance(key, XaKey):
            self.transactions[key] = transaction
        return transaction

    def find(self, key: XaKey) -> Transaction:
        """The live branch of *key*. Raises BranchNotStarted, HeuristicallyEnded."""
        if (transaction := self.transactions.get(key)) is not None:
            return transaction
        if (ended := self.state.heuristics.get(key)) is not None:
            raise HeuristicallyEnded(key, STATES[ended.decision])
        raise BranchNotStarted(key)

    def transactional_put(
        self, transaction: Transaction, name: PartitionName, frames: Sequence[Buffer], frame_bytes: int, count: int
    ) -> Lsn:
        """Store *count* messages inside a branch, visible to nobody. Raises XaError once it is prepared or over,
        RecordTooLarge.

        The caller may answer at once: until PREPARE the broker promises nothing.
        """
        next_state(transaction.key, transaction.state, BranchEvent.PUT)
        branch = transaction.branch
        first_lsn = NO_BRANCH if branch is None else branch.first_lsn
        record = TxPut(transaction.key, first_lsn, name, count)
        if frame_bytes > self._carried_bytes_max:  # what is taken in must fit into a CARRY too
            run = CarriedRun(NO_BRANCH, frame_bytes, count, 0)
            self.journal.check_fits(Carry(transaction.key, first_lsn, name, 0, 0, (run,)), frame_bytes)
        lsn = self._append(record, frames, frame_bytes).lsn
        if branch is None:
            transaction.branch = next(reversed(self.state.branches.values()))
        return lsn

    # -- verbs ------------------------------------------------------------------------------------------------

    def prepare(self, transaction: Transaction) -> tuple[XaCode, Lsn]:
        """Promise that the branch can still commit or roll back after any crash.

        Returns the vote (XA_OK; XA_RDONLY if nothing was put, and the branch is over) and the LSN to wait for.
        Raises XaError, RecordTooLarge when the branch touches more partitions than one COMMIT can name.
        """
        after = next_state(transaction.key, transaction.state, BranchEvent.PREPARE)
        branch = transaction.branch
        if after is BranchState.FINISHED or branch is None:
            self._forget(transaction)
            return XaCode.XA_RDONLY, self.journal.end
        # A promise to commit is only given if the COMMIT record will fit, however far the offsets have moved by then.
        if commit_bytes_at_most(len(branch.runs)) > min(self.journal.body_bytes_max, META_BYTES_MAX):
            self.journal.check_fits(Commit(branch.key, branch.first_lsn, False, branch.takes(self.state.spans)))
        done = self._append(Prepare(branch.key, branch.first_lsn, branch.messages, branch.bytes))
        return XaCode.XA_OK, done.lsn

    def commit(self, transaction: Transaction, *, one_phase: bool) -> Done:
        """Decide for the branch: its messages take their offsets. The record, durable, is the commit point.

        Raises XaError; RecordTooLarge, as `prepare` does, in one phase, and the branch stays as it was.
        """
        event = BranchEvent.COMMIT_ONE_PHASE if one_phase else BranchEvent.COMMIT_TWO_PHASE
        next_state(transaction.key, transaction.state, event)
        branch = transaction.branch
        if branch is None:
            done = Done(self.journal.end, [])
        else:
            done = self._append(Commit(branch.key, branch.first_lsn, one_phase, branch.takes(self.state.spans)))
        self._forget(transaction)
        return done

    def rollback(self, transaction: Transaction, reason: RollbackReason = RollbackReason.ASKED) -> Lsn:
        """Decide against the branch. Returns the LSN to wait for. Raises XaError.

        For any other reason than that somebody asked, a prepared branch is left as it is: it has promised.
        """
        event = BranchEvent.ROLLBACK if reason is RollbackReason.ASKED else BranchEvent.TIMEOUT
        if next_state(transaction.key, transaction.state, event) is not BranchState.FINISHED:
            return self.journal.end
        branch = transaction.branch
        lsn = self.journal.end if branch is None else self._append(Rollback(branch.key, branch.first_lsn, reason)).lsn
        self._forget(transaction)
        return lsn

    def recover(self, qualifier: str | None = None) -> list[Transaction]:
        """The prepared XA branches of a unique qualifier (None: all), in the order of their beginning."""
        return [
            transaction
            for key, transaction in self.transactions.items()
            if transaction.state is BranchState.PREPARED and qualifier in (None, key.qualifier)
        ]

    def carry(self, piece: Piece, frames: Sequence[Buffer]) -> Lsn | None:
        """Append copies of a live branch's runs, which point at them from here on. *frames*: what `copies` gave.

        Returns the LSN below which that is durable once acknowledged; None, and nothing is done, once the branch is
        over.
        """
        branch = piece.branch
        if branch.first_lsn not in self.state.branches:
            return None
        carried = tuple(CarriedRun(*run) for run in piece.runs)
        record = Carry(branch.key, branch.first_lsn, piece.name, piece.first, piece.position, carried)
        return self._append(record, frames, piece.bytes).lsn

    # -- heuristics: what an operator decides ----------------------------------------------------------------------

    def decide(self, transaction: Transaction, decision: HeuristicDecision, who: str, why: str) -> Done:
        """End a prepared branch by hand. The decision is a record of its own, with its evidence; what it does, but for
        COMPLETE, a second one: should only the first survive, the next open does the rest.

        Raises XaError unless the branch is prepared, ValueError for a *who* or *why* that is empty or too long, and
        while there are too many decisions that nobody has forgotten.
        """
        next_state(transaction.key, transaction.state, EVENTS[decision])
        if (known := len(self.state.heuristics)) >= HEURISTICS_MAX:
            raise ValueError(f"{known} decisions of operators are remembered: forget some with `metaq txn forget`")
        branch = transaction.branch
        assert branch is not None, "a prepared branch has messages"
        seen = branch.prepared_ms, branch.messages, branch.bytes
        done = self._append(Heuristic(branch.key, branch.first_lsn, decision, *seen, who, why))
        if decision is not HeuristicDecision.COMPLETE:
            done = self._carry_out(branch, decision)
        self._forget(transaction)
        return done

    def _carry_out(self, branch: Branch, decision: HeuristicDecision) -> Done:
        if decision is HeuristicDecision.COMMIT:
            return self._append(Commit(branch.key, branch.first_lsn, False, branch.takes(self.state.spans)))
        return self._append(Rollback(branch.key, branch.first_lsn, RollbackReason.ASKED))

    def heuristics(self, qualifier: str | None = None) -> list[XaKey]:
        """The branches that operators ended and nobody forgot, of a unique qualifier (None: all), oldest first."""
        return [key for key in self.state.heuristics if qualifier in (None, key.qualifier)]

    def forget(self, key: XaKey) -> Lsn:
        """Drop what an operator decided about *key*; nothing happens to a branch that is live, or unknown (spec 2.7).

        Returns the LSN to wait for.
        """
        return self._append(Forget(key)).lsn if key in self.state.heuristics else self.journal.end

    # -- topics -----------------------------------------------------------------------------------------------

    def change_topic(self, change: TopicChange) -> Lsn:
        """Decide about a topic; from here on *change* is all that run-time decisions say of it.

        Returns the LSN to wait for before anyone is told. Raises RecordTooLarge, and ValueError when a topic is to be
        deleted that a live branch has messages for; nothing is changed then.
        """
        if change.state is TopicState.DELETED and (branch := self.state.branch_with(change.topic)) is not None:
            raise ValueError(f"{branch.key} has messages for it: finish that transaction first")
        return self._append(change).lsn

    def _forget(self, transaction: Transaction) -> None:
        assert not transaction.is_over
        transaction.is_over = True
        self.alive -= 1
        if isinstance(transaction.key, XaKey) and self.transactions.get(transaction.key) is transaction:
            del self.transactions[transaction.key]

    def _append(self, record: Record, frames: Sequence[Buffer] = (), frame_bytes: int = 0) -> Done:
        time_ms = max(self._clock_ms(), self.state.time_ms)  # none is behind one before it, whatever the clock says
        header: Header = self.journal.append(record, time_ms, frames, frame_bytes)
        publications = apply(self.state, header, record)
        return Done(self.state.lsn, publications)

    # -- checkpoints ------------------------------------------------------------------------------------------

    def note_checkpoint(self, number: int, checkpoint: Checkpoint) -> None:
        """Say in the journal that checkpoint *number* exists."""
        self._append(CheckpointMark(number, Lsn(checkpoint.lsn)))
