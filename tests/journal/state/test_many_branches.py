"""Thousands of branches at once and one after the other leave nothing behind (spec 13.4, U21 to U23)."""

from collections import defaultdict
from dataclasses import dataclass, field
from random import Random

import pytest

from journal.records.header import Offset
from journal.records.record import PartitionName
from journal.records.xid import LocalKey
from journal.state.checkpoint import remove_checkpoints_below
from journal.state.live_branch import LiveBranch
from journal.state.transaction_store import JournalTransactionStore
from tests.fixtures.faulty_storage import FaultyStorage
from tests.fixtures.journals import Index, open_store, xa

SESSIONS = 100
BRANCHES = 10_000
CHECKPOINTS = 20
PARTITIONS = [PartitionName("orders", number) for number in range(10)]
SEGMENT_BYTES = 64 * 1024


@dataclass
class Session:
    """One thread of the ancestor's test: runs branches one by one, each of one to three messages."""

    number: int
    begun: int = 0
    branch: LiveBranch | None = None
    put: list[tuple[PartitionName, bytes]] = field(default_factory=list)

    def begin(self, store: JournalTransactionStore) -> LiveBranch:
        self.begun += 1
        is_local = self.number % 2 == 0
        return store.begin(LocalKey(f"s{self.number}", self.begun) if is_local else xa(f"{self.number}-{self.begun}"))


@dataclass
class Crowd:
    """A hundred sessions whose steps are mixed, and what every partition must hold for it."""

    random: Random
    storage: FaultyStorage
    index: Index = field(default_factory=Index)
    expected: dict[PartitionName, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    over: int = 0

    def work(self, store: JournalTransactionStore) -> None:
        """Until BRANCHES branches are over, and then those that are still open too."""
        sessions = [Session(number) for number in range(SESSIONS)]
        due = BRANCHES // CHECKPOINTS
        while self.over < BRANCHES:
            self.step(store, self.random.choice(sessions))
            if self.over == due:
                taken = store.snapshot()
                store.on_checkpoint(store.write_checkpoint(taken, {}), taken)
                due += BRANCHES // CHECKPOINTS
        assert store.live_count > 1
        for session in sessions:
            if session.branch is not None:
                self.finish(store, session)

    def step(self, store: JournalTransactionStore, session: Session) -> None:
        if session.branch is None:
            session.branch = session.begin(store)
        if len(session.put) == 3 or (session.put and self.random.random() < 0.5):
            self.finish(store, session)
            return
        name = self.random.choice(PARTITIONS)
        data = b"<%d %d %d>" % (session.number, self.over, len(session.put))
        store.transactional_put(session.branch, name, [data], len(data), 1)
        session.put.append((name, data))

    def finish(self, store: JournalTransactionStore, session: Session) -> None:
        assert session.branch is not None
        if not session.put or self.random.random() < 0.2:
            store.rollback(session.branch)
        else:
            is_two_phase = session.number % 4 == 1
            if is_two_phase:
                store.prepare(session.branch)
            self.index.publish_all(store.commit(session.branch, one_phase=not is_two_phase).updates)
            for name, data in session.put:
                self.expected[name].append(data)
        session.branch, session.put = None, []
        self.over += 1

    def judge(self, store: JournalTransactionStore, index: Index) -> None:
        assert (store.live_count, store.transactions, store.state.branches, store.state.branches_accounted_bytes) == (
            0,
            {},
            {},
            0,
        )
        assert index.read(store.journal.segments) == {name: b"".join(data) for name, data in self.expected.items()}


@pytest.mark.scenario("U21", "U23")
def test_nobody_is_left_among_thousands_and_a_restart_finds_nobody() -> None:
    storage = FaultyStorage(Random(1))
    crowd = Crowd(Random(1), storage)
    store = open_store(storage, sink=crowd.index, segment_bytes=SEGMENT_BYTES)
    crowd.work(store)
    store.journal.wait_flushed(store.journal.end)
    crowd.judge(store, crowd.index)
    store.close()
    again, index = reopened(storage)
    crowd.judge(again, index)
    again.close()


@pytest.mark.scenario("U22")
def test_of_many_segments_one_is_left_when_no_message_has_to_stay() -> None:
    """Ended branches hold no segment back: once all messages may go, only the last segment is left."""
    storage = FaultyStorage(Random(2))
    crowd = Crowd(Random(2), storage)
    store = open_store(storage, sink=crowd.index, segment_bytes=SEGMENT_BYTES)
    crowd.work(store)
    assert len(store.journal.segments) > 20
    ends = {name: Offset(offset_range.end) for name, offset_range in store.state.offset_ranges.items()}
    first = store.write_checkpoint(store.trim(store.snapshot(), dict(ends)), {})
    store.write_checkpoint(store.snapshot(), {})
    remove_checkpoints_below(storage, first)
    store.journal.segments.drop_before(store.journal.end, None)
    assert len(store.journal.segments) == 1
    store.close()
    again, _ = reopened(storage)
    assert (again.live_count, again.state.branches) == (0, {})
    assert {
        name: (offset_range.start, offset_range.end) for name, offset_range in again.state.offset_ranges.items()
    } == {name: (end, end) for name, end in ends.items()}
    again.close()


def reopened(storage: FaultyStorage) -> tuple[JournalTransactionStore, Index]:
    index = Index()
    return open_store(storage, sink=index, segment_bytes=SEGMENT_BYTES), index
