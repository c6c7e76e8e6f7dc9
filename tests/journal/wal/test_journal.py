"""Record appender: order and time of acknowledgements."""

import threading
import time
from random import Random

import pytest

from journal.errors import JournalClosed
from journal.records.header import Offset
from journal.records.record import PutRecord
from journal.wal.flush_mode import SYNC, FlushMode
from journal.wal.journal import Journal
from journal.wal.scan import Scanner
from journal.wal.segments import Segments
from tests.fixtures.faulty_storage import FaultyStorage
from tests.fixtures.journals import IDENTITY, INTERVAL, ORDERS, SEGMENT_BYTES
from tests.fixtures.writers import WAIT_S, Progress, put, records_of, start


def test_the_writer_wakes_up_for_a_record_that_begins_a_segment() -> None:
    progress = Progress()
    journal = start(FaultyStorage(Random(1)), progress)
    for _ in range(18):  # nobody waits in wait_flushed, which would wake the writer too
        end = put(journal, b"x" * 500)
        assert progress.wait_for(lambda: journal.flushed >= end), "the writer sleeps on a queued record"  # noqa: B023
    assert len(journal.segments) > 2
    journal.close()


def test_the_flush_mode_reads_and_writes_its_text() -> None:
    for text, interval_ms in (("sync", 0), ("interval:1", 1), ("interval:60000", 60_000)):
        mode = FlushMode.parse(text)
        assert mode.interval_ms == interval_ms
        assert str(mode) == text


@pytest.mark.parametrize(
    "text", ["", "Sync", "interval", "interval:", "interval:0", "interval:60001", "interval:-1", "interval:1.5", "x:5"]
)
def test_anything_else_is_no_flush_mode(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no flush mode: use sync, or interval:<1\.\.60000 milliseconds>"):
        FlushMode.parse(text)


def test_what_arrives_during_an_fsync_shares_the_next_one() -> None:
    storage = FaultyStorage(Random(1))
    journal = start(storage)
    storage.hold()
    put(journal, b"first")
    storage.wait_blocked()
    ends = [put(journal, b"%d" % number) for number in range(100)]
    storage.let_go()
    journal.wait_flushed(ends[-1])
    assert journal.syncs <= 3  # the first, the hundred, and one more if the segment was full
    assert records_of(storage) == [b"first", *(b"%d" % number for number in range(100))]
    journal.close()


def test_sync_mode_acknowledges_what_is_fsynced() -> None:
    storage = FaultyStorage(Random(1))
    journal = start(storage)
    storage.hold()
    end = put(journal, b"x")
    storage.wait_blocked()  # written
    storage.let_one_pass()
    storage.wait_blocked()  # about to be fsynced
    assert (journal.acknowledged_here, journal.flushed) == (128, 128)
    storage.let_go()
    journal.wait_flushed(end)
    assert journal.acknowledged_here == end
    assert not storage.files["00000000000000000000.journal"].pending
    journal.close()


def test_interval_mode_acknowledges_what_is_written_and_fsyncs_when_due() -> None:
    storage, progress = FaultyStorage(Random(1)), Progress()
    journal = start(storage, progress, FlushMode(400))
    end = put(journal, b"x")
    assert progress.wait_for(lambda: journal.acknowledged_here >= end)
    assert journal.flushed == 128
    assert progress.wait_for(lambda: journal.flushed >= end)
    again = put(journal, b"after a rest")
    assert progress.wait_for(lambda: journal.acknowledged_here >= again)
    assert journal.flushed == end
    journal.close()


def test_interval_mode_fsyncs_in_time_under_a_stream_of_records() -> None:
    """A writer that never sleeps must not put the fsync off until it does."""
    journal = start(FaultyStorage(Random(1)), flush=FlushMode(20))
    deadline = time.monotonic() + WAIT_S
    while journal.flushed == 128:
        put(journal, b"x")
        assert time.monotonic() < deadline, "no fsync while records kept coming"
    journal.close()


def test_flush_fsyncs_at_once_in_interval_mode() -> None:
    progress = Progress()
    journal = start(FaultyStorage(Random(1)), progress, INTERVAL)
    end = put(journal, b"x")
    journal._writer.flush()
    assert progress.wait_for(lambda: journal.flushed >= end)
    journal.close()


def test_close_writes_and_fsyncs_what_is_queued() -> None:
    for mode in (SYNC, INTERVAL):
        storage = FaultyStorage(Random(1))
        journal = start(storage, flush=mode)
        for number in range(20):
            put(journal, b"%d" % number)
        journal.close()
        journal.close()
        assert journal.flushed == journal.end
        assert not any(file.pending for file in storage.files.values())
        with pytest.raises(JournalClosed):
            put(journal, b"late")


def test_waiting_gives_up_after_its_timeout() -> None:
    storage = FaultyStorage(Random(1))
    journal = start(storage)
    storage.hold()
    end = put(journal, b"x")
    with pytest.raises(TimeoutError, match=f"LSN {end} is not durable after 0.05 s"):
        journal.wait_flushed(end, timeout_s=0.05)
    storage.let_go()
    journal.close()


def test_a_queue_longer_than_a_batch_is_written_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("journal.wal.log_writer.LogWriter.batch_bytes_max", 2000)
    storage = FaultyStorage(Random(1))
    journal = start(storage)
    storage.hold()
    put(journal, b"first")
    storage.wait_blocked()
    for number in range(40):
        put(journal, b"%03d" % number * 100)
    assert journal.queued_bytes == 40 * (384)
    storage.let_go()
    journal.wait_flushed(journal.end)
    assert journal.syncs > 5
    assert journal.queued_bytes == 0
    assert records_of(storage) == [b"first", *(b"%03d" % number * 100 for number in range(40))]
    journal.close()


@pytest.mark.parametrize("parts", [[b"x" * 100_000], [b"a" * 40_000, memoryview(b"b" * 60_000)], [b"c"] * 3000])
def test_bodies_of_any_size_and_number_of_parts(parts: list[bytes | memoryview]) -> None:
    storage = FaultyStorage(Random(1))
    segments = Segments.open(storage, IDENTITY, 1 << 20, writable=True)
    journal = Journal.start(segments, segments.start, epoch=1, incarnation=1, flush=SYNC)
    whole = b"".join(parts)
    for _ in range(3):
        journal.append(PutRecord(ORDERS, Offset(0), 1), 0, parts, len(whole))
        put(journal, b"small")
    journal.close()
    assert records_of(storage) == [whole, b"small"] * 3


def test_many_threads_append_at_once() -> None:
    storage = FaultyStorage(Random(1))
    journal = start(storage)
    heard: dict[int, list[tuple[int, bytes]]] = {}

    def append(thread: int) -> None:
        mine = heard[thread] = []
        for number in range(60):
            body = b"%d-%d" % (thread, number) * (number % 7 * 20 + 1)
            header = journal.append(PutRecord(ORDERS, Offset(0), 1), 0, [body], len(body))
            if number % 10 == 0:
                journal.wait_flushed(header.end, WAIT_S)
            mine.append((header.lsn, body))

    threads = [threading.Thread(target=append, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    journal.close()
    segments = Segments.open(storage, IDENTITY, SEGMENT_BYTES, writable=False)
    found = {entry.header.lsn: bytes(entry.body) for entry in Scanner(segments, segments.start)}
    assert found == dict(pair for mine in heard.values() for pair in mine)
    assert len(found) == 6 * 60
    for mine in heard.values():
        assert mine == sorted(mine)  # each thread's records stand in the order it appended them


def test_a_records_durable_lsn_was_fsynced_when_it_was_written() -> None:
    storage = FaultyStorage(Random(1))
    journal = start(storage)
    for number in range(50):
        end = put(journal, b"x" * number * 10)
        if number % 3 == 0:
            journal.wait_flushed(end)
    journal.close()
    segments = Segments.open(storage, IDENTITY, SEGMENT_BYTES, writable=False)
    ends = {128}
    for entry in Scanner(segments, segments.start):
        assert entry.header.durable <= entry.header.lsn
        assert entry.header.durable in ends
        ends.add(entry.header.end)
