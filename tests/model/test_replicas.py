"""Two directories, one written by a master and the other following it, under random failures of either.

Power cuts on each side, bytes that only one of them has, restarts, promotions, retention, checkpoints. Whenever both
meet again they agree where they diverge, one of them truncates or starts over, and at the end their files are equal.
Bytes that both had fsynced at the same time stay, whichever became the master.
"""

import contextlib
import os
import time
from random import Random

import pytest

from journal.errors import StorageFailed, TruncationTooDeep
from journal.records.epoch_history import divergence_lsn
from journal.records.heuristics import HeuristicDecision
from journal.records.ledger import Disagreement, LedgerEntry
from journal.repair.check import check
from journal.replica.follower import JournalFollower
from journal.replica.replica_appender import ReplicaAppender
from journal.state.initial_sync import begin_initial_sync, read_initial_sync
from journal.state.inspection import read_checkpoints
from journal.state.live_branch import LiveBranch
from journal.state.saved_tail import DivergentTail, entries_of, list_saved_tails
from journal.state.transaction_store import JournalTransactionStore
from journal.state.truncation import clear, truncate
from journal.wal.flush_mode import SYNC, FlushMode
from journal.wal.open_journal import JournalConfig
from journal.wal.scan import Scanner
from journal.wal.segments import SEGMENT_HEADER_BYTES
from tests.fixtures.copies import feed, image, open_follower, said, stream
from tests.fixtures.faulty_storage import FaultyStorage, PowerCut
from tests.fixtures.journals import IDENTITY, INTERVAL, ORDERS, SEGMENT_BYTES, STOCK, Clock, Index, xa
from tests.fixtures.raw_journal import opened
from tests.fixtures.retention import choose, drop

STEPS = 60
# METAQ_CRASH_ROUNDS=200, as `make crash` has it: 1,000 runs instead of 60.
SEEDS = max(60, 5 * int(os.environ.get("METAQ_CRASH_ROUNDS", "0")))
NOW_MS = 1_700_000_000_000


def open_master(storage: FaultyStorage, index: Index, epoch_min: int) -> JournalTransactionStore:
    return JournalTransactionStore.open(
        storage,
        IDENTITY,
        JournalConfig(segment_bytes=SEGMENT_BYTES, flush=INTERVAL),
        version="test",
        sink=index,
        clock_ms=Clock(),
        epoch=lambda recovered: max(recovered.state.epoch, epoch_min),
    )


class Replicas:
    """A master on one storage, a follower on the other."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.index = Index()
        self.disk = FaultyStorage(Random(seed))  # the master's
        self.other = FaultyStorage(Random(seed + 1))  # the follower's
        self.flush: FlushMode = self.random.choice((SYNC, INTERVAL))
        self.epoch = 1  # no two promotions get the same: in a cluster ZooKeeper sees to that
        self.master = open_master(self.disk, self.index, self.epoch)
        self.branches: list[LiveBranch] = []
        self.count = 0
        self.safe: dict[int, bytes] = {}  # by LSN, every record that both had fsynced at the same time
        self.safe_end = 0
        self.cuts = self.resyncs = self.promotions = 0
        self.follower = self.meet()

    # -- what happens -----------------------------------------------------------------------------------------

    def append(self) -> None:
        random, master = self.random, self.master
        for _ in range(random.randrange(1, 8)):
            self.count += 1
            data = b"<%d %s>" % (self.count, b"." * random.randrange(500))
            name = random.choice((ORDERS, STOCK))
            match random.randrange(7):
                case 0 | 1:
                    self.index.publish_all(master.put(name, [data], len(data), 1).updates)
                case 2:
                    branch = master.begin(xa(f"order-{self.count}"))
                    master.transactional_put(branch, name, [data], len(data), 1)
                    self.branches.append(branch)
                case 3 if self.branches:
                    branch = random.choice(self.branches)
                    if branch.state.name == "IN_USE":
                        master.prepare(branch)
                case 4 if self.branches:
                    branch = self.branches.pop(random.randrange(len(self.branches)))
                    if branch.state.name == "PREPARED" and random.random() < 0.3:
                        decision = random.choice(list(HeuristicDecision))
                        self.index.publish_all(master.end_heuristically(branch, decision, "a test", "to see").updates)
                    else:
                        one_phase = branch.state.name == "IN_USE"
                        self.index.publish_all(master.commit(branch, one_phase=one_phase).updates)
                case 5 if self.branches:
                    master.rollback(self.branches.pop())
                case 6:
                    key, disagreement = xa(f"order-{random.randrange(self.count)}"), random.choice(list(Disagreement))
                    master.record_finding(LedgerEntry(key, disagreement, "a test", "to see", "row: commit"))
                    if random.random() < 0.3:
                        master.forget(key)

    def send(self) -> None:
        """The follower gets some of what the master's operating system has."""
        self.written()
        self.meet_again_if_passed()
        pieces = list(stream(self.disk, self.follower.end, self.random, 2000))
        feed(self.follower, iter(pieces[: self.random.randrange(len(pieces) + 1)]))

    def written(self) -> None:
        journal = self.master.journal
        deadline = time.monotonic() + 60
        while journal.acknowledged_here < journal.end:
            assert time.monotonic() < deadline
            time.sleep(0.0002)

    def fsync(self) -> None:
        """Both, either or none; what both have then is safe."""
        if self.random.random() < 0.7:
            self.master.journal.wait_flushed(self.master.journal.end)
        if self.random.random() < 0.7 and self.follower.end > self.follower.journal.flushed:
            self.follower.journal.wait_flushed(self.follower.end)
        both = min(self.master.journal.flushed, self.follower.journal.flushed)
        if both > self.safe_end and self.follower.is_complete:
            segments = opened(self.disk)
            for entry in Scanner(segments, max(self.safe_end, segments.start)):
                if entry.header.end > both:
                    break
                raw = entry.view[entry.position : entry.position + entry.header.bytes_total]
                self.safe[entry.header.lsn] = bytes(raw)
                self.safe_end = entry.header.end

    def checkpoint(self) -> None:
        if self.random.random() < 0.5:
            taken = self.master.snapshot()
            self.master.on_checkpoint(self.master.write_checkpoint(taken, {}), taken)
        elif self.follower.is_complete and self.follower.end:
            self.follower.write_checkpoint(self.follower.snapshot(), {})

    def retain(self) -> None:
        self.master.journal.wait_flushed(self.master.journal.end)
        if (chosen := choose(self.master, self.index, self.random.randrange(1, 4))) is not None:
            taken = self.master.snapshot()
            self.master.write_checkpoint(taken, {})
            drop(self.master, chosen)

    def follower_falls(self) -> None:
        self.other = self.fell(self.follower, self.other)
        self.follower = self.meet()

    def another_follows(self) -> None:
        """The follower is gone for good, and a new one begins with nothing."""
        with contextlib.suppress(StorageFailed):
            self.follower.close()
        self.other = FaultyStorage(Random(self.count))
        self.follower = self.meet()

    def master_falls(self) -> None:
        """Crash and restart the master."""
        self.disk = self.fell(self.master, self.disk)
        self.start_master()

    def promote(self) -> None:
        """The master is gone; its follower, if it has everything that is safe, takes its place, and it follows."""
        is_whole = self.follower.is_complete and read_initial_sync(self.other) is None  # durably
        if not is_whole or self.follower.journal.flushed < max(self.safe_end, SEGMENT_HEADER_BYTES):
            return
        self.promotions += 1
        old = self.fell(self.master, self.disk)
        if self.random.random() < 0.5:
            self.follower.close()
        else:
            self.other = self.fell(self.follower, self.other)
        self.disk, self.other = self.other, old
        self.epoch += 1
        self.start_master()

    def fell(self, store: JournalTransactionStore | JournalFollower, storage: FaultyStorage) -> FaultyStorage:
        """Return what is left of *storage* after a power cut, or after a kill, which the page cache survives."""
        is_kill = self.random.random() < 0.3
        if is_kill and isinstance(store, JournalTransactionStore):
            self.written()
        after = storage.after_power_cut(PowerCut.KEPT if is_kill else self.random.choice(list(PowerCut)), self.random)
        with contextlib.suppress(StorageFailed):
            store.close()
        return after

    def start_master(self) -> None:
        with contextlib.suppress(StorageFailed):
            self.follower.close()
        self.index = Index()
        self.master = open_master(self.disk, self.index, self.epoch)
        self.branches = list(self.master.transactions.values())
        self.follower = self.meet()

    # -- how they meet ------------------------------------------------------------------------------------------

    def meet(self) -> JournalFollower:
        """Run the handshake of a slave that has dialled its master."""
        self.written()
        copy, master = open_follower(self.other, flush=self.flush), self.master
        first = master.journal.start_lsn - SEGMENT_HEADER_BYTES
        epoch_history, end, is_complete = copy.epoch_history, copy.end, copy.is_complete
        if not epoch_history and first == end == 0:
            return copy
        shared = divergence_lsn(master.state.epoch_history, master.journal.end, epoch_history, end)
        is_of_use = shared is not None and shared >= max(first, copy.journal.start_lsn - SEGMENT_HEADER_BYTES)
        if is_of_use and shared == end and (is_complete or copy.state.epoch == master.state.epoch):
            return copy
        copy.close()
        if is_of_use and shared is not None and is_complete:
            with contextlib.suppress(TruncationTooDeep):
                truncate(self.other, IDENTITY, shared, NOW_MS)
                self.cuts += 1
                return open_follower(self.other, flush=self.flush)
        self.resyncs += 1
        clear(self.other, IDENTITY, shared if is_complete else None, NOW_MS)
        if first:
            number = max(int(name.split(".")[1]) for name in self.disk.blobs if name.startswith("checkpoint."))
            begin_initial_sync(self.other, first, self.disk.blobs[f"checkpoint.{number}"])
        return open_follower(self.other, flush=self.flush)

    def meet_again_if_passed(self) -> None:
        """Retention took what the follower has not got yet."""
        if self.follower.end < self.master.journal.start_lsn - SEGMENT_HEADER_BYTES:
            self.follower.close()
            self.follower = self.meet()

    # -- what must hold -----------------------------------------------------------------------------------------

    def judge(self) -> None:
        """Check, with everything sent, that both are the same, and that all safe bytes are there."""
        self.master.journal.wait_flushed(self.master.journal.end)
        self.meet_again_if_passed()
        feed(self.follower, stream(self.disk, self.follower.end, self.random, 3000))
        assert self.follower.is_complete
        mine, theirs = said(self.follower.state), said(self.master.state)
        assert mine.branches == theirs.branches
        assert mine.outcomes == theirs.outcomes
        assert mine.heuristics == theirs.heuristics
        assert mine.ledger == theirs.ledger
        assert mine.epoch_history == theirs.epoch_history
        assert [(at.topic, at.end) for at in mine.partitions] == [(at.topic, at.end) for at in theirs.partitions]
        self.master.close()
        self.follower.close()
        ours, theirs_by_base = image(self.other), image(self.disk)
        both = ours.keys() & theirs_by_base.keys()  # retention goes by itself on each
        assert max(both) == max(ours) == max(theirs_by_base)
        for base in both:
            assert ours[base] == theirs_by_base[base], f"the segment at LSN {base} is not the same"
        for storage in (self.disk, self.other):
            assert check(opened(storage), read_checkpoints(storage)).is_sound
        segments = opened(self.disk)
        for lsn, raw in self.safe.items():
            if lsn >= segments.start:
                assert segments.read(lsn, len(raw)) == raw, f"the record at LSN {lsn} was safe"
        for storage in (self.disk, self.other):
            for name, made in list_saved_tails(storage):
                assert isinstance(made, DivergentTail)
                assert made.end > made.lsn
                assert list(entries_of(storage.open(name, writable=False), made))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_two_directories_through_anything(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReplicaAppender, "recovery_point_every_s", 0.001)
    replicas = Replicas(seed)
    steps = [replicas.append] * 6 + [replicas.send] * 6 + [replicas.fsync] * 4 + [replicas.checkpoint] * 2
    steps += [replicas.retain, replicas.follower_falls, replicas.master_falls, replicas.promote]
    steps += [replicas.another_follows] * (seed % 3 == 0)
    for _ in range(STEPS):
        step = replicas.random.choice(steps)
        print(f"seed={seed} {step.__name__} end={replicas.master.journal.end} copy={replicas.follower.end}")
        step()
    replicas.judge()
