"""A failed call stops the writer for good, and fails every waiting and later call."""

import threading
from random import Random

import pytest

from journal.errors import StorageFailed
from journal.records.header import Offset
from journal.records.record import PutRecord
from journal.wal.flush_mode import SYNC, FlushMode
from tests.fixtures.faulty_storage import FaultyStorage
from tests.fixtures.journals import INTERVAL, ORDERS
from tests.fixtures.writers import WAIT_S, Progress, put, records_of, start


def fail_on(call: str, storage: FaultyStorage) -> None:
    """Make the next *call* fail."""
    calls = len(storage.calls)
    storage.fail_at = calls + {"write": 0, "sync": 1}[call]


@pytest.mark.parametrize("call", ["write", "sync"])
@pytest.mark.parametrize("mode", [SYNC, INTERVAL])
def test_a_failed_call_stops_the_journal_for_good(call: str, mode: FlushMode) -> None:
    storage, progress = FaultyStorage(Random(1)), Progress()
    journal = start(storage, progress, mode)
    good = put(journal, b"good")
    journal.wait_flushed(good)
    fail_on(call, storage)
    bad = put(journal, b"bad")
    with pytest.raises(StorageFailed, match="was made to fail"):
        journal.wait_flushed(bad)
    assert progress.wait_for(lambda: journal.failure is not None)
    calls = list(storage.calls)
    assert calls[-1][0] == call
    journal.wait_flushed(good)  # what was durable stays so
    for _ in range(2):
        with pytest.raises(StorageFailed):
            put(journal, b"later")
        with pytest.raises(StorageFailed):
            journal.wait_flushed(bad)
        with pytest.raises(StorageFailed):
            journal.close()
    journal._writer.flush()
    assert storage.calls == calls  # neither write nor fsync was tried again
    assert journal.flushed == good


def test_every_waiter_gets_the_failure() -> None:
    storage = FaultyStorage(Random(1))
    journal = start(storage)
    storage.hold()
    first = put(journal, b"first")
    storage.wait_blocked()
    ends = [put(journal, b"%d" % number) for number in range(4)]
    heard: list[type[BaseException]] = []

    def wait(end: int) -> None:
        try:
            journal.wait_flushed(end, WAIT_S)
        except BaseException as error:
            heard.append(type(error))

    threads = [threading.Thread(target=wait, args=(end,)) for end in (first, *ends)]
    for thread in threads:
        thread.start()
    storage.fail_at = len(storage.calls)
    storage.let_go()
    for thread in threads:
        thread.join(WAIT_S)
    assert heard == [StorageFailed] * 5
    with pytest.raises(StorageFailed):
        journal.close()


def test_a_failure_to_make_the_next_segment_is_a_failure_like_any_other() -> None:
    storage = FaultyStorage(Random(1))
    journal = start(storage)
    end = put(journal, b"x" * 1000)  # less than half a segment: the next one is not begun
    journal.wait_flushed(end)
    storage.fail_at = len(storage.calls) + 2  # write of the PAD, sync, create
    bad = put(journal, b"y" * 3000)
    with pytest.raises(StorageFailed):
        journal.wait_flushed(bad)
    assert [call for call, _ in storage.calls[-3:]] == ["write", "sync", "create"]
    assert journal.flushed == end
    with pytest.raises(StorageFailed):
        journal.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # it is raised on purpose
def test_a_body_of_another_length_than_announced_stops_the_writer_before_it_writes() -> None:
    storage = FaultyStorage(Random(1))
    journal = start(storage)
    header = journal.append(PutRecord(ORDERS, Offset(0), 1), 0, [b"four"], 5)
    with pytest.raises(StorageFailed, match="a body of 4 bytes announced as 5"):
        journal.wait_flushed(header.end)
    assert records_of(storage) == []
    with pytest.raises(StorageFailed):
        journal.close()
