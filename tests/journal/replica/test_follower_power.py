"""Every storage call of a copy fails in turn, then the power goes, in each way it can.

What was reported as flushed is there; what is there is a part of the master's journal, byte by byte, and its state; and
the copy goes on from there to the end.
"""

import contextlib
import itertools
import os
from dataclasses import dataclass, field
from random import Random

import pytest

from journal.errors import StorageFailed
from journal.records.codec import decode
from journal.repair.check import check
from journal.replica.replica_appender import ReplicaAppender
from journal.state.checkpoint import Checkpoint
from journal.state.fold import apply
from journal.state.inspection import read_checkpoints
from journal.state.journal_state import JournalState
from journal.wal.flush_mode import SYNC, FlushMode
from journal.wal.scan import Scanner
from tests.fixtures.copies import copy_of, feed, image, open_follower, said, stream
from tests.fixtures.faulty_storage import FaultyStorage, PowerCut
from tests.fixtures.histories import write_history
from tests.fixtures.journals import INTERVAL, Index, open_store
from tests.fixtures.raw_journal import opened

SEEDS = max(1, int(os.environ.get("METAQ_CRASH_ROUNDS", "0")) // 20)


@dataclass
class Master:
    """A journal, and what its records add up to at each LSN where one ends."""

    storage: FaultyStorage
    states: dict[int, Checkpoint] = field(default_factory=dict)

    @classmethod
    def of(cls, storage: FaultyStorage) -> "Master":
        master = cls(storage)
        segments = opened(storage)
        state = JournalState(segments.start)
        for entry in Scanner(segments, segments.start):
            apply(state, entry.header, decode(entry.header, entry.meta))
            master.states[entry.header.end] = said(state)
        return master


@pytest.fixture(autouse=True)
def mark_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Save the durable end with every other fsync."""
    monkeypatch.setattr(ReplicaAppender, "recovery_point_every_s", 0.0005)


@pytest.fixture(scope="module")
def master() -> Master:
    storage = FaultyStorage(Random(1))
    write_history(storage).close()
    return Master.of(storage)


@dataclass
class Workload:
    """A copy that takes the master's journal, waits now and then, and takes checkpoints, until its storage fails."""

    master: Master
    storage: FaultyStorage
    random: Random
    flush: FlushMode
    told: int = 0

    def run(self) -> None:
        with contextlib.suppress(StorageFailed):
            index = Index()
            follower = open_follower(self.storage, sink=index, flush=self.flush)
            try:
                for lsn, data in stream(self.master.storage, follower.end, self.random, 1500):
                    feed(follower, iter([(lsn, data)]), index)
                    match self.random.randrange(6):
                        case 0 | 1:
                            follower.journal.wait_flushed(follower.end)
                        case 2 if follower.end:
                            follower.write_checkpoint(follower.snapshot(), {})
                    self.told = max(self.told, follower.journal.flushed)
                follower.journal.wait_flushed(follower.end)
            finally:
                with contextlib.suppress(StorageFailed):
                    follower.close()
                self.told = max(self.told, follower.journal.flushed)


def judge(workload: Workload, storage: FaultyStorage) -> None:
    """Start on what the power cut left, and go on. Raises StorageFailed if a fault is left."""
    index = Index()
    follower = open_follower(storage, sink=index, flush=workload.flush)
    try:
        assert follower.end >= workload.told, "reported bytes are gone"
        if follower.state.lsn in workload.master.states:
            assert said(follower.state) == workload.master.states[follower.state.lsn]
        else:
            assert follower.end == 0
        feed(follower, stream(workload.master.storage, follower.end, Random(0), 4000), index)
        follower.journal.wait_flushed(follower.end)
        assert said(follower.state) == workload.master.states[follower.state.lsn]
    finally:
        follower.close()
    assert image(storage) == image(workload.master.storage)
    storage.fail_at = None  # what is asked of it from here on is the judge's
    assert check(opened(storage), read_checkpoints(storage)).is_sound


@pytest.mark.parametrize("flush", [SYNC, INTERVAL], ids=["sync", "interval"])
@pytest.mark.parametrize("seed", range(1, 1 + SEEDS))
def test_every_call_fails_once_and_then_the_power_goes(master: Master, flush: FlushMode, seed: int) -> None:
    for nth in itertools.count():
        storage = FaultyStorage(Random(seed), fail_at=nth)
        workload = Workload(master, storage, Random(seed), flush)
        workload.run()
        for cut in PowerCut:
            print(f"seed={seed} flush={flush} fail_at={nth} cut={cut.name}")
            judge(workload, storage.after_power_cut(cut, Random(seed)))
        if not storage.fault_fired:
            break
    assert nth > 40, "the workload is too small to say anything"


@pytest.mark.parametrize("cut", PowerCut)
def test_a_start_that_fails_halfway_changes_nothing_of_that(master: Master, cut: PowerCut) -> None:
    """The power goes, and again at every call of the start that follows."""
    storage = FaultyStorage(Random(3), fail_at=45)
    workload = Workload(master, storage, Random(3), SYNC)
    workload.run()
    for nth in itertools.count():
        first = storage.after_power_cut(cut, Random(3), fail_at=nth)
        with contextlib.suppress(StorageFailed):
            judge(workload, first)
        judge(workload, first.after_power_cut(PowerCut.SHUFFLED, Random(nth)))
        if not first.fault_fired:
            break


def test_a_copy_can_become_a_master(master: Master) -> None:
    """Branches in doubt stay so and active ones are rolled back, as at any start of a broker."""
    storage = FaultyStorage(Random(1))
    follower = open_follower(storage)
    feed(follower, stream(master.storage, 0, Random(0)))
    follower.close()
    promoted, restarted = open_store(storage), open_store(copy_of(master.storage))
    assert [live.key for live in promoted.recover()] == [live.key for live in restarted.recover()]
    assert len(promoted.recover()) == 4
    assert promoted.live_count == restarted.live_count
    promoted.close()
    restarted.close()
