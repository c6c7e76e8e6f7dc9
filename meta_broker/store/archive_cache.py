"""Files of an archive, downloaded to a directory of bounded size: each once, however many wait for it.

Nothing in it is needed: it begins empty with each start. A file is whole and has the SHA-256 that the manifest lists
before anybody reads it, and stays readable to those who do when it is evicted.
"""

import asyncio
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, TypeVar, cast

from journal.archive.download import ArchivedFile, ObjectDamaged, download
from journal.archive.keeper import ArchiveReader
from journal.errors import InvalidContent, StorageFailed
from journal.wal.storage import TMP_SUFFIX
from journal.wal.storage_file import translated

log = logging.getLogger(__name__)

THREADS: Final = 2
WAITING_MAX: Final = 64  # downloads; more are refused for now
HELD_MAX: Final = 128  # files, each a descriptor; of an archived index the table is in memory, too
FAILURE_S: Final = 5.0  # for how long a failed download is not tried again

T = TypeVar("T")


class ArchiveCold(Exception):
    """Something of the archive is not here yet: wait for *loading*, a time that the caller bounds, then ask again."""

    def __init__(self, loading: "asyncio.Future[Any]") -> None:
        super().__init__()
        self.loading = loading


def retrieved(loading: "asyncio.Future[T]") -> "asyncio.Future[T]":
    """Return *loading*, of which a failure need not be seen: the next request for the same gets it again."""
    loading.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return loading


class ArchiveThreads:
    """Threads that wait for the archive: daemons, for a store that hangs must not hold up the broker's end.

    Each has a place of its own, since drivers of object stores are not made for several threads. Loop thread only.
    """

    def __init__(self, place: Callable[[], ArchiveReader]) -> None:
        self._place = place
        self._jobs: SimpleQueue[tuple[Callable[[ArchiveReader], Any], Future[Any]] | None] = SimpleQueue()
        self._is_started = False

    def run(self, job: Callable[[ArchiveReader], T]) -> "asyncio.Future[T]":
        """Run *job*; the future may fail with what it raises."""
        if not self._is_started:
            self._is_started = True
            for _ in range(THREADS):
                threading.Thread(target=self._work, name="archive-reads", daemon=True).start()
        ended = Future[T]()
        self._jobs.put((job, ended))
        return asyncio.wrap_future(ended)

    def close(self) -> None:
        """End the threads, each after its job. Returns at once."""
        if self._is_started:
            for _ in range(THREADS):
                self._jobs.put(None)

    def _work(self) -> None:
        place = self._place()
        while (found := self._jobs.get()) is not None:
            job, ended = found
            if not ended.set_running_or_notify_cancel():
                continue
            try:
                ended.set_result(job(place))
            except BaseException as error:
                ended.set_exception(error)


class ArchiveCache:
    """Cache of one broker. Loop thread only, except for the jobs of its threads."""

    def __init__(self, directory: Path, bytes_max: int, free_bytes_min: int, threads: ArchiveThreads) -> None:
        """*free_bytes_min*: what a download must leave free on the disk. Raises StorageFailed."""
        self._directory = directory
        self.bytes_max = bytes_max
        self._free_bytes_min = free_bytes_min
        self._threads = threads
        self._held: OrderedDict[str, tuple[Any, int]] = OrderedDict()  # open, with the size; the longest unused first
        self._loading: dict[str, tuple[asyncio.Future[None], int]] = {}  # with the size
        self._failed: dict[str, tuple[float, StorageFailed]] = {}  # until when
        self.hits = self.downloads = self.failures = self.bytes_downloaded = 0
        with translated(directory):
            directory.mkdir(mode=0o700, exist_ok=True)
            for path in directory.iterdir():
                path.unlink()

    @property
    def bytes_held(self) -> int:
        """Bytes on the disk, of downloads under way too."""
        return sum(size for _, size in [*self._held.values(), *self._loading.values()])

    def get(self, wanted: ArchivedFile, opened: Callable[[Path], T]) -> T:
        """Return what *opened* made, in a thread, of a file that is here.

        Raises ArchiveCold: it is being downloaded; StorageFailed: it can't be now.
        """
        if (held := self._held.get(wanted.name)) is not None:
            self._held.move_to_end(wanted.name)
            self.hits += 1
            return cast("T", held[0])
        raise ArchiveCold(self._load(wanted, opened))

    def has(self, wanted: ArchivedFile) -> bool:
        return wanted.name in self._held

    def discard(self, name: str) -> None:
        """Drop a file that does not read back from here: the next `get` downloads it again."""
        if self._held.pop(name, None) is not None:
            (self._directory / name).unlink(missing_ok=True)

    def _load(self, wanted: ArchivedFile, opened: Callable[[Path], Any]) -> "asyncio.Future[None]":
        name, size = wanted.name, wanted.size
        if (found := self._loading.get(name)) is not None:
            return found[0]
        until, failure = self._failed.get(name, (0.0, StorageFailed()))
        if time.monotonic() < until:
            raise failure
        if size > self.bytes_max:
            raise StorageFailed(f"{name} has {size} bytes: raise retention.archive_cache_bytes, {self.bytes_max}")
        if len(self._loading) >= WAITING_MAX:
            raise StorageFailed(f"{len(self._loading)} downloads from the archive wait already: ask again later")
        evicted: list[Path] = []
        while self.bytes_held + size > self.bytes_max or len(self._held) >= HELD_MAX:
            if not self._held:
                raise StorageFailed("downloads under way fill retention.archive_cache_bytes: ask again later")
            evicted.append(self._directory / self._held.popitem(last=False)[0])
        loading = retrieved(asyncio.ensure_future(self._download(wanted, opened, evicted)))
        self._loading[name] = loading, size
        return loading

    async def _download(self, wanted: ArchivedFile, opened: Callable[[Path], Any], evicted: list[Path]) -> None:
        name = wanted.name
        try:
            file = await self._threads.run(lambda place: self._fetch(place, wanted, opened, evicted))
            self._held[name] = file, wanted.size
            self.downloads += 1
            self.bytes_downloaded += wanted.size
        except StorageFailed as error:
            log.error("not read from the archive file=%s error=%s", name, error)
            self.failures += 1
            now = time.monotonic()
            self._failed = {each: kept for each, kept in self._failed.items() if kept[0] > now}
            self._failed[name] = now + FAILURE_S, error
            raise
        finally:
            del self._loading[name]

    def _fetch(self, place: ArchiveReader, wanted: ArchivedFile, opened: Callable[[Path], T], evicted: list[Path]) -> T:
        """Download a file and open it. A thread's job. Raises StorageFailed."""
        path, where = self._directory / wanted.name, f"{place.name}/{wanted.name}"
        temporary = path.with_name(path.name + TMP_SUFFIX)
        try:
            for each in evicted:
                each.unlink(missing_ok=True)
            disk = os.statvfs(self._directory)
            if (free := disk.f_frsize * disk.f_bavail) - wanted.size < self._free_bytes_min:
                raise StorageFailed(
                    f"{where} has {wanted.size} bytes, and {free} are free: broker.disk_free_bytes_min must stay"
                )
            with temporary.open("wb") as writer:
                download(place, wanted, writer.write)
            temporary.rename(path)
            return opened(path)
        except InvalidContent as error:
            path.unlink(missing_ok=True)
            raise ObjectDamaged(f"{where}: {error}") from error
        except OSError as error:
            raise StorageFailed(f"{path}: {error.strerror}: {where} was not kept") from error
        finally:
            temporary.unlink(missing_ok=True)
