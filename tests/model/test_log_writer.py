"""The log writer against a list of what was appended, while an owner, other threads and a failing disk get in its way.

An owner appends and ends its turns, others flush, wait and close, one call of the disk may fail, and every write and
fsync takes a random time. Whatever the order: one thread at a time writes; nothing counts as durable before it is;
nothing that was queued waits for a wake-up that never comes; a close leaves everything on the disk; a failure ends all
waits, no write follows it, and what was durable is still there after a power cut.
"""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import cast

import pytest

from journal.errors import JournalClosed, StorageFailed
from journal.wal.flush_mode import SYNC, FlushMode
from journal.wal.inline_commit import INLINE_BYTES_MAX, InlinePolicy
from journal.wal.journal import Journal
from journal.wal.scan import EndVerdict, Scanner
from journal.wal.segments import SEGMENT_HEADER_BYTES
from journal.wal.storage_file import Buffer
from tests.fixtures.faulty_storage import FaultyStorage, MemoryFile, PowerCut
from tests.fixtures.raw_journal import opened
from tests.fixtures.writers import WAIT_S, Loop, put, records_of, start

SEEDS = max(60, 5 * int(os.environ.get("METAQ_CRASH_ROUNDS", "0")))
TURNS = 12
SEGMENT_BYTES = 4 * INLINE_BYTES_MAX
BODY_BYTES = (10, 10, 200, 5_000, INLINE_BYTES_MAX // 2, INLINE_BYTES_MAX)
PAUSES_S = (0, 0, 0.0005, 0.002)


class Disk(FaultyStorage):
    """Takes its time, and sees who writes."""

    def __init__(self, seed: int, *, fsyncs_beside: bool) -> None:
        super().__init__(Random(seed))
        self.fsyncs_beside = fsyncs_beside  # of BackgroundSync, on its own thread
        self.violations: list[str] = []
        self._writing: dict[str, str] = {}  # call -> the thread in it
        self._guard = threading.Lock()
        self._pauses = Random(seed + 1)

    @contextmanager
    def alone(self, call: str) -> Iterator[None]:
        me = threading.current_thread().name
        with self._guard:
            others = {one: by for one, by in self._writing.items() if one == call or not self.fsyncs_beside}
            if others:
                self.violations.append(f"{call} by {me} beside {others}")
            self._writing[call] = me
            pause_s = self._pauses.choice(PAUSES_S)
        try:
            time.sleep(pause_s)
            yield
        finally:
            with self._guard:
                self._writing.pop(call, None)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every write and fsync says who makes it."""
    write, sync = MemoryFile.write, MemoryFile.sync

    def watched_write(file: MemoryFile, position: int, buffers: list[Buffer]) -> None:
        disk = cast(Disk, file._storage)
        with disk.alone("write"):
            write(file, position, buffers)

    def watched_sync(file: MemoryFile) -> None:
        disk = cast(Disk, file._storage)
        with disk.alone("sync"):
            sync(file)

    monkeypatch.setattr(MemoryFile, "write", watched_write)
    monkeypatch.setattr(MemoryFile, "sync", watched_sync)


class World:
    """A journal with its owner, and others that ask of it what they like."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.mode: FlushMode = self.random.choice((SYNC, SYNC, SYNC, FlushMode(1)))
        self.disk = Disk(seed, fsyncs_beside=self.mode.interval_ms > 0)
        self.loop = Loop()
        self.loop.on_progress = self.observe
        self.changed = threading.Condition()
        self.reached = 0  # the highest `flushed` that was seen
        hooks = self.loop.turns if self.random.random() < 0.8 else None
        self.journal = start(self.disk, self.observe, self.mode, hooks, SEGMENT_BYTES)
        self.appended: list[tuple[int, bytes]] = []  # end and body of each record, in order: the model
        self.errors: list[BaseException] = []
        self.is_over = threading.Event()

    def observe(self) -> None:
        """Check the positions, on the thread that tells of progress."""
        journal, disk = self.journal, self.disk
        with self.changed:
            flushed, written, end = journal.flushed, journal.written, journal.end
            if not flushed <= written <= end:
                disk.violations.append(f"flushed {flushed}, written {written}, end {end}")
            if flushed < self.reached:
                disk.violations.append(f"flushed fell from {self.reached} to {flushed}")
            self.reached = flushed
            with disk.lock:
                disk.violations += [
                    f"flushed {flushed}, while {int(name[:20]) + position} is not on the disk"
                    for name, file in disk.files.items()
                    if name.endswith(".journal") and not disk.fault_fired
                    for position, _ in file.pending
                    if int(name[:20]) + position < flushed
                ]
            self.changed.notify_all()

    def own(self) -> None:
        """Append and end turns, until a close or a failure."""
        for turn in range(TURNS):
            for number in range(self.random.randrange(4)):
                body = b"<%d %d %s>" % (turn, number, b"." * self.random.choice(BODY_BYTES))
                try:
                    end = put(self.journal, body)
                except (JournalClosed, StorageFailed) as error:
                    self.errors.append(error)
                    return
                self.appended.append((end, body))
            if self.random.random() < 0.1:
                self.journal.notify_written(self.random.random() < 0.5)
            self.loop.end_turn()
            time.sleep(self.random.choice(PAUSES_S))
        self.loop.end_turn()

    def ask(self, random: Random) -> None:
        """Flush, and wait for the disk, as threads beside the owner do."""
        while not self.is_over.is_set():
            if random.random() < 0.5:
                self.journal.flush()
            else:
                try:
                    self.journal.wait_flushed(random.randrange(self.journal.end + 1), WAIT_S)
                except StorageFailed as error:
                    self.errors.append(error)
                    return
            time.sleep(random.choice(PAUSES_S))

    def wait_all_durable(self) -> bool:
        """Wait without asking for it, which would wake the writer."""
        journal = self.journal
        with self.changed:
            return self.changed.wait_for(lambda: journal.failure is not None or journal.flushed == journal.end, WAIT_S)


def in_thread(action: Callable[..., None], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=action, args=arguments)
    thread.start()
    return thread


@pytest.mark.usefixtures("watched")
@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_the_order_one_writes_and_nothing_is_forgotten(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    coin = Random(seed + 2)
    monkeypatch.setattr(InlinePolicy, "allows", lambda policy, records: coin.random() < 0.7)
    before = set(threading.enumerate())
    world = World(seed)
    journal, disk = world.journal, world.disk
    ending = world.random.choice(("rest", "close", "fail"))
    if ending == "fail":
        with disk.lock:
            disk.fail_at = len(disk.calls) + world.random.randrange(40)
    owner = in_thread(world.own)
    asking = [in_thread(world.ask, Random(seed + 10 + number)) for number in range(world.random.randrange(3))]
    if ending == "close":
        time.sleep(world.random.random() * TURNS * max(PAUSES_S))
        in_thread(close, journal).join(WAIT_S)
    owner.join(WAIT_S)
    if ending != "close" and not asking:
        assert world.wait_all_durable(), "the writer sleeps on what is queued"
    world.is_over.set()
    in_thread(close, journal).join(WAIT_S)
    for thread in (owner, *asking):
        thread.join(WAIT_S)
    left = [thread.name for thread in set(threading.enumerate()) - before if thread.name != "segment-maker"]
    assert (disk.violations, left) == ([], [])
    bodies = [body for _, body in world.appended]
    failed_at, disk.fail_at = disk.fail_at, None
    if journal.failure is None:
        assert journal.flushed == journal.end
        assert not any(file.pending for file in disk.files.values())
        assert records_of(disk) == bodies
        assert all(isinstance(error, JournalClosed) for error in world.errors)
        with pytest.raises(JournalClosed):
            put(journal, b"late")
        return
    assert disk.fault_fired
    assert all(isinstance(error, StorageFailed) for error in world.errors)
    if not disk.fsyncs_beside:
        assert failed_at is not None
        later = [call for call in disk.calls[failed_at + 1 :] if call[0] in ("write", "sync")]
        assert later == [], "no fsync after one that failed"
    with pytest.raises(StorageFailed):
        put(journal, b"late")
    scanner = Scanner(opened(disk.after_power_cut(PowerCut.DROPPED, Random(seed))), SEGMENT_HEADER_BYTES)
    kept = [bytes(entry.body) for entry in scanner]
    assert scanner.judge_end().verdict is not EndVerdict.CORRUPT
    assert kept == bodies[: len(kept)]
    assert len(kept) >= sum(end <= journal.flushed for end, _ in world.appended), "it was durable"


def close(journal: Journal) -> None:
    try:
        journal.close()
    except StorageFailed:
        assert journal.failure is not None
