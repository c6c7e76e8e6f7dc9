"""An event loop that writes its journal at the end of a turn: when it does, and what others may do meanwhile."""

import threading
import time
from random import Random

import pytest

from journal.errors import StorageFailed
from journal.wal.inline_commit import BUSY_RECORDS_S, INLINE_BYTES_MAX, INLINE_FSYNC_S_MAX, InlinePolicy
from journal.wal.journal import Journal
from tests.fixtures.faulty_storage import FaultyStorage, PowerCut
from tests.fixtures.writers import WAIT_S, Loop, Progress, put, records_of, start

SEGMENT_BYTES = 4 * INLINE_BYTES_MAX


class WatchedStorage(FaultyStorage):
    """Knows which thread made it fsync."""

    def __init__(self, fail_at: int | None = None) -> None:
        super().__init__(Random(1), fail_at)
        self.syncing: list[threading.Thread] = []

    def count(self, call: str, name: str) -> bool:
        if call == "sync":
            self.syncing.append(threading.current_thread())
        return super().count(call, name)

    @property
    def synced_here(self) -> list[bool]:
        return [thread is threading.current_thread() for thread in self.syncing]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy this machine is."""
    monkeypatch.setattr(InlinePolicy, "allows", lambda policy, records: True)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InlinePolicy, "allows", lambda policy, records: False)


def journal_of(storage: FaultyStorage, loop: Loop, progress: Progress | None = None) -> Journal:
    return start(storage, progress, loop_hooks=loop.turns, segment_bytes=SEGMENT_BYTES)


@pytest.mark.usefixtures("quick")
def test_with_a_quick_disk_a_turn_ends_durable_and_told() -> None:
    storage, loop = WatchedStorage(), Loop()
    journal = journal_of(storage, loop)
    for turn in range(1, 4):
        ends = [put(journal, b"%d %d" % (turn, number)) for number in range(3)]
        assert loop.end_turn() == 1, "one call a turn, whatever is appended"
        assert (journal.flushed, loop.progressed, journal.syncs) == (ends[-1], turn, turn)
    assert storage.synced_here == [True] * 3
    journal.close()
    assert records_of(storage) == [b"%d %d" % (turn, number) for turn in range(1, 4) for number in range(3)]


@pytest.mark.usefixtures("slow")
def test_with_a_slow_disk_the_thread_writes_a_turn_at_once() -> None:
    storage, loop, progress = WatchedStorage(), Loop(), Progress()
    journal = journal_of(storage, loop, progress)
    ends = [put(journal, b"%d" % number) for number in range(3)]
    assert storage.syncing == [], "nobody writes before the turn is over"
    assert loop.end_turn() == 1
    assert progress.wait_for(lambda: journal.flushed >= ends[-1])
    assert (loop.progressed, journal.syncs, storage.synced_here) == (0, 1, [False])
    journal.close()


class Clocked:
    """A policy, and its clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.policy = InlinePolicy(lambda: self.now)

    def second(self, records: int) -> list[bool]:
        """One second of eight iterations: what the policy allows in each."""
        allowed = []
        for _ in range(8):
            self.now += 0.125
            allowed.append(self.policy.allows(records // 8))
        return allowed


def test_a_disk_is_quick_once_it_was_for_some_time_and_not_after_a_hiccup() -> None:
    clocked = Clocked()
    clocked.second(BUSY_RECORDS_S)
    policy = clocked.policy
    assert not policy.allows(1), "nobody has measured it"
    noted = 0
    while not policy.allows(1):
        policy.observe_fsync(INLINE_FSYNC_S_MAX / 3)
        noted += 1
    assert 2 < noted < 20
    policy.observe_fsync(20 * INLINE_FSYNC_S_MAX)
    assert not policy.allows(1)
    for _ in range(40):
        policy.observe_fsync(INLINE_FSYNC_S_MAX / 3)
    assert policy.allows(1)


def test_only_a_busy_loop_fsyncs_by_itself() -> None:
    """Readers must not wait for a stall of the disk while the thread can take it."""
    clocked = Clocked()
    for _ in range(100):
        clocked.policy.observe_fsync(INLINE_FSYNC_S_MAX / 3)
    assert clocked.second(BUSY_RECORDS_S) == [False] * 7 + [True], "by the rate of the second before"
    assert clocked.second(BUSY_RECORDS_S - 8) == [True] * 7 + [False]
    assert clocked.second(0) == [False] * 8


@pytest.mark.usefixtures("quick")
def test_what_takes_longer_than_an_fsync_is_the_threads() -> None:
    """A large batch, and the one that ends a segment."""
    storage, loop, progress = WatchedStorage(), Loop(), Progress()
    journal = journal_of(storage, loop, progress)
    bodies = [b"x" * (INLINE_BYTES_MAX // 2)] * 2
    for body in bodies:
        end = put(journal, body)
    loop.end_turn()
    assert progress.wait_for(lambda: journal.flushed >= end)
    while len(journal.segments) == 1:
        bodies.append(b"y" * 100_000)
        end = put(journal, bodies[-1])
        loop.end_turn()
        assert progress.wait_for(lambda: journal.flushed >= end)  # noqa: B023
    assert storage.synced_here[0] is False
    assert storage.synced_here[-1] is False
    assert True in storage.synced_here
    journal.close()
    assert records_of(storage) == bodies


@pytest.mark.usefixtures("quick")
def test_others_may_wait_flush_and_close_while_the_loop_writes() -> None:
    """Callers never depend on the end of a loop iteration; records and flushes queued during a write follow it."""
    storage, loop, progress = WatchedStorage(), Loop(), Progress()
    journal = journal_of(storage, loop, progress)
    journal.wait_flushed(put(journal, b"never ended"), WAIT_S)
    storage.hold()
    put(journal, b"held")
    owner = threading.Thread(target=loop.end_turn)
    owner.start()
    storage.wait_blocked()  # the owner has written, and goes on to fsync
    end = put(journal, b"meanwhile")
    waiter = threading.Thread(target=journal.wait_flushed, args=(end, WAIT_S))
    waiter.start()
    closer = threading.Thread(target=journal.close)
    closer.start()
    storage.let_go()
    for thread in (owner, waiter, closer):
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert storage.syncing.count(owner) == 1
    assert records_of(storage) == [b"never ended", b"held", b"meanwhile"]


@pytest.mark.usefixtures("quick")
def test_slaves_get_what_is_written_before_the_loop_fsyncs_it() -> None:
    storage, loop = WatchedStorage(), Loop()
    journal = journal_of(storage, loop)
    journal.notify_written(True)
    seen: list[tuple[int, int]] = []
    loop.on_progress = lambda: seen.append((journal.written, journal.flushed))
    put(journal, b"for slaves, too")
    loop.end_turn()
    assert seen == [(journal.end, journal.start_lsn), (journal.end, journal.end)]
    journal.close()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("call", ["write", "sync"])
def test_a_disk_that_fails_under_the_loop_stops_the_journal_for_all(call: str) -> None:
    storage, loop, progress = WatchedStorage(), Loop(), Progress()
    journal = journal_of(storage, loop, progress)
    kept = put(journal, b"acknowledged")
    loop.end_turn()
    assert journal.flushed == kept
    storage.fail_at = len(storage.calls) + (call == "sync")
    lost = put(journal, b"lost")
    loop.end_turn()
    assert storage.fault_fired
    assert storage.calls[storage.fail_at][0] == call
    assert journal.failure is not None
    assert journal.flushed == kept
    assert loop.progressed == 1, "nothing is acknowledged; the journal's failure is told as everywhere"
    with pytest.raises(StorageFailed):
        journal.wait_flushed(lost, WAIT_S)
    with pytest.raises(StorageFailed):
        put(journal, b"more")
    loop.end_turn()
    with pytest.raises(StorageFailed):
        journal.close()
    assert b"acknowledged" in records_of(storage.after_power_cut(PowerCut.DROPPED, Random(1)))


@pytest.mark.usefixtures("quick")
def test_an_error_between_write_and_fsync_stops_the_journal() -> None:
    """The batch was neither fsynced nor acknowledged, and must not count as either."""
    storage, loop = WatchedStorage(), Loop()
    journal = journal_of(storage, loop)
    journal.notify_written(True)

    def fail() -> None:
        raise ValueError("slaves could not be told")

    loop.on_progress = fail
    flushed = journal.flushed
    put(journal, b"written")
    with pytest.raises(ValueError, match="slaves could not be told"):
        loop.end_turn()
    assert journal.flushed == flushed
    assert "the writer stopped: ValueError('slaves could not be told')" in str(journal.failure)
    with pytest.raises(StorageFailed):
        put(journal, b"after")
    with pytest.raises(StorageFailed):
        journal.close()


@pytest.mark.usefixtures("quick")
def test_the_thread_sleeps_while_the_loop_fsyncs() -> None:
    """A running thread would take the interpreter from the loop for as long as the fsync takes."""
    storage, loop = WatchedStorage(), Loop()
    before_it = set(threading.enumerate())
    journal = journal_of(storage, loop)
    journal.wait_flushed(put(journal, b"never ended"), WAIT_S)
    (thread,) = (each for each in threading.enumerate() if each.name == "journal-writer" and each not in before_it)
    assert thread.ident is not None
    clock = time.pthread_getcpuclockid(thread.ident)
    storage.hold()
    put(journal, b"held")
    owner = threading.Thread(target=loop.end_turn)
    owner.start()
    storage.wait_blocked()
    storage.let_one_pass()  # written
    storage.wait_blocked()  # before the fsync
    waiter = threading.Thread(target=journal.wait_flushed, args=(journal.end, WAIT_S))
    waiter.start()  # which wakes the thread
    before = time.clock_gettime(clock)
    time.sleep(0.3)
    assert time.clock_gettime(clock) - before < 0.05
    storage.let_go()
    for each in (owner, waiter):
        each.join(WAIT_S)
    journal.close()
