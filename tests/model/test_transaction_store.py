"""JournalTransactionStore under random verbs, power cuts and restarts, against a model too dumb to be wrong.

The writer is held at a gate before every fsync and after every write, and let on by rules of their own: what a
batch holds, and what the disk has when the power goes, is decided by hypothesis and can be replayed. METAQ_MODEL_SEED
repeats a run, METAQ_MODEL_STEPS makes it longer.
"""

import contextlib
from random import Random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)

from journal.errors import StorageFailed
from journal.records.heuristics import HeuristicDecision
from journal.records.index_updates import IndexUpdate
from journal.records.ledger import Disagreement
from journal.records.record import PartitionName, RollbackReason
from journal.records.states import BranchState, HeuristicallyEnded, VerbRefused, XaCode
from journal.records.xid import LocalKey, XaKey, parse_key
from journal.repair.check import check
from journal.state.checkpoint import Checkpoint
from journal.state.inspection import read_checkpoints
from journal.state.live_branch import LiveBranch
from journal.state.relocation import RelocationChunk, read_chunk, relocation_chunks
from journal.wal.flush_mode import SYNC, FlushMode
from tests.fixtures.faulty_storage import GATE_TIMEOUT_S, FaultyStorage, PowerCut
from tests.fixtures.journals import INTERVAL, ORDERS, STOCK, Index, open_store, xa
from tests.fixtures.ledger import Event, Ledger, Truth, Verb, appended, found_by, note_decision, note_finding
from tests.fixtures.raw_journal import opened
from tests.fixtures.retention import Cut, choose, drop
from tests.model.playing import TIMEOUT_S, Counted, play

NAMES = st.sampled_from([ORDERS, STOCK, PartitionName("stock", 4)])
SIZES = st.sampled_from([1, 7, 8, 60, 600, 3000])  # some fill a segment: rolls, PADs, and ends without room for one
KEYS = st.sampled_from(["a", "b", "c"])  # few, so that one key serves many branches


class TransactionStoreMachine(Counted):
    branches = Bundle("branches")  # numbers; those of a life that is over are simply not live any more

    @initialize(flush=st.sampled_from([SYNC, INTERVAL]), seed=st.integers(0, 2**16))
    def begin_the_first_life(self, flush: FlushMode, seed: int) -> None:
        self.flush = flush
        self.random = Random(seed)
        self.storage = FaultyStorage(self.random)
        self.ledger = Ledger()
        self.written = 0  # how many pieces of data were made so far
        self.live: dict[int, LiveBranch] = {}
        self.kept: dict[PartitionName, list[IndexUpdate]] = {}
        self.cut: Cut | None = None  # chosen, and nothing is dropped yet
        self.planned: list[RelocationChunk] = []  # rest of a relocation
        self.taken: tuple[Checkpoint, dict[PartitionName, list[IndexUpdate]]] | None = None
        self.open(lost=frozenset())

    # -- lives ------------------------------------------------------------------------------------------------

    def open(self, lost: frozenset[PartitionName]) -> None:
        self.index = Index(self.kept, lost)
        self.store = open_store(
            self.storage, sink=self.index, flush=self.flush, on_progress=lambda: self.storage.notify_gate()
        )
        self.ledger.restart(self.store.recovered.end)
        self.live = {event.branch: self.store.find(event.key) for event in self.undecided()}  # type: ignore[arg-type]
        self.storage.hold()

    def undecided(self) -> list[Event]:
        """The PREPARE events of branches that are not decided."""
        decided = {event.branch for event in self.ledger.events if event.ends_branch}
        return [e for e in self.ledger.events if e.verb is Verb.PREPARE and e.branch not in decided]

    @rule(cut=st.sampled_from(PowerCut), lost=st.frozensets(NAMES))
    def cut_the_power(self, cut: PowerCut, lost: frozenset[PartitionName]) -> None:
        after = self.storage.after_power_cut(cut, self.random)
        with contextlib.suppress(StorageFailed):
            self.store.close()
        acknowledged = self.store.journal.flushed
        self.storage, self.taken, self.cut, self.planned = after, None, None, []
        self.open(lost)
        end = self.store.recovered.end
        assert end >= acknowledged, "acknowledged bytes are gone"
        assert found_by(self.store, self.index) == self.truth_at(end)

    @rule(
        sizes=st.lists(st.tuples(NAMES, SIZES), min_size=2, max_size=6),
        steps=st.integers(1, 5),
        cut=st.sampled_from([PowerCut.TORN_SECTORS, PowerCut.TORN_BYTES, PowerCut.SHUFFLED]),
    )
    def cut_the_power_in_a_burst(self, sizes: list[tuple[PartitionName, int]], steps: int, cut: PowerCut) -> None:
        """Several records in one batch, of which the disk has got a part. Seldom reached by single rules."""
        for name, size in sizes:
            self.put(name, size)
        self.go_on(steps)
        self.cut_the_power(cut, frozenset())

    @rule(lost=st.frozensets(NAMES))
    def restart(self, lost: frozenset[PartitionName]) -> None:
        self.storage.let_go()
        self.store.close()
        end = self.store.journal.end
        assert self.store.journal.flushed == end
        self.taken, self.cut, self.planned = None, None, []
        assert check(opened(self.storage), read_checkpoints(self.storage)).is_sound
        self.open(lost)
        assert self.store.recovered.end >= end
        assert found_by(self.store, self.index) == self.truth_at(self.store.recovered.end)

    def truth_at(self, lsn: int) -> Truth:
        """Return the expected state, except for what retention has taken."""
        return self.ledger.at(lsn).since(self.index.starts)

    # -- the writer -------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Wait until the writer stands at the gate or has nothing to do."""
        journal = self.store.journal

        def is_settled() -> bool:
            done = journal.acknowledged_here if self.flush.interval_ms else journal.flushed
            return self.storage.is_blocked or done == journal.end

        self.storage.wait_until(is_settled)

    @precondition(lambda self: self.storage.is_blocked)
    @rule(steps=st.integers(1, 6))
    def let_the_writer_go_on(self, steps: int) -> None:
        self.go_on(steps)

    def go_on(self, steps: int) -> None:
        for _ in range(steps):
            if self.storage.is_blocked:
                self.storage.let_one_pass()
                self.settle()

    @rule()
    def wait_until_all_is_durable(self) -> None:
        self.storage.let_go()
        self.store.journal.wait_flushed(self.store.journal.end, GATE_TIMEOUT_S)
        self.storage.hold()

    # -- verbs ------------------------------------------------------------------------------------------------

    def data(self, size: int) -> bytes:
        self.written += 1
        return (b"<%d>" % self.written) * (size // 4) + b"." * (size % 4)

    @rule(name=NAMES, size=SIZES)
    def put(self, name: PartitionName, size: int) -> None:
        data = self.data(size)
        result = self.store.put(name, [data], len(data), 1)
        self.ledger.add(Event(result.lsn, Verb.PUT, name=name, data=data))
        self.index.publish_all(result.updates)
        self.settle()

    @rule(target=branches, key=KEYS, local=st.booleans())
    def begin(self, key: str, local: bool) -> int:
        return self.number_of_begun(key, local=local)

    def number_of_begun(self, key: str, *, local: bool) -> int:
        self.written += 1
        number = self.written
        if local:
            self.live[number] = self.store.begin(LocalKey("session", number))
            return number
        transaction = self.store.begin(xa(key))
        for known, other in self.live.items():
            if other is transaction:
                return known
        self.live[number] = transaction
        return number

    @rule(branch=branches, name=NAMES, size=SIZES)
    def transactional_put(self, branch: int, name: PartitionName, size: int) -> None:
        if (live := self.live.get(branch)) is None:
            return
        data = self.data(size)
        if live.state is BranchState.PREPARED:
            end = self.store.journal.end
            with pytest.raises(VerbRefused, match="Cannot put now"):
                self.store.transactional_put(live, name, [data], len(data), 1)
            assert self.store.journal.end == end
            return
        lsn = self.store.transactional_put(live, name, [data], len(data), 1)
        self.ledger.add(Event(lsn, Verb.TX_PUT, branch, live.key, name, data))
        self.settle()

    @rule(branch=branches)
    def prepare(self, branch: int) -> None:
        if (live := self.live.get(branch)) is None:
            return
        before, end = live.state, self.store.journal.end
        if isinstance(live.key, LocalKey) or before is BranchState.PREPARED:
            with pytest.raises(VerbRefused, match=r"Prepare not implemented|Cannot call prepare now"):
                self.store.prepare(live)
            assert self.store.journal.end == end
            return
        vote, lsn = self.store.prepare(live)
        if before is BranchState.START:
            assert (vote, lsn) == (XaCode.XA_RDONLY, end)
            del self.live[branch]
            return
        assert vote is XaCode.XA_OK
        self.ledger.add(Event(lsn, Verb.PREPARE, branch, live.key))
        self.settle()

    @rule(target=branches, key=KEYS, puts=st.lists(st.tuples(NAMES, SIZES), min_size=1, max_size=6))
    def promise(self, key: str, puts: list[tuple[PartitionName, int]]) -> int:
        """Begin, put and prepare at once: single rules seldom bring a branch that far."""
        branch = self.number_of_begun(key, local=False)
        for name, size in puts:
            self.transactional_put(branch, name, size)
        self.prepare(branch)
        return branch

    @rule(branch=consumes(branches), one_phase=st.booleans())
    def commit(self, branch: int, one_phase: bool) -> None:
        if (live := self.live.get(branch)) is None:
            return
        before, end = live.state, self.store.journal.end
        if not one_phase and before is not BranchState.PREPARED and not isinstance(live.key, LocalKey):
            with pytest.raises(VerbRefused, match="Cannot do 2 phase commit"):
                self.store.commit(live, one_phase=False)
            assert (live.state, self.store.journal.end) == (before, end)
            one_phase = True
        result = self.store.commit(live, one_phase=one_phase)
        self.index.publish_all(result.updates)
        self.over(branch, live, before, Verb.COMMIT, result.lsn, end)

    @rule(branch=consumes(branches))
    def rollback(self, branch: int) -> None:
        if (live := self.live.get(branch)) is not None:
            before, end = live.state, self.store.journal.end
            self.over(branch, live, before, Verb.ROLLBACK, self.store.rollback(live), end)

    @rule(branch=branches, reason=st.sampled_from([RollbackReason.TIMED_OUT, RollbackReason.DISCONNECTED]))
    def time_out(self, branch: int, reason: RollbackReason) -> None:
        if (live := self.live.get(branch)) is None:
            return
        before, end = live.state, self.store.journal.end
        lsn = self.store.rollback(live, reason)
        if before is BranchState.PREPARED:
            assert (lsn, live.state) == (end, BranchState.PREPARED)
        else:
            self.over(branch, live, before, Verb.ROLLBACK, lsn, end)

    @rule(branch=consumes(branches), decision=st.sampled_from(HeuristicDecision))
    def decide(self, branch: int, decision: HeuristicDecision) -> None:
        if (live := self.live.get(branch)) is None:
            return
        end = self.store.journal.end
        if live.state is not BranchState.PREPARED:
            with pytest.raises(VerbRefused, match=r"Cannot decide for it|Cannot"):
                self.store.end_heuristically(live, decision, "the model", "to see")
            assert self.store.journal.end == end
            return
        with appended(self.store) as records:
            result = self.store.end_heuristically(live, decision, "the model", "to see")
        self.index.publish_all(result.updates)
        note_decision(self.ledger, records, branch, live.key)
        del self.live[branch]
        assert isinstance(live.key, XaKey)
        with pytest.raises(HeuristicallyEnded):
            self.store.find(live.key)
        self.settle()

    @rule(key=KEYS, disagreement=st.sampled_from(Disagreement))
    def find(self, key: str, disagreement: Disagreement) -> None:
        note_finding(self.store, self.ledger, xa(key), disagreement)
        self.settle()

    @rule(key=KEYS)
    def forget(self, key: str) -> None:
        name, end = xa(key), self.store.journal.end
        is_kept = name in self.store.state.heuristics or self.store.state.ledger.find(str(name)) is not None
        lsn = self.store.forget(name)
        assert (lsn > end) == is_kept
        if is_kept:
            self.ledger.add(Event(lsn, Verb.FORGET, key=name))
        self.settle()

    def over(self, branch: int, live: LiveBranch, before: BranchState, verb: Verb, lsn: int, end: int) -> None:
        assert live.state is BranchState.FINISHED
        del self.live[branch]
        if before is BranchState.START:
            assert lsn == self.store.journal.end == end, "a branch without messages leaves no record"
        else:
            self.ledger.add(Event(lsn, verb, branch, live.key))
        self.settle()

    # -- checkpoints ------------------------------------------------------------------------------------------

    @rule()
    def take_a_snapshot(self) -> None:
        self.taken = (
            self.store.snapshot(),
            {name: list(entries) for name, entries in self.index.entries.items()},
        )

    @precondition(lambda self: self.taken is not None)
    @rule()
    def write_the_checkpoint(self) -> None:
        assert self.taken is not None
        checkpoint, kept = self.taken
        self.taken = None
        self.storage.let_go()
        number = self.store.write_checkpoint(checkpoint, {})
        assert self.store.journal.flushed >= checkpoint.lsn, "the checkpoint knows more than the journal"
        self.kept = kept
        self.storage.hold()
        self.store.on_checkpoint(number, checkpoint)
        self.settle()

    @rule()
    def checkpoint(self) -> None:
        self.take_a_snapshot()
        self.write_the_checkpoint()

    # -- relocation, retention ----------------------------------------------------------------------------------

    @precondition(lambda self: self.store.state.branches)
    @rule(data=st.data())
    def begin_to_carry(self, data: st.DataObject) -> None:
        branch = data.draw(st.sampled_from(list(self.store.state.branches.values())))
        self.planned = list(relocation_chunks(branch, self.store.journal.body_bytes_max))

    @precondition(lambda self: self.planned)
    @rule(count=st.integers(1, 4))
    def relocate(self, count: int) -> None:
        """Some of it; what is left waits while other things happen, as it does in a broker, or is never relocated."""
        self.wait_until_all_is_durable()
        for chunk in self.planned[:count]:
            is_live = chunk.branch.first_lsn in self.store.state.branches
            frames = read_chunk(self.store.journal, chunk) if is_live else []  # retention may have passed the others
            assert (self.store.relocate(chunk, frames) is not None) == is_live
            self.settle()
        del self.planned[:count]

    @rule(segments=st.integers(1, 2))
    def choose_what_may_go(self, segments: int) -> None:
        self.storage.let_go()
        self.store.journal.wait_flushed(self.store.journal.end)
        self.cut = choose(self.store, self.index, segments) or self.cut
        self.storage.hold()
        self.settle()

    @precondition(lambda self: self.cut is not None)
    @rule()
    def let_it_go(self) -> None:
        assert self.cut is not None
        self.checkpoint()
        self.storage.let_go()
        drop(self.store, self.cut)
        self.cut = None
        self.storage.hold()
        assert self.store.journal.start_lsn <= min(
            [
                extent.lsn
                for one in self.store.state.branches.values()
                for runs in one.extents.values()
                for extent in runs
            ],
            default=self.store.journal.end,
        )

    @rule()
    def relocate_everything_and_let_go(self) -> None:
        """Relocate everything and drop segments, which single rules seldom reach: branches whose every record is
        gone."""
        for branch in list(self.store.state.branches.values()):
            self.planned = list(relocation_chunks(branch, self.store.journal.body_bytes_max))
            self.relocate(len(self.planned))
        self.choose_what_may_go(1)
        if self.cut is not None:
            self.let_it_go()

    # -- always -----------------------------------------------------------------------------------------------

    @invariant()
    def a_step_was_taken(self) -> None:
        self.count()

    @invariant()
    def memory_says_what_was_appended(self) -> None:
        truth = self.ledger.at(self.store.journal.end)
        assert {name: offset_range.end for name, offset_range in self.store.state.offset_ranges.items()} == {
            name: len(data) for name, data in truth.visible.items()
        }
        assert {live.key for live in self.store.recover()} == truth.prepared.keys()
        assert {one.key: one.outcome for one in self.store.state.outcomes} == truth.ended
        assert {key: one.decision for key, one in self.store.state.heuristics.items()} == truth.decided
        found = {parse_key(finding.key): finding.disagreement for finding in self.store.state.ledger}
        assert found == truth.found
        in_flight = {live.key for live in self.live.values() if not isinstance(live.key, LocalKey)}
        assert self.store.transactions.keys() == in_flight

    @invariant()
    def what_is_durable_reads_back(self) -> None:
        """Every publication below the high watermark, as a consumer would read it."""
        segments, flushed = self.store.journal.segments, self.store.journal.flushed
        visible = self.ledger.at(flushed).visible
        for name, data in visible.items():
            at = min(self.index.starts.get(name, 0), len(data))
            for _, base, extent in self.index.entries[name]:
                if base < len(data):
                    assert base == at
                    assert segments.read(extent.lsn, extent.bytes) == data[at : at + extent.bytes]
                    at += extent.bytes
            assert at == len(data)

    @invariant()
    def what_is_in_doubt_reads_back(self) -> None:
        segments, flushed = self.store.journal.segments, self.store.journal.flushed
        prepared = self.ledger.at(self.store.journal.end).prepared
        for live in self.store.recover():
            assert live.branch is not None
            for name, runs in live.branch.extents.items():
                if all(extent.lsn + extent.bytes <= flushed for extent in runs):
                    got = b"".join(segments.read(extent.lsn, extent.bytes) for extent in runs)
                    assert got == prepared[live.key][name]

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.storage.let_go()
            self.store.close()


@pytest.mark.timeout(TIMEOUT_S)
def test_the_store_is_what_the_model_says() -> None:
    play(TransactionStoreMachine, steps_a_machine=60, steps_an_example=45)
