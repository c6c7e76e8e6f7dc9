"""Every partition index of a data directory, and what is done about those that are damaged."""

import asyncio
import functools
import logging
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from journal.checkpoint import IndexMark, PartitionMark
from journal.errors import JournalError, StorageFailed
from journal.frame import Lsn
from journal.history import history, without_gaps
from journal.moving import sync_directory
from journal.open_journal import OpenJournal
from journal.publications import Block, Publication
from journal.records import PartitionName
from meta_broker.store.index_file import IndexFile, Spill, file_name
from meta_broker.store.partition_index import PartitionIndex

log = logging.getLogger(__name__)

# A file system commits together what several threads wait for: 2,000 files took eight of them at most a quarter of the
# time that one took.
FSYNCS_AT_ONCE = 8


class Indexes:
    """A journal's PublicationSink. Loop thread only, but for `write` and `settle`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.by_name: dict[PartitionName, PartitionIndex] = {}
        self.damaged: dict[PartitionName, None] = {}  # noticed and not rebuilt yet

    def make_directory(self) -> None:
        """Make room for the files. Raises StorageFailed."""
        try:
            self._directory.mkdir(exist_ok=True)
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

    def restore(self, marks: list[PartitionMark]) -> set[PartitionName]:
        """As a checkpoint knew them; returns the partitions whose index must be rebuilt."""
        names = [PartitionName(mark.topic, mark.partition) for mark in marks]
        return {
            name
            for name, mark in zip(names, marks, strict=True)
            if not self.of(name).restore(mark.start, mark.end, mark.index)
        }

    def publish(self, publication: Publication) -> None:
        self.of(publication.name).publish(publication)

    def publish_block(self, block: Block) -> None:
        """As publish, for all its runs."""
        self.of(block.name).publish_runs(block.base, block.runs.numbers())

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
            written = pool.map(lambda each: self.by_name[each[0]].write(each[1]), collected.spills.items())
            for name, file in zip(collected.spills, written, strict=True):
                if file is not None:  # else somebody took it away: it is rebuilt at the next start
                    files[name], collected.marks[name] = file, file.mark
        if any(spill.first == 0 or spill.unneeded for spill in collected.spills.values()):
            try:
                sync_directory(self._directory)
            except OSError as error:
                raise StorageFailed(f"{self._directory}: {error.strerror}") from error
        return files

    def settle(self, collected: "Collected", files: Mapping[PartitionName, IndexFile]) -> None:
        """The checkpoint that *files* were written for is durable. A worker's job. Raises StorageFailed."""
        for name, file in files.items():
            self.by_name[name].settle(collected.spills[name], file)


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

    def maybe_begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin if something is damaged. No checkpoint may be running: one that begins later does no harm."""
        if self._indexes.damaged and self._task is None:
            self._task = loop.create_task(self._rebuild(dict(self._indexes.damaged)))

    async def _rebuild(self, names: dict[PartitionName, None]) -> None:
        fresh = {name: self._indexes.by_name[name].rebuilding() for name in names}
        try:
            await asyncio.to_thread(self._read, fresh, self._journal.flushed)
        except JournalError as error:
            # Rot, most likely. It is not tried again: the task stays, and what is damaged stays refused.
            log.error("index not rebuilt: run `metaq journal check`, then start again error=%s", error)
            return
        if self._is_stopping.is_set():
            return
        for name, (index, end) in fresh.items():
            if index.end != end:
                log.error("index not rebuilt partition=%s end=%d found=%d: start again", name, end, index.end)
                return
            self._indexes.by_name[name].rebuilt(index)
            del self._indexes.damaged[name]
            log.warning("index rebuilt partition=%s entries=%d", name, len(index))
        self._task = None

    def _read(self, fresh: dict[PartitionName, tuple[PartitionIndex, int]], until: Lsn) -> None:
        """In a thread: publish to the *fresh* indexes what the journal says, up to where each of them ends."""
        spans = {name: (index.start, end) for name, (index, end) in fresh.items()}
        found = history(self._journal.segments, until, set(fresh), self._is_stopping.is_set)
        for publication in without_gaps(found, spans):
            index, end = fresh[publication.name]
            if publication.base < end or not publication.run.bytes:
                index.publish(publication)

    async def stop(self) -> None:
        """Give up what is running. Idempotent."""
        self._is_stopping.set()
        if self._task is not None:
            await asyncio.wait([self._task])
