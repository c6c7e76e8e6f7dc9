"""Every partition index of a data directory, and what is done about those that are damaged."""

import asyncio
import functools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from journal.checkpoint import IndexMark, PartitionMark
from journal.errors import JournalError, StorageFailed
from journal.frame import Lsn
from journal.history import published_in
from journal.moving import sync_directory
from journal.open_journal import OpenJournal
from journal.publications import Block, Publication
from journal.records import PartitionName
from journal.segments import Segments
from meta_broker.descriptors import check_room
from meta_broker.store.index_file import IndexCold, IndexDamaged, IndexFile, Spill, file_name
from meta_broker.store.partition_index import PartitionIndex

log = logging.getLogger(__name__)

# A file system commits together what several threads wait for: 2,000 files took eight of them at most a quarter of the
# time that one took.
FSYNCS_AT_ONCE = 8

T = TypeVar("T")


async def warmed(worker: Executor, ask: Callable[[], T]) -> T:
    """Return what *ask* says, which looks into an index; *worker* reads what is not in memory. Raises IndexDamaged."""
    while True:
        try:
            return ask()
        except IndexCold as cold:
            await asyncio.get_running_loop().run_in_executor(worker, cold.run)


class Indexes:
    """A journal's PublicationSink. Loop thread only, but for `write` and `settle`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.by_name: dict[PartitionName, PartitionIndex] = {}
        self.damaged: dict[PartitionName, None] = {}  # noticed and not rebuilt yet

    def make_directory(self) -> None:
        """Make room for the files, durably: a checkpoint vouches for them. Raises StorageFailed."""
        try:
            self._directory.mkdir(exist_ok=True)
            sync_directory(self._directory.parent)
        except OSError as error:
            raise StorageFailed(f"{self._directory}: {error.strerror}") from error

    def of(self, name: PartitionName) -> PartitionIndex:
        """The partition's index; made on first use."""
        if (index := self.by_name.get(name)) is None:
            noticed = functools.partial(self._noticed, name)
            index = self.by_name[name] = PartitionIndex(self._directory / file_name(name), noticed)
        return index

    def _noticed(self, name: PartitionName) -> None:
        log.warning("index damaged partition=%s: it is rebuilt from the journal", name)
        self.damaged[name] = None

    def restore(self, marks: list[PartitionMark]) -> None:
        """As a checkpoint knew them. What is lost is noticed, and rebuilt once the broker serves; what is damaged, when
        it is wanted. Raises StorageFailed if not all of the files could be open one day."""
        check_room(self._directory, len(marks))
        for mark in marks:
            self.of(PartitionName(mark.topic, mark.partition)).restore(mark.start, mark.end, mark.index)

    def publish(self, publication: Publication) -> None:
        self.of(publication.name).publish(publication)

    def publish_block(self, block: Block) -> None:
        """As publish, for all its runs."""
        self.of(block.name).publish_runs(block.base, block.runs.numbers())

    @property
    def unopened(self) -> int:
        """How many files are still to be opened."""
        return sum(index.is_unopened for index in self.by_name.values())

    def trim(self, name: PartitionName, start: int) -> None:
        self.of(name).trim(start)

    # -- checkpoints ------------------------------------------------------------------------------------------

    def collect(self) -> "Collected":
        """What a checkpoint must add to the files now, and what it says of those that lack nothing."""
        spills, marks = dict[PartitionName, Spill](), dict[PartitionName, IndexMark]()
        for name, index in self.by_name.items():
            if (spill := index.spill()) is not None:
                spills[name] = spill
            elif (mark := index.mark) is not None:
                marks[name] = mark
        return Collected(spills, marks, is_complete=not self.damaged)

    def write(self, collected: "Collected") -> dict[PartitionName, IndexFile]:
        """Add to the files; durable on return, and marked in *collected*. A worker's job. Raises StorageFailed."""
        files: dict[PartitionName, IndexFile] = {}
        with ThreadPoolExecutor(FSYNCS_AT_ONCE, "index") as pool:
            written = pool.map(lambda each: self._written(*each), collected.spills.items())
            for name, file in zip(collected.spills, written, strict=True):
                if file is not None:
                    files[name], collected.marks[name] = file, file.mark
        if any(spill.first == 0 or spill.start for spill in collected.spills.values()):
            try:
                sync_directory(self._directory)
            except OSError as error:
                raise StorageFailed(f"{self._directory}: {error.strerror}") from error
        return files

    def _written(self, name: PartitionName, spill: Spill) -> IndexFile | None:
        try:
            return self.by_name[name].write(spill)
        except IndexDamaged:
            return None

    def settle(self, collected: "Collected", files: Mapping[PartitionName, IndexFile]) -> None:
        """The checkpoint that *files* were written for is durable. A worker's job. Raises StorageFailed."""
        for name, file in files.items():
            self.by_name[name].settle(collected.spills[name], file)

    def filed(self, collected: "Collected", files: Mapping[PartitionName, IndexFile]) -> Iterator[None]:
        """The tails begin after what is in *files*; one partition a step."""
        for name, spill in collected.spills.items():
            if (file := files.get(name)) is not None:
                self.by_name[name].filed(spill, file)
            else:
                self.by_name[name].damaged()
            yield


class Collected:
    """What a checkpoint takes of the indexes. *marks* is complete once the spills are written.

    *is_complete*: none of them is damaged.
    """

    __slots__ = ("is_complete", "marks", "spills")

    def __init__(
        self, spills: dict[PartitionName, Spill], marks: dict[PartitionName, IndexMark], *, is_complete: bool
    ) -> None:
        self.spills = spills
        self.marks = marks
        self.is_complete = is_complete

    def every(self) -> Iterator[tuple[PartitionName, Spill | None]]:
        """Each partition, and what is added to its file."""
        yield from self.spills.items()
        yield from ((name, None) for name in self.marks if name not in self.spills)


class Rebuilding:
    """The rebuilding of the indexes that are damaged now: the one way there is. `read` may run in another thread."""

    def __init__(self, indexes: Indexes, segments: Segments, until: Lsn) -> None:
        """From the records below *until*, which publish all that the indexes hold."""
        self._indexes = indexes
        self._segments = segments
        self._until = until
        self._fresh = {name: indexes.by_name[name].rebuilding() for name in indexes.damaged}

    def read(self, is_stopped: Callable[[], bool] = lambda: False) -> None:
        """Read the journal until every one of them is whole. Blocks. Raises JournalError."""
        spans = {name: (index.start, end) for name, (index, end) in self._fresh.items()}
        for publication in published_in(self._segments, self._until, spans, is_stopped):
            self._fresh[publication.name][0].publish(publication)

    def finish(self) -> bool:
        """Take over what was read. False: the journal does not say all of it."""
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
    """Rebuilds damaged indexes while the broker serves: reads the whole journal, in a thread. Loop thread only.

    Until one is rebuilt, requests that need what is damaged of it are refused and no segment is dropped; everything
    else goes on.
    """

    def __init__(self, indexes: Indexes, journal: OpenJournal) -> None:
        self._indexes = indexes
        self._journal = journal
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = threading.Event()
        self.wants_checkpoint = False  # what was rebuilt is in memory only: a kill would have it rebuilt once more

    def maybe_begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin if something is damaged. No checkpoint may be running: one that begins later does no harm."""
        if self._indexes.damaged and self._task is None:
            log.warning("rebuilding indexes count=%d journal=%d", len(self._indexes.damaged), self._journal.flushed)
            rebuilding = Rebuilding(self._indexes, self._journal.segments, self._journal.flushed)
            self._task = loop.create_task(self._rebuild(rebuilding))

    async def _rebuild(self, rebuilding: Rebuilding) -> None:
        try:
            await asyncio.to_thread(rebuilding.read, self._is_stopping.is_set)
        except JournalError as error:
            # Rot, most likely. It is not tried again: the task stays, and what is damaged stays refused.
            log.error("index not rebuilt: run `metaq journal check`, then start again error=%s", error)
            return
        if not self._is_stopping.is_set() and rebuilding.finish():
            self.wants_checkpoint = True
            self._task = None

    async def stop(self) -> None:
        """Give up what is running. Idempotent."""
        self._is_stopping.set()
        if self._task is not None:
            await asyncio.wait([self._task])
