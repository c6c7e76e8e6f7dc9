"""Every storage call of a busy store fails in turn, then the power goes, in each way it can.

What must hold afterwards is one sentence: the store holds exactly what the records up to some LSN say, and that LSN
is not below what was acknowledged. It follows that acknowledged ⊆ recovered ⊆ sent, that no branch is half
committed, and that none is in two states.
"""

import contextlib
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

import pytest

from journal.errors import StorageFailed
from journal.records.header import Lsn
from journal.records.heuristics import HeuristicDecision
from journal.records.index_updates import IndexUpdate
from journal.records.ledger import Disagreement
from journal.records.record import PartitionName
from journal.records.xid import LocalKey, XaKey, parse_key
from journal.repair.check import check
from journal.state.inspection import read_checkpoints
from journal.state.live_branch import LiveBranch
from journal.state.relocation import read_chunk, relocation_chunks
from journal.state.transaction_store import JournalTransactionStore
from journal.wal import open_journal
from journal.wal.flush_mode import SYNC, FlushMode
from journal.wal.inline_commit import InlinePolicy
from tests.fixtures.faulty_storage import SECTOR_BYTES, FaultyStorage, PowerCut
from tests.fixtures.journals import INTERVAL, ORDERS, STOCK, Index, open_store, xa
from tests.fixtures.ledger import Event, Ledger, Truth, Verb, appended, found_by, note_decision, note_finding
from tests.fixtures.raw_journal import opened
from tests.fixtures.retention import Cut, choose, drop
from tests.fixtures.writers import Loop

STEPS = 70
# METAQ_CRASH_ROUNDS=200, as `make crash` has it: 20 workloads a mode instead of one.
SEEDS = max(1, int(os.environ.get("METAQ_CRASH_ROUNDS", "0")) // 10)


@dataclass
class Workload:
    """A store under random verbs until its storage fails, and everything one must know to judge what is left."""

    storage: FaultyStorage
    random: Random
    flush: FlushMode
    loop: Loop | None = None  # whose turns end now and then, and who writes itself at their end; None: a thread does
    ledger: Ledger = field(default_factory=Ledger)
    flushed: int = 0  # first byte that nobody was told is durable
    index: Index = field(default_factory=Index)
    kept: dict[PartitionName, list[IndexUpdate]] = field(default_factory=dict)  # index as of the newest checkpoint
    branches: dict[int, LiveBranch] = field(default_factory=dict)
    cut: Cut | None = None  # chosen, and not carried out yet
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def run(self) -> None:
        with contextlib.suppress(StorageFailed):
            loop_hooks = self.loop.turns if self.loop is not None else None
            store = open_store(self.storage, sink=self.index, flush=self.flush, loop_hooks=loop_hooks)
            try:
                for _ in range(STEPS):
                    self.step(store)
                    if self.loop is not None and self.random.random() < 0.6:
                        self.loop.end_turn()
                    if self.random.random() < 0.4:
                        store.journal.wait_flushed(store.journal.end)
                store.journal.wait_flushed(store.journal.end)
            finally:
                with contextlib.suppress(StorageFailed):
                    store.close()
                self.flushed = store.journal.flushed

    def step(self, store: JournalTransactionStore) -> None:
        random = self.random
        name = random.choice((ORDERS, STOCK))
        number = next(self.numbers)
        data = b"<%d %s>" % (number, b"." * random.randrange(400))
        verbs = ["put", "begin"] + ["more", "finish", "prepare", "prepare", "decide"] * bool(self.branches)
        verbs += ["checkpoint", "find"] + ["forget"] * bool(store.state.heuristics or len(store.state.ledger))
        verbs += ["relocate", "relocate"] * bool(store.state.branches) + ["retention"]
        match random.choice(verbs):
            case "put":
                result = store.put(name, [data], len(data), 1)
                self.index.publish_all(result.updates)
                self.ledger.add(Event(result.lsn, Verb.PUT, name=name, data=data))
            case "begin":
                key = xa(f"order-{number}") if random.random() < 0.7 else LocalKey("session", number)
                self.branches[number] = store.begin(key)
                self.put_to(store, number, name, data)
            case "more":
                branch = random.choice(list(self.branches))
                if all(event.branch != branch or event.verb is Verb.TX_PUT for event in self.ledger.events):
                    self.put_to(store, branch, name, data)
            case "prepare":
                branch = random.choice(list(self.branches))
                live = self.branches[branch]
                if live.state.name == "IN_USE" and not isinstance(live.key, LocalKey):
                    _, lsn = store.prepare(live)
                    self.ledger.add(Event(lsn, Verb.PREPARE, branch, live.key))
            case "decide":
                branch = random.choice(list(self.branches))
                live = self.branches[branch]
                if live.state.name == "PREPARED":
                    del self.branches[branch]
                    with appended(store) as records:
                        result = store.end_heuristically(
                            live, random.choice(list(HeuristicDecision)), "a test", "to see"
                        )
                    self.index.publish_all(result.updates)
                    note_decision(self.ledger, records, branch, live.key)
            case "forget":
                found = [parse_key(finding.key) for finding in store.state.ledger]
                named = random.choice([*store.heuristics(), *found])
                assert isinstance(named, XaKey)
                self.ledger.add(Event(store.forget(named), Verb.FORGET, key=named))
            case "find":
                note_finding(store, self.ledger, xa(f"order-{random.randrange(8)}"), random.choice(list(Disagreement)))
            case "finish":
                branch = random.choice(list(self.branches))
                live = self.branches.pop(branch)
                if random.random() < 0.6:
                    result = store.commit(live, one_phase=live.state.name == "IN_USE")
                    self.index.publish_all(result.updates)
                    self.ledger.add(Event(result.lsn, Verb.COMMIT, branch, live.key))
                else:
                    self.ledger.add(Event(store.rollback(live), Verb.ROLLBACK, branch, live.key))
            case "relocate":
                behind = list(store.state.branches.values())[: random.randrange(1, 4)]
                planned = [chunk for each in behind for chunk in relocation_chunks(each, store.journal.body_bytes_max)]
                for chunk in planned[: random.randrange(1, len(planned) + 1)]:  # cut short, sometimes
                    store.relocate(chunk, read_chunk(store.journal, chunk))
            case "retention":
                store.journal.wait_flushed(store.journal.end)
                if self.cut is None:
                    self.cut = choose(store, self.index, 1)
                    return
                taken = store.snapshot()
                store.on_checkpoint(store.write_checkpoint(taken, {}), taken)
                drop(store, self.cut)
                self.cut = None
            case "checkpoint":
                taken = store.snapshot()
                kept = {name: list(entries) for name, entries in self.index.entries.items()}
                number = store.write_checkpoint(taken, {})
                self.kept = kept
                store.on_checkpoint(number, taken)

    def put_to(self, store: JournalTransactionStore, branch: int, name: PartitionName, data: bytes) -> None:
        live = self.branches[branch]
        lsn = store.transactional_put(live, name, [data], len(data), 1)
        self.ledger.add(Event(lsn, Verb.TX_PUT, branch, live.key, name, data))


def judge(workload: Workload, storage: FaultyStorage, *, lose_index: bool) -> Lsn:
    """Start on what the power cut left; returns where the workload's records end. Raises StorageFailed if a fault is
    left."""
    index = Index(workload.kept, lost={ORDERS} if lose_index else ())
    store = open_store(storage, sink=index, flush=workload.flush)
    try:
        # Behind it there may be what a start has written that failed later, in the place of records that were lost.
        end = next(
            (writer_epoch.lsn for writer_epoch in store.state.epoch_history if writer_epoch.incarnation > 1),
            store.recovered.end,
        )
        assert workload.flushed <= end <= store.recovered.end, "acknowledged bytes are gone"
        assert found_by(store, index) == workload.ledger.after_start(end).since(index.starts)
    finally:
        store.close()
    storage.fail_at = None  # what is asked of it from here on is the judge's
    assert check(opened(storage), read_checkpoints(storage)).is_sound
    return end


def cases(flush: FlushMode, seed: int, *, in_turns: bool = False) -> Iterator[tuple[str, Workload]]:
    """A workload for every call that can fail, and a last one in which none did."""
    for nth in itertools.count():
        storage = FaultyStorage(Random(seed), fail_at=nth)
        workload = Workload(storage, Random(seed), flush, Loop() if in_turns else None)
        workload.run()
        yield f"seed={seed} flush={flush} fail_at={nth}", workload
        if not storage.fault_fired:
            return


@pytest.mark.parametrize("seed", range(1, 1 + SEEDS))
@pytest.mark.parametrize("flush", [SYNC, INTERVAL, "in turns"], ids=str)
def test_every_call_fails_once_and_then_the_power_goes(
    flush: FlushMode | str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a writer's thread, and with an event loop that writes at the end of its turns."""
    monkeypatch.setattr(InlinePolicy, "allows", lambda policy, records: True)  # however busy this machine is
    mode, in_turns = (flush, False) if isinstance(flush, FlushMode) else (SYNC, True)
    count = 0
    for title, workload in cases(mode, seed, in_turns=in_turns):
        assert workload.storage.fault_fired or workload.loop is None or workload.loop.progressed > STEPS / 8
        for cut in PowerCut:
            print(title, f"cut={cut.name}")
            random = Random(seed)
            judge(workload, workload.storage.after_power_cut(cut, random), lose_index=bool(count % 2))
        count += 1
    assert count > 60, "the workload is too small to say anything"


def acknowledge_more(workload: Workload, storage: FaultyStorage, random: Random) -> Truth:
    """Start on what a failure left in the page cache, put and be told that it is durable; returns what is there."""
    index = Index(workload.kept)
    store = open_store(storage, sink=index, flush=workload.flush)
    try:
        end = next(
            (writer_epoch.lsn for writer_epoch in store.state.epoch_history if writer_epoch.incarnation > 1),
            store.recovered.end,
        )
        assert workload.flushed <= end, "acknowledged bytes are gone"
        for number in range(random.randrange(1, 12)):  # into the next segment, sometimes
            data = b"again %d %s" % (number, b"." * random.randrange(400))
            result = store.put(ORDERS, [data], len(data), 1)
            index.publish_all(result.updates)
            store.journal.wait_flushed(result.lsn)
        if random.random() < 0.3:
            taken = store.snapshot()
            store.on_checkpoint(store.write_checkpoint(taken, {}), taken)
        return found_by(store, index)
    finally:
        store.close()


@pytest.mark.parametrize("seed", range(1, 1 + SEEDS))
@pytest.mark.parametrize("flush", [SYNC, INTERVAL], ids=str)
def test_what_is_acknowledged_after_a_failure_and_a_restart_outlives_the_power(
    flush: FlushMode, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The restart reads a page cache that the failed call has left: nothing may be built on what the disk has not."""
    monkeypatch.setattr(open_journal, "BLOCK_BYTES", SECTOR_BYTES)  # a segment of the tests' is one block
    for title, workload in cases(flush, seed):
        random = Random(f"{title}")
        restarted = workload.storage.after_restart(random)
        expected = acknowledge_more(workload, restarted, random)
        cut = random.choice(list(PowerCut))
        print(title, f"cut={cut.name}")
        storage = restarted.after_power_cut(cut, random)
        index = Index(workload.kept)
        store = open_store(storage, sink=index, flush=flush)
        assert found_by(store, index) == expected
        store.close()
        assert check(opened(storage), read_checkpoints(storage)).is_sound


@pytest.mark.parametrize("seed", range(3, 3 + SEEDS))
def test_a_start_that_fails_halfway_changes_nothing_of_that(seed: int) -> None:
    """The power goes, and again at every call of the start that follows."""
    storage = FaultyStorage(Random(seed))
    workload = Workload(storage, Random(seed), SYNC)
    storage.fail_at = 60  # in the middle
    workload.run()
    assert storage.fault_fired
    for cut in PowerCut:
        for nth in itertools.count():
            print(f"seed={seed} cut={cut.name} fail_at={nth}")
            first = workload.storage.after_power_cut(cut, Random(seed), fail_at=nth)
            with contextlib.suppress(StorageFailed):
                judge(workload, first, lose_index=False)
            for again in PowerCut:
                judge(workload, first.after_power_cut(again, Random(nth)), lose_index=False)
            if not first.fault_fired:
                break


def test_the_same_seed_gives_the_same_work() -> None:
    """The output of a failure is enough to repeat it, except for the batching of writes."""
    extents = []
    for _ in range(2):
        workload = Workload(FaultyStorage(Random(5)), Random(5), SYNC)
        workload.run()
        extents.append([(event.end, event.verb, event.data) for event in workload.ledger.events])
    assert extents[0] == extents[1]
