"""The one file that calls the operating system, on a real directory."""

import contextlib
import errno
import fcntl
import os
import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from journal.errors import DirectoryInUse, ForeignJournal, StorageFailed
from journal.records.record import PartitionName
from journal.state.transaction_store import JournalTransactionStore
from journal.wal.open_journal import JournalConfig
from journal.wal.segments import JournalIdentity, Segments, segment_name
from journal.wal.storage import LOCK_PAUSE_S, DirectoryStorage
from journal.wal.storage_file import IOV_MAX
from tests.fixtures.journals import IDENTITY, ORDERS, SEGMENT_BYTES, STOCK, Index, open_store, xa

TRY_TO_OPEN = """
import sys
from pathlib import Path
from journal.errors import DirectoryInUse
from journal.wal.storage import DirectoryStorage
try:
    DirectoryStorage.open_for_writing(Path(sys.argv[1]))
except DirectoryInUse as error:
    sys.exit(str(error))
"""


def test_a_directory_is_held_by_one_process(tmp_path: Path) -> None:
    storage = DirectoryStorage.open_for_writing(tmp_path / "data")
    try:
        command = [sys.executable, "-c", TRY_TO_OPEN, str(tmp_path / "data")]
        other = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[3])
        assert other.returncode == 1
        assert f"{tmp_path}/data is in use by another process: stop that broker first" in other.stderr
        with pytest.raises(DirectoryInUse):
            DirectoryStorage.open_for_writing(tmp_path / "data")
    finally:
        storage.close()
    DirectoryStorage.open_for_writing(tmp_path / "data").close()


def test_closing_twice_frees_the_lock_once(tmp_path: Path) -> None:
    storage = DirectoryStorage.open_for_writing(tmp_path)
    storage.close()
    storage.close()
    directory = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(directory)


def test_nothing_in_the_directory_is_the_lock(tmp_path: Path) -> None:
    """Deleting files of a running broker must not let a second one in."""
    storage = DirectoryStorage.open_for_writing(tmp_path)
    for path in tmp_path.iterdir():
        path.unlink()
    (tmp_path / "lock").touch()  # an older metaq's
    (tmp_path / "lock").unlink()
    with pytest.raises(DirectoryInUse):
        DirectoryStorage.open_for_writing(tmp_path)
    assert DirectoryStorage.open_for_reading(tmp_path).is_held()
    storage.close()
    assert not DirectoryStorage.open_for_reading(tmp_path).is_held()


def test_whether_it_is_held_is_no_guess(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = DirectoryStorage.open_for_reading(tmp_path)

    def fails(number: int) -> None:
        def flock(fd: int, operation: int) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(fcntl, "flock", flock)

    fails(errno.EOPNOTSUPP)
    assert not storage.is_held(), "nobody can hold it where there are no locks"
    fails(errno.ENOLCK)
    with pytest.raises(StorageFailed, match="No locks available"):
        storage.is_held()


def test_a_holder_in_another_container_is_one(tmp_path: Path) -> None:
    """Its lock is not in this namespace's /proc/locks."""
    looks = f"from pathlib import Path; from {DirectoryStorage.__module__} import DirectoryStorage as Storage; "
    looks += f"print(Storage.open_for_reading(Path({str(tmp_path)!r})).is_held())"
    elsewhere = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc", sys.executable, "-c", looks]
    storage = DirectoryStorage.open_for_writing(tmp_path)
    found = subprocess.run(elsewhere, capture_output=True, text=True, check=False)
    storage.close()
    if "unshare" in found.stderr:
        pytest.skip(f"no other PID namespace: {found.stderr.strip()}")
    assert found.stdout == "True\n"


def test_a_look_keeps_nobody_out(tmp_path: Path) -> None:
    looking = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH | fcntl.LOCK_NB)
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(DirectoryStorage.open_for_writing, tmp_path)
        wait([opening], LOCK_PAUSE_S / 2)
        os.close(looking)
        opening.result().close()


def test_a_directory_that_is_moved_away_stays_its_holders(tmp_path: Path) -> None:
    storage = DirectoryStorage.open_for_writing(tmp_path / "data")
    storage.replace("checkpoint.1", b"before")
    (tmp_path / "data").rename(tmp_path / "moved")
    other = DirectoryStorage.open_for_writing(tmp_path / "data")
    storage.create("a", SEGMENT_BYTES, b"head").close()
    storage.replace("checkpoint.1", b"after")
    assert storage.names() == ["a", "checkpoint.1"]
    assert other.names() == [], "written into a directory that another one holds"
    assert (tmp_path / "moved" / "checkpoint.1").read_bytes() == b"after"
    storage.remove("a")
    assert storage.names() == ["checkpoint.1"]
    storage.close()
    other.close()


def test_reading_needs_a_directory_and_changes_nothing(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed, match="not a directory: name the data directory of a broker"):
        DirectoryStorage.open_for_reading(tmp_path / "missing")
    storage = DirectoryStorage.open_for_reading(tmp_path)
    assert storage.names() == []
    storage.close()
    assert list(tmp_path.iterdir()) == []


def test_a_write_that_is_taken_in_part_is_finished_or_fails(tmp_path: Path) -> None:
    """A limit on file sizes takes the part of a write that is below it, as a full disk does, and refuses the rest."""
    storage = DirectoryStorage.open_for_writing(tmp_path)
    file = storage.create("a", SEGMENT_BYTES, b"head")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SEGMENT_BYTES, hard))
    try:
        with pytest.raises(StorageFailed, match="File too large"):
            file.write(SEGMENT_BYTES - 5, [b"123", b"456"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "a").read_bytes()[-5:] == b"12345"
    file.write(SEGMENT_BYTES - 5, [b"123", b"45"])
    file.close()
    storage.close()


def test_a_link_is_made_once_and_hides_no_other_file(tmp_path: Path) -> None:
    storage = DirectoryStorage.open_for_writing(tmp_path)
    storage.replace("a", b"1")
    storage.replace("b", b"2")
    for _ in range(2):
        storage.link("a", "kept-a")
    with pytest.raises(StorageFailed, match="kept-a: it is another file already"):
        storage.link("b", "kept-a")
    assert (tmp_path / "kept-a").read_bytes() == b"1"
    storage.close()


def test_a_file_is_created_whole_and_full_of_zeros(tmp_path: Path) -> None:
    storage = DirectoryStorage.open_for_writing(tmp_path)
    file = storage.create("a", SEGMENT_BYTES, b"head")
    assert file.size == SEGMENT_BYTES
    assert file.reader().read(0, file.size) == b"head".ljust(SEGMENT_BYTES, b"\0")
    assert (tmp_path / "a").stat().st_blocks * 512 >= SEGMENT_BYTES  # a write must never find the disk full
    assert storage.names() == ["a"]
    file.close()
    file.close()
    storage.close()


def test_many_buffers_are_one_write_and_a_reader_sees_later_ones_and_outlives_the_file(tmp_path: Path) -> None:
    storage = DirectoryStorage.open_for_writing(tmp_path)
    file = storage.create("a", SEGMENT_BYTES, b"")
    reader = file.reader()
    file.write(100, [b"x", memoryview(b"y"), bytearray(b"")] * IOV_MAX)
    assert reader.read(98, 8) == b"\0\0xyxyxy"
    assert reader.read_cached(98, 8) == b"\0\0xyxyxy"
    assert reader.read(100 + 2 * IOV_MAX - 2, 4) == b"xy\0\0"
    file.sync()
    file.close()
    storage.remove("a")
    assert reader.read(100, 2) == b"xy"
    with pytest.raises(ValueError, match="is closed"):
        file.reader()
    storage.close()


def test_next_data_finds_what_follows_a_hole(tmp_path: Path) -> None:
    storage = DirectoryStorage.open_for_writing(tmp_path)
    file = storage.create("a", 1 << 20, b"head")
    file.write(500_000, [b"x"])
    file.sync()
    assert 4096 <= file.next_data(4096) <= 500_000
    assert file.next_data(500_000) == 500_000
    assert file.next_data(1 << 20) == 1 << 20
    file.close()
    with pytest.raises(StorageFailed, match="Bad file descriptor"):  # an error is not "nothing but zeros"
        file.next_data(0)
    storage.close()


def test_replace_and_remove(tmp_path: Path) -> None:
    storage = DirectoryStorage.open_for_writing(tmp_path)
    storage.replace("checkpoint.1", b"one")
    storage.replace("checkpoint.1", b"two")
    assert storage.read("checkpoint.1") == b"two"
    storage.remove("checkpoint.1")
    assert storage.names() == []
    with pytest.raises(StorageFailed, match=r"checkpoint\.1: No such file"):
        storage.read("checkpoint.1")
    storage.close()


def test_a_directory_that_was_moved_away_archives_its_own_files(tmp_path: Path) -> None:
    """The old path now belongs to another broker, which may have a segment of that name."""
    storage = DirectoryStorage.open_for_writing(tmp_path / "data")
    storage.replace("a", b"ours")
    (tmp_path / "data").rename(tmp_path / "moved")
    other = DirectoryStorage.open_for_writing(tmp_path / "data")
    other.replace("a", b"theirs")
    storage.copy_to("a", str(tmp_path / "archive"))
    assert (tmp_path / "archive" / "a").read_bytes() == b"ours"
    assert (storage.names(), other.names(), other.read("a")) == (["a"], ["a"], b"theirs")
    storage.close()
    other.close()


def test_a_full_or_missing_disk_is_storage_failed(tmp_path: Path) -> None:
    storage = DirectoryStorage.open_for_writing(tmp_path / "data")
    (tmp_path / "data").rmdir()
    with pytest.raises(StorageFailed, match="No such file or directory"):
        storage.create("a", SEGMENT_BYTES, b"")
    storage.close()


def test_a_store_on_a_real_directory_comes_back(tmp_path: Path) -> None:
    for writer_epoch in range(1, 4):
        storage = DirectoryStorage.open_for_writing(tmp_path)
        index = Index()
        store = open_store(storage, sink=index)
        assert store.journal.incarnation == writer_epoch
        assert [str(live.key) for live in store.recover()] == [str(xa(f"order-{n}")) for n in range(1, writer_epoch)]
        index.publish_all(store.put(ORDERS, [b"life ", b"%d;" % writer_epoch], 7, 1).updates)
        branch = store.begin(xa(f"order-{writer_epoch}"))
        store.transactional_put(branch, STOCK, [b"x" * 1000], 1000, 1)
        store.prepare(branch)
        store.transactional_put(store.begin(xa("left behind")), STOCK, [b"y" * 1000], 1000, 1)
        store.journal.wait_flushed(store.journal.end)
        assert index.read(store.journal.segments) == {
            ORDERS: b"".join(b"life %d;" % n for n in range(1, writer_epoch + 1))
        }
        store.close()
        storage.close()


def test_another_brokers_directory_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    storage = DirectoryStorage.open_for_writing(tmp_path)
    open_store(storage).close()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ForeignJournal, match="belongs to broker 7 of cluster 'test', not to broker 8"):
        open_as(storage, JournalIdentity("test", 8))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    storage.close()


def open_as(storage: DirectoryStorage, identity: JournalIdentity) -> JournalTransactionStore:
    return JournalTransactionStore.open(storage, identity, JournalConfig(segment_bytes=SEGMENT_BYTES), version="test")


def test_a_reader_sees_what_a_live_writer_appends(tmp_path: Path) -> None:
    storage = DirectoryStorage.open_for_writing(tmp_path)
    store = open_store(storage)
    reader = Segments.open(DirectoryStorage.open_for_reading(tmp_path), None, SEGMENT_BYTES, writable=False)
    result = store.put(PartitionName("orders", 0), [b"hello"], 5, 1)
    store.journal.wait_flushed(result.lsn)
    extent = result.updates[0].extent
    assert reader.read(extent.lsn, extent.bytes) == b"hello"
    assert reader.identity == IDENTITY
    reader.close()
    store.close()
    storage.close()


def test_a_segment_whose_file_somebody_has_deleted_is_dropped_all_the_same(tmp_path: Path) -> None:
    """Or that an attempt deleted whose fsync of the directory failed: each later one failed, too."""
    with (
        contextlib.closing(DirectoryStorage.open_for_writing(tmp_path)) as storage,
        contextlib.closing(Segments.open(storage, IDENTITY, SEGMENT_BYTES, writable=True)) as segments,
    ):
        for _ in range(3):
            segments.roll()
        (tmp_path / segment_name(0)).unlink()
        assert segments.drop_before(2 * SEGMENT_BYTES) == 2
        assert [base for base, _ in segments] == [2 * SEGMENT_BYTES]
