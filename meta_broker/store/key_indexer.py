"""Maintains the key indexes of a broker: which partitions have one, and when blocks are added.

Puts do no work. Messages a checkpoint made durable are indexed afterwards, a piece at a time, by a worker thread that
rests longer than it works. The rest is short or about to be indexed; searches read the messages there.
"""

import asyncio
import functools
import logging
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from itertools import islice
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from journal.errors import StorageFailed
from journal.records.record import PartitionName
from journal.state.checkpoint import Checkpoint
from journal.wal.storage import DirectoryStorage
from journal.wal.storage_file import translated
from meta_broker.store.index_file import IndexDamaged
from meta_broker.store.index_layout import file_name
from meta_broker.store.indexes import when_loaded
from meta_broker.store.key_block import SPAN_MAX, KeyBlock, new_buckets
from meta_broker.store.key_files import ENTRIES_MAX, CoveredOffsets, KeyFiles, first_gap
from meta_broker.store.key_reading import gather, is_message
from meta_broker.store.message_store import MessageStore
from meta_broker.store.partition_index import PartitionIndex, StoredExtent
from meta_broker.store.search import NotAMessageStart, ReadAhead
from meta_broker.store.topics import Topics
from meta_broker.task_errors import raise_task_error

log = logging.getLogger(__name__)

TAIL_BYTES_MIN: Final = 256 * 1024  # less is searched in two milliseconds, without a block
RUNS_MAX: Final = 512  # in a piece: collected on the loop in a fraction of a millisecond
NAMES_MAX: Final = 256  # partitions checked in one turn of the loop, if they need nothing
REST: Final = 2.0  # pause after a piece, in multiples of its duration: leaves the interpreter to others

P = ParamSpec("P")
T = TypeVar("T")


class KeyIndexer:
    """Key indexes of a broker. Loop thread only."""

    def __init__(self, directory: Path, store: MessageStore, topics: Topics, worker: Executor) -> None:
        self._directory = directory
        self._store = store
        self._topics = topics
        self._worker = worker
        self._files: dict[PartitionName, KeyFiles] = {}
        self._opening = asyncio.Lock()
        # At a start everything recovered is durable; later, what the newest checkpoint covers.
        self._ends: list[tuple[PartitionName, int]] = [(name, i.end) for name, i in store.indexes.by_name.items()]
        self._checkpoint: Checkpoint | None = None
        self._is_due = False
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False
        store.checkpoints.subscribe(self._checkpoint_written)

    def rescan(self) -> None:
        """Bring every index up to date: after a start, a checkpoint, or a decision about topics."""
        self._is_due = True
        if self._task is None and not self._is_closed:
            self._task = asyncio.get_running_loop().create_task(self._run())
            self._task.add_done_callback(raise_task_error)

    async def files_of(self, name: PartitionName, index: PartitionIndex) -> KeyFiles | None:
        """Return the blocks of a partition; None: its topic has no index. Raises StorageFailed."""
        if not self._is_indexed(name):
            return None
        async with self._opening:
            if (files := self._files.get(name)) is None:
                files = self._files[name] = await self._open(name, index)
            return files

    async def discard(self, name: PartitionName) -> None:
        """Drop a partition's wrong blocks; the next round makes new ones. Raises StorageFailed."""
        if (files := self._files.get(name)) is not None:
            await self._do(files.clear, "wrong")

    async def close(self) -> None:
        """Stop indexing. Idempotent."""
        self._is_closed = True
        if (task := self._task) is not None:
            task.cancel()
            await asyncio.wait([task])

    def _checkpoint_written(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self.rescan()

    async def _durable(self) -> list[tuple[PartitionName, int]]:
        """Return every partition that is to have an index, and the offset up to which it is durable."""
        ends = list[tuple[PartitionName, int]]()
        if self._topics.have_index:
            if self._checkpoint is not None:
                entries = self._checkpoint.partitions
                self._ends = [(PartitionName(entry.topic, entry.partition), entry.end) for entry in entries]
                self._checkpoint = None
            for number, (name, end) in enumerate(self._ends):
                if number % NAMES_MAX == 0:
                    await asyncio.sleep(0)
                if self._is_indexed(name):
                    ends.append((name, end))
        return ends

    def _is_indexed(self, name: PartitionName) -> bool:
        section = self._topics.find(name.topic)
        return section is not None and section.index is not None

    async def _run(self) -> None:
        try:
            while self._is_due:
                self._is_due = False
                await self._update_all()
        finally:
            self._task = None  # here, not in the task's callback: a rescan() in between would be lost

    async def _update_all(self) -> None:
        """Bring every index up to what is durable now."""
        ends = await self._durable()
        existing: set[str] = set()
        try:
            existing = await self._do(_remove_others, self._directory, {_directory_name(name) for name, _ in ends})
        except OSError as error:
            log.error("key indexes of other topics not removed error=%s", error)
        for name in self._files.keys() - {name for name, _ in ends}:
            del self._files[name]
        for number, (name, end) in enumerate(ends):
            if number % NAMES_MAX == 0:
                await asyncio.sleep(0)
            index = self._store.indexes.by_name[name]
            if end - index.start < TAIL_BYTES_MIN and _directory_name(name) not in existing:
                continue  # most partitions may be small
            try:
                await self._bring_up(name, index, end)
            except (StorageFailed, IndexDamaged, NotAMessageStart) as error:
                # Derived data: searches only take longer, and the next checkpoint tries again.
                log.error("key index not updated partition=%s error=%s", name, error)

    async def _bring_up(self, name: PartitionName, index: PartitionIndex, end: int) -> None:
        """Add blocks wherever there are none below *end*. Raises StorageFailed, NotAMessageStart."""
        files = await self.files_of(name, index)
        if files is None:
            return
        if files.covered_ranges and files.covered_ranges[0].end <= index.start:
            await self._do(files.trim, index.start)
        for gap in self._gaps(files, index, end):
            block = await self._gather(index, gap)
            if block is None:
                return  # retention deletes them: the next round goes on
            await self._do(files.add, block)

    def _gaps(self, files: KeyFiles, index: PartitionIndex, end: int) -> Iterator[CoveredOffsets]:
        while True:
            gap = first_gap(files.covered_ranges, index.start, end)
            is_tail = gap.end == end
            if gap.end - gap.start < (TAIL_BYTES_MIN if is_tail else 1):
                return
            yield gap

    async def _gather(self, index: PartitionIndex, gap: CoveredOffsets) -> KeyBlock | None:
        """Return the keys from the start of *gap* on, as many as a block holds; None: its messages are being
        deleted.
        """
        block = KeyBlock(gap.start, gap.start, gap.start, 0, new_buckets())
        limit = min(gap.end, gap.start + SPAN_MAX)
        entries = 0
        while block.end < limit and entries < ENTRIES_MAX:
            began = time.monotonic()
            extents = await when_loaded(self._worker, functools.partial(runs_from, index, block.end))
            if block.end < index.start:
                return None
            try:
                more = await self._do(gather, block, ReadAhead(self._store.journal).read, extents, limit)
            except KeyError:
                return None
            if more.end == block.end:
                break  # the next message would go beyond the limit
            block = more
            entries = block.entries
            await asyncio.sleep(REST * (time.monotonic() - began))
        return block

    async def _open(self, name: PartitionName, index: PartitionIndex) -> KeyFiles:
        """Open the blocks of a partition, dropping those of another journal. Raises StorageFailed."""
        files = await self._do(_open_files, self._directory / _directory_name(name))
        last = await self._do(files.last_message)
        if last is not None and not await self._is_there(index, *last):
            await self._do(files.clear, "of another journal")
        return files

    async def _is_there(self, index: PartitionIndex, offset: int, message_id: int) -> bool:
        if (run := await when_loaded(self._worker, lambda: run_at(index, offset))) is None:
            return False
        try:
            return await self._do(is_message, ReadAhead(self._store.journal).read, run, offset, message_id)
        except KeyError:
            return False

    async def _do(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        assert not kwargs
        return await asyncio.get_running_loop().run_in_executor(self._worker, function, *args)


def run_at(index: PartitionIndex, offset: int) -> StoredExtent | None:
    """Return the run that contains *offset*; None: nothing is stored there."""
    if not index.start <= offset < index.end:
        return None
    run = next(index.runs(offset), None)
    return run if run is not None and run.offset <= offset else None


def runs_from(index: PartitionIndex, offset: int) -> list[StoredExtent]:
    """Return runs from *offset* on, for one piece of work; none if retention dropped it."""
    return list(islice(index.runs(offset), RUNS_MAX)) if index.start <= offset else []


def _directory_name(name: PartitionName) -> str:
    return file_name(name).removesuffix(".index")


def _open_files(directory: Path) -> KeyFiles:
    with translated(directory):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return KeyFiles(DirectoryStorage(directory, None))


def _remove_others(directory: Path, kept: set[str]) -> set[str]:
    """Remove the indexes of partitions that have none any more; return the remaining names. Raises OSError."""
    names = {entry.name for entry in directory.iterdir()} if directory.is_dir() else set()
    for name in names - kept:
        shutil.rmtree(directory / name)
    return names & kept
