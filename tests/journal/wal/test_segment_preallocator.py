"""The next segment is made ahead of need; when that fails, or is cut short, nothing but time is lost."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from journal.errors import StorageFailed
from journal.records.header import Offset
from journal.records.record import PutRecord
from journal.wal.flush_mode import SYNC
from journal.wal.journal import Journal
from journal.wal.scan import EndVerdict, Scanner
from journal.wal.segment_preallocator import SegmentPreallocator
from journal.wal.segments import Segments, segment_name
from journal.wal.storage import PREZERO_BYTES, TMP_SUFFIX, DirectoryStorage
from journal.wal.storage_file import DirectoryFile
from tests.fixtures.faulty_storage import FaultyStorage, MemoryFile, PowerCut
from tests.fixtures.journals import IDENTITY, ORDERS, SEGMENT_BYTES
from tests.fixtures.raw_journal import opened

WAIT_S = 30.0
NEXT = segment_name(SEGMENT_BYTES)


class Watched(FaultyStorage):
    """Tells when a segment was prepared, and holds that up if asked."""

    def __init__(self, seed: int = 1) -> None:
        super().__init__(Random(seed))
        self.prepared = threading.Event()
        self.may_prepare = threading.Event()
        self.may_prepare.set()

    def preallocate(self, name: str, size: int, head: bytes, skip_prezero: Callable[[], bool]) -> MemoryFile:
        assert self.may_prepare.wait(WAIT_S)
        try:
            return super().preallocate(name, size, head, skip_prezero)
        finally:
            self.prepared.set()


def start(storage: FaultyStorage) -> Journal:
    segments = Segments.open(storage, IDENTITY, SEGMENT_BYTES, writable=True)
    return Journal.start(segments, segments.start, epoch=1, incarnation=1, flush=SYNC)


def put(journal: Journal, size: int) -> int:
    end = journal.append(PutRecord(ORDERS, Offset(0), 1), 0, [bytes(size)], size).end
    journal.wait_flushed(end, WAIT_S)
    return end


def calls(storage: FaultyStorage, *wanted: str) -> list[tuple[str, str]]:
    return [call for call in storage.calls if call[0] in wanted]


def test_it_is_made_once_half_of_a_segment_is_written_and_named_when_it_is_needed() -> None:
    storage = Watched()
    journal = start(storage)
    put(journal, 1000)
    put(journal, 500)
    assert calls(storage, "prepare") == []
    put(journal, 1000)
    assert storage.prepared.wait(WAIT_S)
    put(journal, 100)
    assert len(journal.segments) == 1, "a segment that stands proves the one before it durable"
    put(journal, 1500)
    assert calls(storage, "prepare", "publish") == [("prepare", NEXT + TMP_SUFFIX), ("publish", NEXT)]
    synced = storage.calls.index(("publish", NEXT)) - 1
    assert storage.calls[synced] == ("sync", segment_name(0)), "named before the one in front of it was durable"
    journal.close()
    assert len(list(Scanner(opened(storage), 128))) == 5


def test_a_roll_waits_for_what_is_being_made() -> None:
    storage = Watched()
    storage.may_prepare.clear()
    journal = start(storage)
    put(journal, 3000)
    end = journal.append(PutRecord(ORDERS, Offset(0), 1), 0, [bytes(3000)], 3000).end
    storage.may_prepare.set()
    journal.wait_flushed(end, WAIT_S)
    assert calls(storage, "create") == [("create", segment_name(0))]
    journal.close()


def test_one_that_could_not_be_made_ahead_is_made_at_the_roll(caplog: pytest.LogCaptureFixture) -> None:
    storage = Watched()
    storage.may_prepare.clear()
    journal = start(storage)
    put(journal, 3000)
    storage.fail_at = len(storage.calls)
    storage.may_prepare.set()
    assert storage.prepared.wait(WAIT_S)
    with caplog.at_level(logging.WARNING):
        put(journal, 3000)
    assert calls(storage, "create")[-1] == ("create", NEXT)
    assert "next segment not preallocated error=memory: call" in caplog.text
    journal.close()


def test_a_name_that_cannot_be_given_stops_the_journal() -> None:
    storage = Watched()
    journal = start(storage)
    end = put(journal, 3000)
    assert storage.prepared.wait(WAIT_S)
    storage.fail_at = len(storage.calls) + 2  # write of the PAD, sync, publish
    with pytest.raises(StorageFailed):
        put(journal, 3000)
    assert calls(storage, "publish", "create")[-1] == ("publish", NEXT)
    assert journal.flushed == end
    with pytest.raises(StorageFailed):
        journal.close()


@pytest.mark.parametrize("cut", PowerCut)
def test_one_that_was_never_needed_is_no_segment_and_goes_at_the_next_start(cut: PowerCut) -> None:
    storage = Watched()
    journal = start(storage)
    end = put(journal, 3000)
    assert storage.prepared.wait(WAIT_S)
    after = storage.after_power_cut(cut, Random(1))
    journal.close()
    assert NEXT + TMP_SUFFIX in after.files
    segments = opened(after)
    scanner = Scanner(segments, 128)
    assert len(list(scanner)) == 1
    assert scanner.judge_end().verdict is EndVerdict.WHOLE
    again = Journal.start(segments, scanner.end, epoch=1, incarnation=2, flush=SYNC)
    assert list(after.files) == [segment_name(0)]
    assert again.end == end
    again.close()


def test_a_clean_stop_leaves_no_unused_segment() -> None:
    storage = Watched()
    journal = start(storage)
    put(journal, 3000)
    assert storage.prepared.wait(WAIT_S)
    journal.close()
    assert list(storage.files) == [segment_name(0)]


def test_a_file_that_another_program_made_stays(tmp_path: Path) -> None:
    for name in ("notes.tmp", "12.journal.tmp", f"{segment_name(0)}.tmp.tmp"):
        (tmp_path / name).write_bytes(b"mine")
    (tmp_path / f"{segment_name(0)}.tmp").write_bytes(b"half a segment")
    storage = DirectoryStorage.open_for_writing(tmp_path)
    Segments(storage, IDENTITY, SEGMENT_BYTES).remove_unfinished()
    assert storage.names() == [f"{segment_name(0)}.tmp.tmp", "12.journal.tmp", "notes.tmp"]
    storage.close()


@pytest.mark.parametrize("hurried_after", [0, 1, None])
def test_a_prepared_file_is_whole_however_far_its_zeroing_came(tmp_path: Path, hurried_after: int | None) -> None:
    size = 3 * PREZERO_BYTES + 4096
    asked = 0

    def is_hurried() -> bool:
        nonlocal asked
        asked += 1
        return hurried_after is not None and asked > hurried_after

    storage = DirectoryStorage.open_for_writing(tmp_path)
    file = storage.preallocate("a", size, b"head", is_hurried)
    assert asked == (4 if hurried_after is None else hurried_after + 1)
    assert storage.names() == ["a.tmp"]
    assert (tmp_path / "a.tmp").stat().st_blocks * 512 >= size
    storage.rename_into_place("a")
    assert storage.names() == ["a"]
    assert file.next_data(4096) == (size if hurried_after == 0 else 4096), "what is warm is written, not a hole"
    assert file.reader().read(0, size) == b"head".ljust(size, b"\0")
    file.write(size - 1, [b"x"])
    file.sync()
    assert file.reader().read(size - 2, 2) == b"\0x"
    file.close()
    storage.close()


def test_what_is_taken_is_what_was_begun(tmp_path: Path) -> None:
    storage = DirectoryStorage.open_for_writing(tmp_path)
    made = SegmentPreallocator(storage)
    assert made.collect("a") is None
    made.start("a", SEGMENT_BYTES, b"head", prezero=True)
    assert made.is_started
    file = made.collect("a")
    assert isinstance(file, DirectoryFile)
    assert file.reader().read(0, 5) == b"head\0"
    assert not made.is_started
    file.close()
    made.start("b", SEGMENT_BYTES, b"", prezero=False)
    made.close()
    made.close()
    assert storage.names() == ["a.tmp"]
    storage.close()
