"""The chain of segment files: what is opened, what is refused, and changing it while others read."""

import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random

import pytest

from journal.errors import CorruptJournal, ForeignJournal, StorageFailed
from journal.records.header import Lsn
from journal.wal.scan import Scanner
from journal.wal.segments import (
    CLUSTER_BYTES_MAX,
    MAGIC,
    SEGMENT_BYTES_MIN,
    SEGMENT_HEADER_BYTES,
    JournalIdentity,
    SegmentHeader,
    Segments,
    segment_name,
)
from journal.wal.storage import TMP_SUFFIX, DirectoryStorage, Storage
from journal.wal.storage_file import StorageFile
from tests.fixtures.faulty_storage import FaultyStorage, MemoryFile
from tests.fixtures.journals import IDENTITY, SEGMENT_BYTES
from tests.fixtures.raw_journal import opened, put_record, written


def rewrite(storage: FaultyStorage, base: int, change: Callable[[bytearray], None]) -> None:
    """Edit a segment's header and make its checksum right again."""
    file = storage.files[segment_name(base)]
    head = bytearray(file.cached[:SEGMENT_HEADER_BYTES])
    change(head)
    head[-4:] = struct.pack("<I", zlib.crc32(head[:-4]))
    file.write(0, [head])


def test_every_byte_of_a_segment_header_counts() -> None:
    for position in range(SEGMENT_HEADER_BYTES):
        storage = written({}, {})
        storage.files[segment_name(SEGMENT_BYTES)].cached[position] ^= 0x10
        with pytest.raises(CorruptJournal, match=f"corrupt at LSN {SEGMENT_BYTES} "):
            opened(storage)


def test_another_version_is_foreign() -> None:
    storage = written({})
    rewrite(storage, 0, lambda head: head.__setitem__(8, 2))
    with pytest.raises(ForeignJournal, match="journal format 2, this metaq reads 1: use the metaq that wrote it"):
        opened(storage)


@pytest.mark.parametrize("owner", [JournalIdentity("test", 8), JournalIdentity("other", 7)])
def test_another_broker_is_foreign(owner: JournalIdentity) -> None:
    with pytest.raises(ForeignJournal, match=f"belongs to {IDENTITY}, not to {owner}: start that broker here"):
        Segments.open(written({}), owner, SEGMENT_BYTES, writable=False)


def test_two_brokers_segments_in_one_directory_are_foreign_to_readers() -> None:
    storage = written({}, {})
    rewrite(storage, SEGMENT_BYTES, lambda head: head.__setitem__(12, 9))
    with pytest.raises(ForeignJournal, match="belongs to broker 9"):
        Segments.open(storage, None, SEGMENT_BYTES, writable=False)


def test_a_cluster_name_that_is_no_text_is_corruption() -> None:
    storage = written({})
    rewrite(storage, 0, lambda head: head.__setitem__(33, 0xFF))
    with pytest.raises(CorruptJournal, match="not UTF-8"):
        opened(storage)


def test_a_size_or_base_that_is_not_the_files_is_corruption() -> None:
    storage = written({}, {})
    rewrite(storage, SEGMENT_BYTES, lambda head: head.__setitem__(16, 8))
    with pytest.raises(CorruptJournal, match="a file of 4096 bytes that should hold 4096"):
        opened(storage)


def test_a_missing_segment_is_corruption() -> None:
    storage = written({}, {}, {})
    del storage.files[segment_name(SEGMENT_BYTES)]
    with pytest.raises(CorruptJournal, match=f"corrupt at LSN {SEGMENT_BYTES} .*a segment is missing") as caught:
        opened(storage)
    assert caught.value.next_valid_lsn == 2 * SEGMENT_BYTES


@pytest.mark.parametrize("size", [0, 1, SEGMENT_HEADER_BYTES - 1])
def test_a_truncated_segment_file_is_corruption(tmp_path: Path, size: int) -> None:
    header = SegmentHeader(IDENTITY, Lsn(0), SEGMENT_BYTES).pack()
    (tmp_path / segment_name(0)).write_bytes(header[:size])
    with pytest.raises(CorruptJournal, match="no segment header"):
        Segments.open(DirectoryStorage.open_for_reading(tmp_path), IDENTITY, SEGMENT_BYTES, writable=False)


@pytest.mark.parametrize("size", [0, SEGMENT_BYTES_MIN - 4096, SEGMENT_BYTES_MIN + 1, 1 << 33])
def test_a_size_no_segment_can_have(size: int) -> None:
    with pytest.raises(ValueError, match=f"segment_bytes {size} is not a multiple of 4096"):
        Segments(FaultyStorage(Random(0)), IDENTITY, size)


@pytest.mark.parametrize("cluster", ["", "ü" * (CLUSTER_BYTES_MAX // 2 + 1)])
def test_a_cluster_name_no_header_takes(cluster: str) -> None:
    with pytest.raises(ValueError, match="is not 1 to 64 bytes long"):
        SegmentHeader(JournalIdentity(cluster, 1), Lsn(0), SEGMENT_BYTES).pack()


def test_locate() -> None:
    segments = opened(written({}, {}))
    for lsn in (0, 1, SEGMENT_BYTES - 1):
        assert segments.locate(lsn)[0] == 0
    for lsn in (SEGMENT_BYTES, 2 * SEGMENT_BYTES - 1):
        assert segments.locate(lsn)[0] == SEGMENT_BYTES
    for lsn in (-1, 2 * SEGMENT_BYTES):
        with pytest.raises(KeyError, match=f"LSN {lsn} is in no segment of memory"):
            segments.locate(lsn)


def test_segments_of_different_sizes_follow_one_another() -> None:
    storage = written({})
    segments = Segments.open(storage, IDENTITY, 8192, writable=True)
    assert segments.roll()[0] == 4096
    assert segments.roll()[0] == 4096 + 8192
    again = Segments.open(storage, IDENTITY, SEGMENT_BYTES, writable=True)
    assert [base for base, _ in again] == [0, 4096, 4096 + 8192]
    assert again.end == 4096 + 2 * 8192


def test_the_chain_is_never_seen_half_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = written({}, {}, {}, {})
    segments = opened(storage)
    files = list(segments)
    wrong: list[int] = []

    def look() -> None:
        """Every segment that is there must be found under its own base."""
        for base, file in segments:
            if segments.locate(base) != (base, file) or (base, file) not in files:
                wrong.append(base)

    for _, file in files:  # another thread gets its turn when a file is closed
        monkeypatch.setattr(file, "close", look)
    segments.drop_before(2 * SEGMENT_BYTES)
    assert [base for base, _ in segments] == [2 * SEGMENT_BYTES, 3 * SEGMENT_BYTES]
    segments.drop_from(3 * SEGMENT_BYTES)
    assert [base for base, _ in segments] == [2 * SEGMENT_BYTES]
    assert wrong == []
    assert sorted(storage.files) == [segment_name(2 * SEGMENT_BYTES)]


def test_a_segment_that_cannot_be_removed_stays_part_of_the_chain() -> None:
    """Else the next one would go before it, and leave a gap that no start accepts."""
    storage = written({}, {}, {}, {})
    segments = opened(storage)
    storage.fail_at = len(storage.calls)
    with pytest.raises(StorageFailed):
        segments.drop_before(2 * SEGMENT_BYTES)
    assert [base for base, _ in segments] == [number * SEGMENT_BYTES for number in range(4)]
    assert segments.read(0, 8) == MAGIC
    assert segments.drop_before(2 * SEGMENT_BYTES) == 2
    assert [base for base, _ in opened(storage)] == [2 * SEGMENT_BYTES, 3 * SEGMENT_BYTES]


def test_readers_roll_and_drop_at_the_same_time() -> None:
    segments = opened(written({}))
    stop = threading.Event()
    failures: list[BaseException] = []

    def read() -> None:
        while not stop.is_set():
            try:
                for base, file in segments:
                    assert file.size == SEGMENT_BYTES
                    assert base % SEGMENT_BYTES == 0
                assert segments.start < segments.end
            except BaseException as error:
                failures.append(error)
                return

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(300):
        base, _ = segments.roll()
        segments.drop_before(base)
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert [base for base, _ in segments] == [300 * SEGMENT_BYTES]


def test_a_segment_whose_name_the_power_took_is_adopted() -> None:
    """A failed fsync of the directory leaves the new name readable; a power cut gives the segment its old one."""
    storage = written({}, {SEGMENT_BYTES + SEGMENT_HEADER_BYTES: put_record(SEGMENT_BYTES + SEGMENT_HEADER_BYTES, 0)})
    name = segment_name(SEGMENT_BYTES)
    storage.files[name + TMP_SUFFIX] = storage.files.pop(name)
    reader = Segments.open(storage, None, SEGMENT_BYTES, writable=False)
    assert len(reader) == 2, "a tool must not call it the journal's end"
    assert name not in storage.files, "it only reads"
    segments = opened(storage)
    segments.remove_unfinished()
    assert list(storage.files) == [segment_name(0), name]
    assert [entry.header.lsn for entry in Scanner(segments, SEGMENT_BYTES)] == [SEGMENT_BYTES + SEGMENT_HEADER_BYTES]


def test_what_holds_records_is_not_deleted_for_its_name(caplog: pytest.LogCaptureFixture) -> None:
    storage = written({}, {}, {2 * SEGMENT_BYTES + SEGMENT_HEADER_BYTES: b"anything"})
    kept = segment_name(2 * SEGMENT_BYTES) + TMP_SUFFIX
    storage.files[kept] = storage.files.pop(segment_name(2 * SEGMENT_BYTES))
    del storage.files[segment_name(SEGMENT_BYTES)]
    segments = opened(storage)
    segments.remove_unfinished()
    assert list(storage.files) == [segment_name(0), kept]
    assert f"segment without its name is not part of the journal, left path=memory/{kept}" in caplog.text


def test_opening_makes_durable_what_a_killed_process_named() -> None:
    storage = written({})
    before = len(storage.calls)
    opened(storage)
    assert storage.calls[before] == ("sync_all", ""), "before anything is read"
    before = len(storage.calls)
    Segments.open(storage, IDENTITY, SEGMENT_BYTES, writable=False)
    assert {call for call, _ in storage.calls[before:]} <= {"names", "open", "read"}


def test_what_lost_its_name_and_cannot_be_read_is_no_end_of_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless it has its name again: a live broker gave it that meanwhile."""
    storage = written({})
    lost = segment_name(SEGMENT_BYTES) + TMP_SUFFIX
    real_open = FaultyStorage.open

    def fails(self: FaultyStorage, name: str, *, writable: bool) -> MemoryFile:
        if name == lost:
            names.discard(lost)
            raise StorageFailed(f"{name}: Input/output error")
        return real_open(self, name, writable=writable)

    names = {segment_name(0), lost}
    monkeypatch.setattr(FaultyStorage, "open", fails)
    monkeypatch.setattr(FaultyStorage, "names", lambda self: sorted(names))
    assert len(Segments.open(storage, None, SEGMENT_BYTES, writable=False)) == 1
    names = {segment_name(0), lost}
    monkeypatch.setattr(FaultyStorage, "names", lambda self: [segment_name(0), lost])
    with pytest.raises(StorageFailed, match="Input/output error"):
        Segments.open(storage, None, SEGMENT_BYTES, writable=False)


def test_the_cache_is_dropped_from_an_lsn_on() -> None:
    storage = written({}, {})
    with closing(opened(storage)) as segments:
        storage.calls.clear()
        segments.drop_cache(SEGMENT_BYTES)
        assert storage.calls == [("sync", segment_name(SEGMENT_BYTES))]


def test_a_segment_that_is_replaced_while_it_is_archived_stays() -> None:
    storage = written({}, {})

    class Archive:
        @contextmanager
        def kept(self, storage: Storage, name: str, file: StorageFile) -> Iterator[None]:
            bases, files, _ = segments._chain
            segments._chain = type(segments._chain).of(bases, (MemoryFile(written(), name, b""), *files[1:]))
            yield

    with closing(opened(storage)) as segments:
        with pytest.raises(StorageFailed, match="replaced while it was archived"):
            segments.drop_before(SEGMENT_BYTES, Archive())
        assert segment_name(0) in storage.files
