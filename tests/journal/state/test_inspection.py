"""Reading from outside: what a record says in words, where reading can begin, and a writer that does not wait."""

from random import Random

import pytest

from journal.errors import StorageFailed
from journal.records.header import HEADER_BYTES, RecordType
from journal.records.record import RollbackReason
from journal.state.inspection import RecordReader, describe, read_checkpoints, scanner_from
from journal.wal.scan import EndVerdict, ScanEnd, Scanner
from journal.wal.segments import Segments
from tests.fixtures.faulty_storage import FaultyStorage
from tests.fixtures.histories import content, entries_of, entry_of, flip, write_history
from tests.fixtures.journals import ORDERS, SEGMENT_BYTES, STOCK, open_store, xa
from tests.fixtures.raw_journal import opened


@pytest.fixture
def storage() -> FaultyStorage:
    storage = FaultyStorage(Random(0))
    write_history(storage).close()
    return storage


def test_describe(storage: FaultyStorage) -> None:
    lines = {line.kind: line for entry, _ in reversed(entries_of(storage)) for line in [describe(entry)]}
    put, tx_put, commit = lines["PUT"], lines["TX_PUT"], lines["COMMIT"]
    assert (put.places, put.bytes, put.key) == (((ORDERS, 0, 120, 20),), 120, None)
    assert (tx_put.places, tx_put.key, tx_put.branch_lsn) == (((ORDERS, None, 300, 3),), xa("commit-0"), tx_put.lsn)
    assert tx_put.note == "begins the branch"
    assert commit.places == ((ORDERS, 120, 300, 3), (STOCK, 0, 300, 3))
    assert (commit.bytes, commit.branch_lsn, commit.note) == (600, tx_put.lsn, "two phases")
    assert lines["ROLLBACK"].note == RollbackReason.ASKED.name.lower()
    assert lines["EPOCH"].note == "opened by metaq test"
    assert lines["PREPARE"].note == "messages=6 bytes=600"
    assert lines["CHECKPOINT"].note == f"checkpoint.1 holds what is below LSN {content(storage, 1).lsn}"


def test_reading_may_begin_anywhere(storage: FaultyStorage) -> None:
    segments = opened(storage)
    lsns = [entry.header.lsn for entry, _ in entries_of(storage)]
    for lsn in (*range(0, 400, 4), *lsns, *(lsn + 1 for lsn in lsns[:-1])):
        first = next(iter(RecordReader(scanner_from(segments, lsn))))
        assert first.header.lsn == min(at for at in lsns if at >= lsn)
    assert list(RecordReader(scanner_from(segments, lsns[-1] + 1))) == []
    with pytest.raises(KeyError):
        scanner_from(segments, segments.end)


def test_reading_may_begin_after_corruption(storage: FaultyStorage) -> None:
    lost = entry_of(storage, RecordType.PUT, 2).header
    flip(storage, lost.lsn + HEADER_BYTES)
    segments = opened(storage)
    assert next(iter(RecordReader(scanner_from(segments, lost.end)))).header.lsn == lost.end
    reading = RecordReader(scanner_from(segments, lost.lsn))
    assert list(reading) == []
    assert reading.end.verdict is EndVerdict.CORRUPT


def test_a_writer_that_runs_ahead_is_no_corruption(monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer completes a record, and fsyncs it, and writes another, between the two looks of one judgement."""
    storage = FaultyStorage(Random(0))
    store = open_store(storage)
    segments = Segments.open(storage, None, SEGMENT_BYTES, writable=False)
    scanner = Scanner(segments, segments.start)
    finish = Scanner.finish
    written: list[int] = []

    def write_then_finish(self: Scanner) -> ScanEnd:
        if len(written) < 3:
            for _ in range(2):
                store.put(ORDERS, [b"x"], 1, 1)
                store.journal.wait_flushed(store.journal.end)
            written.append(store.journal.end)
        return finish(self)

    monkeypatch.setattr(Scanner, "finish", write_then_finish)
    reading = RecordReader(scanner)
    assert [entry.header.record_type for entry in reading] == [RecordType.EPOCH] + [RecordType.PUT] * 6
    assert reading.end.verdict is EndVerdict.WHOLE
    store.close()


def test_a_checkpoint_that_a_live_broker_deletes_meanwhile_is_left_out(
    storage: FaultyStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = FaultyStorage.read

    def vanish(self: FaultyStorage, name: str) -> bytes:
        if name == "checkpoint.1":
            self.blobs.pop(name, None)
            raise StorageFailed("memory/checkpoint.1: No such file or directory")
        return read(self, name)

    monkeypatch.setattr(FaultyStorage, "read", vanish)
    assert list(read_checkpoints(storage)) == [2]
