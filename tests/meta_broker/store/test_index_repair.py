"""An index found damaged while the broker serves: what is held back until it is rebuilt, and what it is then."""

import asyncio
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from meta_broker.store import index_layout
from meta_broker.store.index_file import IndexDamaged
from meta_broker.store.index_layout import CHUNK_BYTES, CHUNK_ENTRIES, ENTRY_BYTES
from tests.fixtures.loops import until
from tests.fixtures.warm import warm
from tests.meta_broker.store.test_retention import BY_BYTES, MESSAGE, ORDERS, STOCK, judged, message, stage

SMALL = 4  # entries a chunk


@pytest.fixture(autouse=True)
def small_chunks() -> Iterator[None]:
    index_layout.CHUNK_BYTES, index_layout.CHUNK_ENTRIES = (SMALL + 1) * ENTRY_BYTES, SMALL
    yield
    index_layout.CHUNK_BYTES, index_layout.CHUNK_ENTRIES = CHUNK_BYTES, CHUNK_ENTRIES


def flip(path: Path, entry: int) -> None:
    """Damage the LSN of an entry in the index of orders-0."""
    file = path / "index" / "orders-0.index"
    content = bytearray(file.read_bytes())
    content[(entry + entry // SMALL) * ENTRY_BYTES + 9] ^= 0x10
    file.write_bytes(content)


def corrupt_the_first_segment(path: Path) -> None:
    segment = min(path.glob("*.journal"))
    content = bytearray(segment.read_bytes())
    content[1000] ^= 1
    segment.write_bytes(content)


def test_after_retention_it_is_rebuilt_from_what_is_left_and_nothing_is_dropped_meanwhile(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, BY_BYTES) as on:
            for number in range(70):
                on.put(ORDERS if number % 2 else STOCK, number)
            await on.ticks()
            start = on.store.indexes.by_name[ORDERS].start
            assert start > 0
            on.store.last_checkpoint()
        flip(tmp_path, start // MESSAGE + 1)
        expected = [message(number) for number in range(1, 70, 2)][start // MESSAGE :]
        async with stage(tmp_path, BY_BYTES) as on:
            assert not on.store.indexes.damaged  # a start does not look there
            with pytest.raises(IndexDamaged):
                on.read_all(ORDERS)
            assert list(on.store.indexes.damaged) == [ORDERS]
            before = on.segments
            for number in range(70, 110):
                on.put(STOCK, number)  # retention has something to do again
            await on.ticks()  # each a checkpoint at most, and gives up the repair
            assert on.segments > before
            assert on.store.indexes.collect().is_complete is False
            assert ORDERS not in on.store.indexes.collect().marks
        async with stage(tmp_path, BY_BYTES) as on:
            with pytest.raises(IndexDamaged):
                on.read_all(ORDERS)
            on.put(ORDERS, 110)
            await on.mended()
            assert on.read_all(ORDERS) == b"".join([*expected, message(110)])
            await on.ticks(4)
            assert on.read_all(ORDERS) == message(110)  # retention goes on
        assert list(judged(tmp_path)) == []
        async with stage(tmp_path, BY_BYTES) as on:
            assert not on.store.indexes.damaged
            assert on.read_all(ORDERS) == message(110)

    asyncio.run(story())


def test_a_crash_before_the_next_checkpoint_changes_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, BY_BYTES) as on:
            for number in range(12):
                on.put(ORDERS, number)
            on.store.last_checkpoint()
        flip(tmp_path, 1)
        for number in range(12, 15):
            async with stage(tmp_path, BY_BYTES) as on:  # ends without a checkpoint
                with pytest.raises(IndexDamaged):
                    warm(lambda: on.store.indexes.by_name[ORDERS].nearest(0))
                on.put(ORDERS, number)
                await on.mended()
                assert on.read_all(ORDERS) == b"".join(map(message, range(number + 1)))
        async with stage(tmp_path, BY_BYTES) as on:
            with pytest.raises(IndexDamaged):
                on.read_all(ORDERS)
            on.store.last_checkpoint()  # before it was mended: names no file
        async with stage(tmp_path, BY_BYTES) as on:
            assert list(on.store.indexes.damaged) == [ORDERS]
            await on.mended()
            assert on.read_all(ORDERS) == b"".join(map(message, range(15)))
            on.store.last_checkpoint()
        async with stage(tmp_path, BY_BYTES) as on:
            assert not on.store.indexes.damaged
            assert on.read_all(ORDERS) == b"".join(map(message, range(15)))

    asyncio.run(story())


@pytest.mark.parametrize("remove", [shutil.rmtree, Path.unlink])
def test_files_deleted_beneath_a_running_broker_are_told_of_and_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, remove: Callable[[Path], None]
) -> None:
    """The directory, with the files of partitions that change and that do not; or one file of it."""
    directory = tmp_path / "index"
    gone = directory if remove is shutil.rmtree else directory / "orders-0.index"

    async def story() -> None:
        async with stage(tmp_path, BY_BYTES) as on:
            for number in range(3):
                on.put(STOCK, number)
                on.put(ORDERS, number)
            await on.checkpoint()
            remove(gone)
            for number in range(3, 9):
                on.put(ORDERS, number)
            await on.checkpoint()
            assert on.read_all(ORDERS) == b"".join(map(message, range(9)))  # not refused meanwhile
            assert on.read_all(STOCK) == b"".join(map(message, range(3)))
            await on.mended()
            on.put(ORDERS, 9)
            await on.checkpoint()
            assert {file.name for file in directory.iterdir()} == {"orders-0.index", "stock-1.index"}
            assert on.store.indexes.collect().is_complete
        async with stage(tmp_path, BY_BYTES) as on:
            assert on.read_all(ORDERS) == b"".join(map(message, range(10)))
            assert on.read_all(STOCK) == b"".join(map(message, range(3)))
            assert not on.store.indexes.damaged
            for number in range(10, 80):
                on.put(ORDERS, number)
            await on.ticks()
            assert on.store.indexes.by_name[ORDERS].start > 0  # retention goes on
        assert list(judged(tmp_path)) == []

    asyncio.run(story())
    if gone is directory:
        (told,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert told == (
            "index directory was deleted: it is made again, and rebuilt from the journal; leave a running broker's "
            f"files alone directory={directory} partitions=2"
        )


def test_with_a_corrupt_journal_too_the_index_stays_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with stage(tmp_path, BY_BYTES) as on:
            for number in range(30):
                on.put(ORDERS, number)
            on.store.last_checkpoint()
        flip(tmp_path, 1)
        corrupt_the_first_segment(tmp_path)
        async with stage(tmp_path, BY_BYTES) as on:
            for _ in range(2):
                with pytest.raises(IndexDamaged):
                    warm(lambda: on.store.indexes.by_name[ORDERS].nearest(0))
                with ThreadPoolExecutor(1) as worker:
                    on.store.checkpoints.maybe_begin(worker)
                    await until(lambda: "index not rebuilt" in caplog.text)
                    await asyncio.sleep(0.2)
            assert list(on.store.indexes.damaged) == [ORDERS]
        assert caplog.text.count("index not rebuilt: run `metaq journal check`") == 1

    asyncio.run(story())
