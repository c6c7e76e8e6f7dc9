"""fsync beside the writes: only callers that wait for the disk wait, and acknowledgements never run ahead."""

import threading
import time
from collections.abc import Iterator
from random import Random

import pytest

from journal.errors import StorageFailed
from journal.records.header import Lsn
from journal.wal.flush_mode import FlushMode
from tests.fixtures.faulty_storage import FaultyStorage, MemoryFile
from tests.fixtures.writers import WAIT_S, Progress, put, records_of, start

SOON = FlushMode(5)


class SlowSync:
    """Lets fsyncs begin, and end when the test says so."""

    def __init__(self) -> None:
        self.begun = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)

    def wait_begun(self) -> None:
        assert self.begun.acquire(timeout=WAIT_S), "no fsync"


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowSync]:
    slow, sync = SlowSync(), MemoryFile.sync

    def slow_sync(file: MemoryFile) -> None:
        slow.begun.release()
        assert slow.go_on.acquire(timeout=WAIT_S)
        sync(file)

    monkeypatch.setattr(MemoryFile, "sync", slow_sync)
    yield slow
    slow.go_on.release(1000)


def test_writes_go_on_while_the_disk_takes_what_was_there(slow: SlowSync) -> None:
    storage, progress = FaultyStorage(Random(1)), Progress()
    journal = start(storage, progress, SOON)
    first = put(journal, b"first")
    slow.wait_begun()
    later = put(journal, b"later")
    assert progress.wait_for(lambda: journal.acknowledged_here >= later), "a write waited for an fsync"
    assert journal.flushed == 128
    slow.go_on.release()
    assert progress.wait_for(lambda: journal.flushed >= first)
    slow.wait_begun()
    assert journal.flushed == first, "what was written during an fsync is counted by the next one"
    slow.go_on.release(1000)
    assert progress.wait_for(lambda: journal.flushed >= later)
    journal.close()
    assert records_of(storage) == [b"first", b"later"]


def test_a_segment_ends_after_the_fsync_of_all_of_it(slow: SlowSync) -> None:
    storage, progress = FaultyStorage(Random(1)), Progress()
    journal = start(storage, progress, SOON)
    put(journal, b"x" * 500)
    slow.wait_begun()
    for _ in range(20):
        put(journal, b"x" * 500)
    time.sleep(0.2)
    assert len(journal.segments) == 1, "a later segment proves the earlier one durable"
    slow.go_on.release(1000)
    assert progress.wait_for(lambda: len(journal.segments) > 2)
    journal.close()


def test_a_failed_fsync_stops_the_journal_and_none_follows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    syncs: list[str] = []

    def fail(file: MemoryFile) -> None:
        syncs.append(file.name)
        raise StorageFailed(f"{file.name}: Input/output error")

    storage, progress = FaultyStorage(Random(1)), Progress()
    journal = start(storage, progress, SOON)
    monkeypatch.setattr(MemoryFile, "sync", fail)
    put(journal, b"x")
    assert progress.wait_for(lambda: journal.failure is not None)
    assert journal.flushed == 128
    with pytest.raises(StorageFailed, match="Input/output error"):
        put(journal, b"y")
    with pytest.raises(StorageFailed, match="Input/output error"):
        journal.wait_flushed(Lsn(129), WAIT_S)
    with pytest.raises(StorageFailed, match="Input/output error"):
        journal.close()
    assert len(syncs) == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # it is told there, too
@pytest.mark.parametrize("where", ["fsync", "on_progress"])
def test_anything_that_ends_the_thread_that_fsyncs_stops_the_journal(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """Else everything that comes would be acknowledged, and nothing ever fsynced."""
    storage, progress = FaultyStorage(Random(1)), Progress()

    def broken() -> None:
        progress()
        if where == "on_progress" and threading.current_thread().name == "journal-sync" and journal.failure is None:
            raise RuntimeError("not foreseen")

    def sync(file: MemoryFile) -> None:
        raise RuntimeError("not foreseen")

    journal = start(storage, broken, SOON)
    if where == "fsync":
        monkeypatch.setattr(MemoryFile, "sync", sync)
    put(journal, b"first")
    assert progress.wait_for(lambda: journal.failure is not None), "nobody fsyncs, and nobody is told"
    with pytest.raises(StorageFailed, match="not foreseen"):
        put(journal, b"second")
    with pytest.raises(StorageFailed, match="not foreseen"):
        journal.close()
