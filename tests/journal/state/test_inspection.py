"""Reading from outside: what a record says in words, where reading can begin, and a writer that does not wait."""

from pathlib import Path
from random import Random

import pytest

from journal.errors import StorageFailed
from journal.records.codec import encode
from journal.records.dead_letters import DeadLetter, DeadLetterState
from journal.records.header import HEADER_BYTES, Lsn, Offset, RecordHeader, RecordType, pack, unpack
from journal.records.heuristics import HeuristicDecision
from journal.records.ledger import Disagreement, LedgerEntry
from journal.records.producer_state import BatchSequence
from journal.records.record import (
    Decision,
    DroppedRecords,
    Forget,
    Heuristic,
    PartitionEnd,
    PutBatch,
    Record,
    Relocate,
    RelocatedExtent,
    RollbackReason,
)
from journal.records.topic_changes import TopicChange, TopicState
from journal.state.inspection import RecordReader, describe, open_beside_writer, read_checkpoints, scanner_from
from journal.wal.scan import EndVerdict, ScanEnd, ScannedRecord, Scanner
from journal.wal.segments import Segments
from journal.wal.storage import DirectoryStorage
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


@pytest.mark.parametrize(
    ("record", "note"),
    [
        (PutBatch(ORDERS, Offset(0), 3, 7, BatchSequence("shop", 5)), "producer=shop batch=5 first_id=7"),
        (
            Heuristic(xa("a"), Lsn(128), HeuristicDecision.COMMIT, 5, 3, 300, "ann", "sure"),
            "commit 3 messages of 300 bytes by ann: sure",
        ),
        (LedgerEntry(xa("a"), Disagreement.MIXED, "ann", "a guess", "a row"), "mixed by ann: a guess: a row"),
        (Decision(xa("a"), "broker 0"), "to commit: broker 0"),
        (Forget(xa("a")), ""),
        (
            TopicChange(topic="orders", state=TopicState.SET, partitions=2, compression=("lz4",), closed=(0, 1, 5)),
            "orders: set partitions=2 publish=false subscribe=false stat=false compression=lz4 closed=0-1,5",
        ),
        (
            Relocate(xa("a"), Lsn(128), ORDERS, 2, 0, tuple(RelocatedExtent(Lsn(at), 9, 1, 5) for at in (400, 300))),
            "carries runs 2 to 3 from LSN 300 on",
        ),
        (DroppedRecords((PartitionEnd(ORDERS, Offset(9)),)), f"partitions go on: {ORDERS}@9"),
        (DroppedRecords(), "did not read back and were dropped by a repair"),
        (DeadLetter("orders", 0, 1, 100, 200, 5, 2, DeadLetterState.TRIED, "no stock"), "no stock"),
    ],
)
def test_describe_what_is_rare(record: Record, note: str) -> None:
    kind, meta = encode(record)
    view = memoryview(pack(kind, 0, meta, 0, 0, 1, 1, 256, 0, 5).ljust(SEGMENT_BYTES, b"\0"))
    header = unpack(view, 0, 256)
    assert isinstance(header, RecordHeader)
    line = describe(ScannedRecord(header, view, 0))
    assert (line.note.endswith(note), line.note == "") == (True, note == "")
    assert line.key == getattr(record, "key", None)


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
    judge_end = Scanner.judge_end
    written: list[int] = []

    def write_then_judge(self: Scanner) -> ScanEnd:
        if len(written) < 3:
            for _ in range(2):
                store.put(ORDERS, [b"x"], 1, 1)
                store.journal.wait_flushed(store.journal.end)
            written.append(store.journal.end)
        return judge_end(self)

    monkeypatch.setattr(Scanner, "judge_end", write_then_judge)
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


class ShrinkingDirectory(DirectoryStorage):
    """Its oldest segment is deleted right after it was listed for the second time."""

    listed = 0

    def names(self) -> list[str]:
        found = super().names()
        self.listed += 1
        if self.listed == 2:
            (Path(self.path) / found[0]).unlink()
        return found


def test_a_segment_that_is_dropped_during_the_opening_is_left_out(tmp_path: Path) -> None:
    storage = DirectoryStorage.open_for_writing(tmp_path)
    store = open_store(storage)
    while len(store.journal.segments) < 3:
        store.put(ORDERS, [b"x" * 100], 100, 1)
        store.journal.wait_flushed(store.journal.end)
    store.close()
    storage.close()
    segments = open_beside_writer(ShrinkingDirectory(tmp_path, None), 4096)
    assert (segments.start > 4096, len(segments)) == (True, 2)
    segments.close()
