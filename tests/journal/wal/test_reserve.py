"""The reserve of a journal on a file system that is full: a roll takes it, in a start too."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from journal.errors import StorageFailed
from journal.state.transaction_store import JournalTransactionStore
from journal.wal.reserve import NAME
from journal.wal.segments import Segments
from journal.wal.storage import DirectoryStorage
from tests.fixtures.journals import IDENTITY, ORDERS, open_store
from tests.fixtures.small_disk import fill_up, small_disk

SEGMENT_BYTES = 64 * 4096


@contextmanager
def opened(directory: Path) -> Iterator[JournalTransactionStore]:
    storage = DirectoryStorage.open_for_writing(directory)
    try:
        store = open_store(storage, segment_bytes=SEGMENT_BYTES)
        yield store
        store.close()
    finally:
        storage.close()


def fill(store: JournalTransactionStore) -> None:
    """Leave no room for one more record in the only segment."""
    left = store.journal.segments.end - store.journal.end - 64 - 32
    store.put(ORDERS, [bytes(left)], left, 1)
    store.journal.wait_flushed(store.journal.end)
    assert store.journal.segments.end - store.journal.end < 96


def test_a_start_without_room_for_its_first_record_rolls_into_the_reserve(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk, "2m"):
        with opened(disk) as store:
            fill(store)
            store.journal.segments.reserve.make()
        fill_up(disk)
        assert (disk / NAME).exists()
        with opened(disk) as store:
            assert len(store.journal.segments) == 2
            assert not (disk / NAME).exists()
            store.put(ORDERS, [b"more"], 4, 1)
            store.journal.wait_flushed(store.journal.end)


def test_without_a_reserve_it_says_that_the_disk_is_full(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk, "2m"):
        with opened(disk) as store:
            fill(store)
        fill_up(disk)
        with pytest.raises(StorageFailed, match="No space left on device") as failed, opened(disk):
            pass
        assert failed.value.errno == errno.ENOSPC


def test_what_could_not_be_made_leaves_nothing_and_one_of_another_size_is_replaced(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with small_disk(disk, "1m"):
        storage = DirectoryStorage.open_for_writing(disk)
        large = Segments(storage, IDENTITY, 1 << 20).reserve
        with pytest.raises(StorageFailed):
            large.make()
        assert not large.is_held
        assert NAME not in storage.names()
        small = Segments(storage, IDENTITY, 1 << 16).reserve
        assert not small.find()
        small.make()
        assert small.is_held
        assert Segments(storage, IDENTITY, 1 << 16).reserve.find()
        assert not Segments(storage, IDENTITY, 1 << 17).reserve.find()
        assert small.give_up()
        assert not small.give_up()
        storage.close()
