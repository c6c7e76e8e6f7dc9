"""The power goes while a checkpoint adds to index files: whatever of that is on the disk, every message reads back."""

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from journal.records.record import PartitionName
from meta_broker.config.sections import RetentionSection
from meta_broker.store import index_layout
from meta_broker.store.index_layout import CHUNK_BYTES, CHUNK_ENTRIES, ENTRY_BYTES, file_name
from meta_broker.store.index_writing import TEMPORARY_SUFFIX
from tests.fixtures.thoroughness import examples
from tests.meta_broker.store.test_retention import ORDERS, STOCK, message, stage

SMALL = 4  # entries a chunk
KEEP_ALL = RetentionSection()
NAMES = (ORDERS, STOCK)


@pytest.fixture(autouse=True)
def small_chunks() -> Iterator[None]:
    index_layout.CHUNK_BYTES, index_layout.CHUNK_ENTRIES = (SMALL + 1) * ENTRY_BYTES, SMALL
    yield
    index_layout.CHUNK_BYTES, index_layout.CHUNK_ENTRIES = CHUNK_BYTES, CHUNK_ENTRIES


def written(data: st.DataObject, path: Path, old: bytes | None, new: bytes) -> None:
    """Leave at *path* what a disk may hold of the step from *old* to *new*, of which nothing was fsynced."""
    if old is None:  # written under another name, fsynced, then renamed: there or not
        if data.draw(st.booleans(), "renamed"):
            path.write_bytes(new)
        else:
            path.with_name(path.name + TEMPORARY_SUFFIX).write_bytes(new[: data.draw(st.integers(0, len(new)))])
        return
    size = data.draw(st.integers(len(old), len(new)), "size")
    held = bytearray(new[:size])
    places = st.integers(len(old), size)
    for start, end in data.draw(st.lists(st.tuples(places, places), max_size=4), "lost"):
        held[start:end] = bytes(max(end - start, 0))
    path.write_bytes(held)


@settings(max_examples=examples(60))
@given(data=st.data())
def test_any_part_of_what_was_written_may_be_lost(data: st.DataObject) -> None:
    counts = st.integers(0, 3 * SMALL)
    first, second, third = (tuple(data.draw(st.tuples(counts, counts))) for _ in range(3))
    expected: dict[PartitionName, list[bytes]] = {name: [] for name in NAMES}
    numbers = iter(range(10_000))

    async def story(path: Path, before: Path, after: Path) -> None:
        async with stage(path, KEEP_ALL) as on:

            def put(each: tuple[int, ...]) -> None:
                for name, count in zip(NAMES, each, strict=True):
                    for number in (next(numbers) for _ in range(count)):
                        on.put(name, number)
                        expected[name].append(message(number))

            put(first)
            on.store.last_checkpoint()
            put(second)
            shutil.copytree(path, before)
            on.store.last_checkpoint()
            shutil.copytree(path / "index", after)
        for name in NAMES:
            old, new = (folder / file_name(name) for folder in (before / "index", after))
            if new.exists() and (not old.exists() or new.read_bytes() != old.read_bytes()):
                written(data, old, old.read_bytes() if old.exists() else None, new.read_bytes())
        for more in (third, (1, 1)):
            async with stage(before, KEEP_ALL) as on:
                assert not on.store.indexes.damaged  # nothing that the last checkpoint knows of is
                put(more)
                for name in NAMES:
                    if expected[name]:
                        assert on.read_all(name) == b"".join(expected[name])
                on.store.last_checkpoint()

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        asyncio.run(story(folder / "data", folder / "cut", folder / "index"))
