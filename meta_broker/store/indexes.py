"""All partition indexes of a data directory, and the repair of damaged ones."""

import asyncio
import functools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from journal.errors import JournalError
from journal.records.header import Lsn
from journal.records.index_updates import IndexUpdate
from journal.records.record import PartitionName
from journal.state.checkpoint import IndexFileEntry, PartitionEntry
from journal.state.history import published_in
from journal.wal.file_move import sync_directory
from journal.wal.open_journal import OpenJournal
from journal.wal.segments import Segments
from journal.wal.storage_file import translated
from meta_broker.fd_limits import check_available
from meta_broker.store.index_file import IndexCold, IndexDamaged, IndexFile
from meta_broker.store.index_layout import Spill, file_name
from meta_broker.store.partition_index import PartitionIndex

log = logging.getLogger(__name__)

# A file system commits together what several threads wait for.
FSYNCS_AT_ONCE = 8

T = TypeVar("T")


async def when_loaded(worker: Executor, ask: Callable[[], T]) -> T:
    """Return the result of *ask*, which reads an index; *worker* loads what is not in memory. Raises IndexDamaged."""
    while True:
        try:
            return ask()
        except IndexCold as cold:
            await asyncio.get_running_loop().run_in_executor(worker, cold.run)


class Indexes:
    """A journal's IndexSink. Loop thread only, except `write` and `install`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.by_name: dict[PartitionName, PartitionIndex] = {}
        self.damaged: dict[PartitionName, None] = {}  # not rebuilt yet
        self.is_given_up = False  # these can't be rebuilt from this journal

    def make_directory(self) -> None:
        """Create the directory of the files, durably. Raises StorageFailed."""
        with translated(self._directory):
            self._directory.mkdir(mode=0o700, exist_ok=True)
            sync_directory(self._directory.parent)

    def of(self, name: PartitionName) -> PartitionIndex:
        """Return the partition's index; created on first use."""
        if (index := self.by_name.get(name)) is None:
            noticed = functools.partial(self._noticed, name)
            index = self.by_name[name] = PartitionIndex(self._directory / file_name(name), noticed)
        return index

    def _noticed(self, name: PartitionName) -> None:
        log.warning("index damaged partition=%s: it is rebuilt from the journal", name)
        self.damaged[name] = None

    def restore(self, entries: list[PartitionEntry]) -> None:
        """Restore the indexes a checkpoint describes.

        A lost file is noticed here, and rebuilt once the broker serves; a damaged one on first use. Raises
        StorageFailed if there are too few file descriptors for all files.
        """
        check_available(self._directory, len(entries))
        for entry in entries:
            self.of(PartitionName(entry.topic, entry.partition)).restore(entry.start, entry.end, entry.index)

    def publish(self, update: IndexUpdate) -> None:
        self.of(update.name).publish(update)

    @property
    def unopened(self) -> int:
        """Number of files still to be opened."""
        return sum(index.is_unopened for index in self.by_name.values())

    def trim(self, name: PartitionName, start: int) -> None:
        self.of(name).trim(start)

    # -- checkpoints ------------------------------------------------------------------------------------------

    def collect(self) -> "Collected":
        """Return what a checkpoint must add to the files now, and its entries for files that are up to date."""
        spills, entries = dict[PartitionName, Spill](), dict[PartitionName, IndexFileEntry]()
        for name, index in self.by_name.items():
            if (spill := index.spill()) is not None:
                spills[name] = spill
            elif (entry := index.mark) is not None:
                entries[name] = entry
        return Collected(spills, entries, is_complete=not self.damaged)

    def write(self, collected: "Collected") -> dict[PartitionName, IndexFile]:
        """Append to the files, durably, and add their entries to *collected*. A worker's job. Raises StorageFailed."""
        if not self._directory.exists():
            self._make_again(collected)
        files: dict[PartitionName, IndexFile] = {}
        with ThreadPoolExecutor(FSYNCS_AT_ONCE, "index") as pool:
            written = pool.map(lambda each: self._written(*each), collected.spills.items())
            for name, file in zip(collected.spills, written, strict=True):
                if file is not None:
                    files[name], collected.marks[name] = file, file.mark
        if any(spill.first == 0 or spill.start for spill in collected.spills.values()):
            with translated(self._directory):
                sync_directory(self._directory)
        return files

    def _make_again(self, collected: "Collected") -> None:
        """Make a deleted directory again, and name none of its files in the checkpoint. Raises StorageFailed."""
        log.error(
            "index directory was deleted: it is made again, and rebuilt from the journal; leave a running broker's "
            "files alone directory=%s partitions=%d",
            self._directory,
            len(collected.marks) + len(collected.spills),
        )
        self.make_directory()
        collected.deleted, collected.is_complete = frozenset(collected.marks), False
        collected.marks.clear()

    def _written(self, name: PartitionName, spill: Spill) -> IndexFile | None:
        try:
            return self.by_name[name].write(spill)
        except IndexDamaged:
            return None

    def install(self, collected: "Collected", files: Mapping[PartitionName, IndexFile]) -> None:
        """Finish renewed files, once the checkpoint *files* were written for is durable. A worker's job. Raises
        StorageFailed.
        """
        for name, file in files.items():
            self.by_name[name].install(collected.spills[name], file)

    def filed(self, collected: "Collected", files: Mapping[PartitionName, IndexFile]) -> Iterator[None]:
        """Drop from memory what *files* hold; one partition a step."""
        for name, spill in collected.spills.items():
            if (file := files.get(name)) is not None:
                self.by_name[name].filed(spill, file)
            else:
                self.by_name[name].damaged()
            yield
        for name in collected.deleted:
            self.by_name[name].damaged()
            yield


@dataclass(slots=True, eq=False)
class Collected:
    """The indexes' part of a checkpoint. *marks* is complete once the spills are written.

    *is_complete*: none of the indexes is damaged. *deleted*: partitions whose up-to-date files are gone.
    """

    spills: dict[PartitionName, Spill]
    marks: dict[PartitionName, IndexFileEntry]
    is_complete: bool
    deleted: frozenset[PartitionName] = frozenset()

    def every(self) -> Iterator[tuple[PartitionName, Spill | None]]:
        """Yield each partition with what is added to its file."""
        yield from self.spills.items()
        yield from ((name, None) for name in self.marks if name not in self.spills)


class Rebuilding:
    """Rebuilds the indexes that are damaged now. `read` may run in another thread."""

    def __init__(self, indexes: Indexes, segments: Segments, until: Lsn) -> None:
        """Rebuild from the records below *until*, which publish everything the indexes hold."""
        self._indexes = indexes
        self._segments = segments
        self._until = until
        self._fresh = {name: indexes.by_name[name].rebuilding() for name in indexes.damaged}

    def read(self, is_stopped: Callable[[], bool] = lambda: False) -> None:
        """Read the journal until every damaged index is complete. Blocks. Raises JournalError."""
        offset_ranges = {name: (index.start, end) for name, (index, end) in self._fresh.items()}
        for update in published_in(self._segments, self._until, offset_ranges, is_stopped):
            self._fresh[update.name][0].publish(update)

    def install(self) -> bool:
        """Install the rebuilt indexes. False: the journal does not contain all of one."""
        for name, (index, end) in self._fresh.items():
            if index.end != end:
                log.error(
                    "index not rebuilt: run `metaq journal check` partition=%s end=%d found=%d", name, end, index.end
                )
                return False
            self._indexes.by_name[name].rebuilt(index)
            del self._indexes.damaged[name]
            log.warning("index rebuilt partition=%s entries=%d", name, len(index))
        return True


class IndexRepair:
    """Rebuilds damaged indexes while the broker serves, reading the whole journal in a thread. Loop thread only.

    Until then, requests that need a damaged part are refused and no segment is dropped; everything else goes on.
    """

    def __init__(self, indexes: Indexes, journal: OpenJournal) -> None:
        self._indexes = indexes
        self._journal = journal
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = threading.Event()
        self.wants_checkpoint = False  # rebuilt indexes are in memory only until then

    def maybe_begin(self) -> None:
        """Begin if an index is damaged. No checkpoint may be running; one that begins later does no harm."""
        if self._indexes.damaged and self._task is None:
            log.warning("rebuilding indexes count=%d journal=%d", len(self._indexes.damaged), self._journal.flushed)
            rebuilding = Rebuilding(self._indexes, self._journal.segments, self._journal.flushed)
            self._task = asyncio.create_task(self._rebuild(rebuilding))

    async def _rebuild(self, rebuilding: Rebuilding) -> None:
        try:
            await asyncio.to_thread(rebuilding.read, self._is_stopping.is_set)
        except JournalError as error:
            # Corruption, most likely. Not retried: the task stays, and requests for damaged parts stay refused.
            log.error("index not rebuilt: run `metaq journal check`, then start again error=%s", error)
            self._indexes.is_given_up = True
            return
        if self._is_stopping.is_set():
            return
        if rebuilding.install():
            self.wants_checkpoint = True
            self._task = None
        else:
            self._indexes.is_given_up = True

    async def stop(self) -> None:
        """Cancel a running repair. Idempotent."""
        self._is_stopping.set()
        if self._task is not None:
            await asyncio.wait([self._task])
