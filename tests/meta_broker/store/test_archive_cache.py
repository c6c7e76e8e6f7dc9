"""The cache stays within its bytes, downloads each file once, and never gives what the manifest does not list."""

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from journal.archive.download import ObjectDamaged, ObjectMissing
from journal.archive.places import DirectoryPlace
from journal.errors import StorageFailed
from journal.wal.open_file import OpenFile
from meta_broker.store import archive_cache
from meta_broker.store.archive_cache import ArchiveCache, ArchiveCold, ArchiveThreads
from meta_broker.store.archived_index import open_file

SIZE = 10_000


class Listed(NamedTuple):
    name: str
    size: int
    sha256: str


class SlowPlace(DirectoryPlace):
    """Downloads once it may, and counts."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.may = threading.Event()
        self.may.set()
        self.names_read: list[str] = []

    def download(self, name: str, write: Callable[[bytes], object]) -> bool:
        self.names_read.append(name)
        assert self.may.wait(60)
        return super().download(name, write)


class Stage:
    def __init__(self, path: Path, free_bytes_min: int) -> None:
        self.place = SlowPlace(path / "archive")
        self.threads = ArchiveThreads(lambda: self.place)
        self.directory = path / "cache"
        self.cache = ArchiveCache(self.directory, 3 * SIZE, free_bytes_min, self.threads)
        self._archive = path / "archive"

    def stored(self, name: str) -> Listed:
        self._archive.mkdir(exist_ok=True)
        data = name.encode().ljust(SIZE, b".")
        (self._archive / name).write_bytes(data)
        return Listed(name, SIZE, hashlib.sha256(data).hexdigest())

    async def read(self, wanted: Listed) -> bytes:
        return (await self.file(wanted)).read(0, SIZE).rstrip(b".")

    async def file(self, wanted: Listed) -> OpenFile:
        while True:
            try:
                return self.cache.get(wanted, open_file)
            except ArchiveCold as cold:
                await cold.loading


@asynccontextmanager
async def stage(path: Path, free_bytes_min: int = 0) -> AsyncIterator[Stage]:
    on = Stage(path, free_bytes_min)
    try:
        yield on
    finally:
        on.place.may.set()
        on.threads.close()


def test_many_that_wait_for_a_file_download_it_once(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path) as on:
            wanted = on.stored("a")
            on.place.may.clear()
            readers = [asyncio.ensure_future(on.read(wanted)) for _ in range(20)]
            await asyncio.sleep(0.01)
            on.place.may.set()
            assert await asyncio.gather(*readers) == [b"a"] * 20
            assert on.place.names_read == ["a"]

    asyncio.run(story())


def test_the_longest_unused_goes_and_stays_readable_to_those_who_read_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path) as on:
            files = [on.stored(name) for name in "abcd"]
            first = await on.file(files[0])
            for wanted in (*files[1:3], files[0], files[3]):
                await on.read(wanted)
                assert sum(path.stat().st_size for path in on.directory.iterdir()) <= 3 * SIZE
            assert {path.name for path in on.directory.iterdir()} == {"a", "c", "d"}
            await on.read(files[1])
            await on.read(files[2])
            assert not (on.directory / "a").exists()
            assert first.read(0, 1) == b"a"

    asyncio.run(story())


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        (b"a".ljust(SIZE, b","), ObjectDamaged, "is damaged"),
        (b"a".ljust(SIZE - 1, b"."), ObjectDamaged, f"{SIZE - 1} bytes"),
        (b"a".ljust(SIZE + 1, b"."), ObjectDamaged, "is longer than the"),
        (None, ObjectMissing, "is missing"),
    ],
)
def test_another_content_is_refused_by_name_and_asked_for_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes | None, error: type[StorageFailed], text: str
) -> None:
    async def story() -> None:
        async with stage(tmp_path) as on:
            wanted = on.stored("a")
            path = tmp_path / "archive" / "a"
            path.unlink()
            if data is not None:
                path.write_bytes(data)
            for _ in range(2):
                with pytest.raises(error, match=text):
                    await on.read(wanted)
            assert on.place.names_read == ["a"], "not at once again"
            assert list(on.directory.iterdir()) == []
            on.stored("a")
            monkeypatch.setattr(archive_cache, "FAILURE_S", 0.0)
            on.cache._failed.clear()
            assert await on.read(wanted) == b"a"

    asyncio.run(story())


def test_it_leaves_free_what_the_journal_needs_and_says_what_does_not_fit(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, free_bytes_min=1 << 60) as on:
            with pytest.raises(StorageFailed, match=r"are free: broker\.disk_free_bytes_min must stay"):
                await on.read(on.stored("a"))
            assert list(on.directory.iterdir()) == []
            with pytest.raises(StorageFailed, match=r"raise retention\.archive_cache_bytes"):
                await on.read(Listed("b", 3 * SIZE + 1, ""))

    asyncio.run(story())


def test_downloads_under_way_are_bounded_by_the_cache_and_nobody_waits_for_room(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path) as on:
            files = [on.stored(name) for name in "abcd"]
            on.place.may.clear()
            readers = [asyncio.ensure_future(on.read(wanted)) for wanted in files[:3]]
            await asyncio.sleep(0)
            with pytest.raises(StorageFailed, match="ask again later"):
                await on.read(files[3])
            on.place.may.set()
            assert await asyncio.gather(*readers) == [b"a", b"b", b"c"]
            assert await on.read(files[3]) == b"d"

    asyncio.run(story())


def test_more_downloads_than_may_wait_are_refused_for_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_cache, "WAITING_MAX", 1)

    async def story() -> None:
        async with stage(tmp_path) as on:
            on.place.may.clear()
            reading = asyncio.ensure_future(on.read(on.stored("a")))
            await asyncio.sleep(0)
            with pytest.raises(StorageFailed, match="1 downloads from the archive wait already: ask again later"):
                await on.read(on.stored("b"))
            on.place.may.set()
            assert await reading == b"a"

    asyncio.run(story())


def test_what_does_not_read_back_is_downloaded_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path) as on:
            wanted = on.stored("a")
            on.cache.discard("a")  # not here
            for _ in range(2):
                assert await on.read(wanted) == b"a"
                on.cache.discard("a")
                assert list(on.directory.iterdir()) == []
            assert on.place.names_read == ["a", "a"]

    asyncio.run(story())


def test_a_job_that_nobody_waits_for_any_more_is_not_begun(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path) as on:
            done: list[str] = []
            gate = threading.Event()
            running = [on.threads.run(lambda place: gate.wait(60)) for _ in range(archive_cache.THREADS)]
            given_up = on.threads.run(lambda place: done.append("no"))
            wanted = on.threads.run(lambda place: done.append("yes"))
            given_up.cancel()
            await asyncio.sleep(0)  # which tells the thread's side
            gate.set()
            await asyncio.gather(*running, wanted)
            assert done == ["yes"]

    asyncio.run(story())


def test_it_begins_empty(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "a.tmp").write_bytes(b"half")
    (tmp_path / "cache" / "b").write_bytes(b"perhaps not on the disk")

    async def story() -> None:
        async with stage(tmp_path) as on:
            assert list(on.directory.iterdir()) == []

    asyncio.run(story())
