"""Reads messages that retention archived: finds them by archived indexes, reads them in downloaded segments.

The archive's part of a partition is [start, log start), without a gap. What a run takes out of the partition indexes is
in an archived index on this disk before they lose it, then in the archive before a segment goes: at every moment
either the log, or the tier, has each message.
"""

import asyncio
import functools
import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from journal.archive.download import ObjectMissing
from journal.archive.keeper import ArchiveReader, digest
from journal.archive.manifest import INDEX_SUFFIX, ArchivedIndex, ArchiveManifest
from journal.archive.view import ArchiveView, kept_from, read_manifest
from journal.errors import InvalidContent, StorageFailed
from journal.records.header import Lsn
from journal.records.record import PartitionName
from journal.wal.open_journal import OpenJournal
from journal.wal.segments import JournalIdentity
from journal.wal.storage import TMP_SUFFIX, DirectoryStorage, Storage
from journal.wal.storage_file import FileReader
from meta_broker.store.archive_cache import ArchiveCache, ArchiveCold, ArchiveThreads, retrieved
from meta_broker.store.archived_index import ArchivedIndexFile, ArchivedRange, open_file, write_archived_index
from meta_broker.store.index_survey import IndexSurvey
from meta_broker.store.partition_index import Covered, JournalSlice, PartitionIndex

log = logging.getLogger(__name__)

ARCHIVED: Final = "archived"  # directory
REFRESH_S: Final = 60.0  # until files removed by hand are noticed, unless somebody asks for one
RETRY_S: Final = 5.0  # between two attempts to list an archive that is away

_NOTHING: Final = ArchivedRange("", 0, 0, 0, 0, 0)  # of a partition that had no messages in the archive yet


class ArchiveTier:
    """The archive of one broker, to read from. Loop thread only, except `write`, `waiting` and `listed`.

    Look-ups may raise ArchiveCold: wait, and look up again; StorageFailed: the archive is away, or damaged.
    """

    def __init__(
        self, data: Path, journal: OpenJournal, place: Callable[[], ArchiveReader], bytes_max: int, free_bytes_min: int
    ) -> None:
        """Open the files in *data*. Blocks. Raises StorageFailed."""
        self._journal = journal
        self._identity = journal.segments.identity
        self._threads = ArchiveThreads(place)
        self.cache = ArchiveCache(data / "archive-cache", bytes_max, free_bytes_min, self._threads)
        self._directory = data / ARCHIVED  # of indexes that the archive lacks, and the newest one
        self._storage = DirectoryStorage.open_for_writing(self._directory)
        self._local = _local_indexes(self._directory, self._storage.names(), self._identity)
        self._view: ArchiveView | None = None
        self._told: ArchiveManifest | None = None  # by the thread that archives
        self._sorted: list[ArchivedIndex | ArchivedIndexFile] | None = None  # as _indexes returns them
        self._begins: dict[PartitionName, tuple[int, int]] = {}  # by the view's begin, where a partition begins then
        self._checked_base: int | None = None  # of the segment that was compared last
        self._listing: asyncio.Future[None] | None = None
        self._list_at = 0.0  # when the archive may be listed again
        self.reads = 0

    def close(self) -> None:
        """Read no more. A download may still run, and changes nothing here."""
        self._threads.close()
        self._storage.close()

    # -- look-ups ---------------------------------------------------------------------------------------------

    @property
    def is_ready(self) -> bool:
        """True if the newest archived index is known, and so what follows it; else it is being looked for."""
        try:
            self.ranges()
        except (ArchiveCold, StorageFailed):
            return False
        return True

    async def prepare(self, seconds_max: float) -> None:
        """Wait until it `is_ready`; or has failed to be, or *seconds_max* are over."""
        deadline = time.monotonic() + seconds_max
        while (left_s := deadline - time.monotonic()) > 0:
            try:
                self.ranges()
            except ArchiveCold as cold:
                await asyncio.wait([cold.loading], timeout=left_s)
                if cold.loading.done() and cold.loading.exception() is None:
                    continue
            except StorageFailed as error:
                log.error("not known what the archive has error=%s", error)
            return

    def start_of(self, name: PartitionName, log: PartitionIndex) -> int:
        """Return the first offset of *name* that can be read: from the archive, or from *log*, its index."""
        if not log.start:
            return 0
        found = self.ranges().get(name)
        if found is None or not found.first < log.start <= found.end:
            return log.start
        self._maybe_list()
        begin = self._begin_of(name, self._view) if self._view is not None and self._view.begin else 0
        return min(max(found.first, begin), log.start)

    def index_at(self, name: PartitionName, log: PartitionIndex, offset: int) -> PartitionIndex | None:
        """Return an index that has *offset*, which is below the start of *log*; None: the archive does not have it."""
        if offset < self.start_of(name, log):
            return None
        for file in self._local.values():  # whether the archive can be asked or not
            if name in file.ranges and file.ranges[name].start <= offset < file.ranges[name].end:
                return file.partition(name)
        candidates = self._indexes()
        at = bisect_left(candidates, True, key=lambda each: self._range_in(each, name).end > offset)
        if at < len(candidates) and self._range_in(candidates[at], name).start <= offset:
            return self._open(candidates[at]).partition(name)
        raise self._missing(f"offset {offset} of {name} is in no index that the archive lists")

    def at_time(self, name: PartitionName, log: PartitionIndex, time_ms: int) -> int:
        """Return the first archived offset of *time_ms* or later; the start of *log* if there is none."""
        start = self.start_of(name, log)
        if start == log.start:
            return start
        candidates = self._indexes()
        at = bisect_left(candidates, True, key=lambda each: self._range_in(each, name).last_ms >= time_ms)
        if at == len(candidates):
            return log.start
        found = self._range_in(candidates[at], name)
        offset = self._open(candidates[at]).partition(name).at_time(time_ms) if found.entries else found.end
        return min(max(start, offset), log.start)

    def reader(self, lsn: int) -> tuple[int, FileReader]:
        """Return base and file of the segment with *lsn*: of the journal while that has it, else a downloaded one."""
        try:
            return self._journal.reader(lsn)
        except KeyError:
            pass
        segment = self._known().segment_of(lsn)
        if segment is None:
            raise self._missing(f"LSN {lsn} is in no segment of the journal, and in none that the archive lists")
        try:
            return segment.base, self.cache.get(segment, open_file)
        except ObjectMissing:
            self._maybe_list()
            raise

    def _missing(self, what: str) -> ObjectMissing:
        """Return the error for *what*, which the manifest lacks: this place is new, or has an older manifest."""
        self._maybe_list()
        error = ObjectMissing(f"{what}: name the archive that has it, or copy its files and manifest here")
        log.error("not read from the archive error=%s", error)
        return error

    def at_hand(self, places: list[JournalSlice]) -> list[JournalSlice]:
        """Return as many of *places*, of which there is one at least, as can be read now; or raise ArchiveCold."""
        base, file = self.reader(places[0].lsn)
        end = base + file.size
        for count, place in enumerate(places):
            if not base <= place.lsn < end:
                if (segment := self._downloaded(place.lsn)) is None:
                    return places[:count]
                base, end = segment
        return places

    def _downloaded(self, lsn: int) -> tuple[int, int] | None:
        """Return base and end of the segment with *lsn*, if it is here: asks for no other, which might push out one
        that is about to be read."""
        try:
            base, file = self._journal.reader(lsn)
            return base, base + file.size
        except KeyError:
            segment = self._known().segment_of(lsn)
            return (segment.base, segment.end) if segment is not None and self.cache.has(segment) else None

    def _known(self) -> ArchiveView:
        """Return the view of the archive; a refresh may be under way. Raises ArchiveCold until there is one."""
        told, self._told = self._told, None
        if told is not None and (self._view is None or len(told.lines) >= len(self._view.manifest.lines)):
            self._set_view(ArchiveView(told, 0 if self._view is None else self._view.begin))
        self._maybe_list()
        if self._view is None:
            assert self._listing is not None
            raise ArchiveCold(self._listing)
        return self._view

    def _set_view(self, view: ArchiveView) -> None:
        self._view, self._sorted = view, None

    def ranges(self) -> Mapping[PartitionName, ArchivedRange]:
        """Return the ranges of the newest archived index, this broker's own if it has one."""
        if (newest := max(self._local.values(), key=lambda each: each.cut, default=None)) is not None:
            return newest.ranges
        indexes = self._known().indexes
        return self._open(indexes[-1]).ranges if indexes else {}

    def _indexes(self) -> "list[ArchivedIndex | ArchivedIndexFile]":
        """Return the indexes of messages that were not removed, by rising cuts."""
        view = self._known()
        if self._sorted is None:
            names = {each.name for each in view.indexes}
            local = [file for name, file in self._local.items() if name not in names]
            self._sorted = sorted([*view.indexes_from(view.begin), *local], key=lambda each: each.cut)
        return self._sorted

    def _range_in(self, index: "ArchivedIndex | ArchivedIndexFile", name: PartitionName) -> ArchivedRange:
        return self._open(index).ranges.get(name) or _NOTHING

    def _open(self, index: "ArchivedIndex | ArchivedIndexFile") -> ArchivedIndexFile:
        if isinstance(index, ArchivedIndexFile):
            return index
        if (local := self._local.get(index.name)) is not None:
            return local
        file = self.cache.get(index, lambda path: ArchivedIndexFile.open(path, self._identity))
        file.on_damaged = functools.partial(self.cache.discard, index.name)
        return file

    def _begin_of(self, name: PartitionName, view: ArchiveView) -> int:
        """Return the first offset behind all that the removed segments held."""
        if (known := self._begins.get(name)) is not None and known[0] == view.begin:
            return known[1]
        indexes, begin = self._indexes(), view.begin
        if not indexes:
            return self.ranges()[name].end
        if name not in (file := self._open(indexes[0])).ranges:
            return 0
        found = file.ranges[name]

        def survey() -> int:
            if not found.entries:
                return found.start
            entries = IndexSurvey(file.covered(name))
            lost = entries.entries_lost(begin)
            return max(found.start, entries.offset_behind(lost, found.end)) if lost else found.start

        async def keep() -> None:
            self._begins[name] = begin, await self._threads.run(lambda place: survey())

        raise ArchiveCold(retrieved(asyncio.ensure_future(keep())))

    # -- listing ----------------------------------------------------------------------------------------------

    def _maybe_list(self) -> None:
        """Begin to list the archive, if that is due: removed files are noticed, and what another broker archived."""
        if (self._listing is None or self._listing.done()) and time.monotonic() >= self._list_at:
            self._list_at = time.monotonic() + RETRY_S
            self._listing = retrieved(asyncio.ensure_future(self._list()))

    async def _list(self) -> None:
        try:
            view = await self._threads.run(self._read_view)
        except StorageFailed as error:
            log.error("archive not listed error=%s", error)
            raise
        self._list_at = time.monotonic() + REFRESH_S
        if self._view is None or len(view.manifest.lines) >= len(self._view.manifest.lines):
            self._set_view(view)

    def _read_view(self, place: ArchiveReader) -> ArchiveView:
        """Read manifest and names. A thread's job. Raises StorageFailed, also for another journal's archive."""
        manifest = read_manifest(place) or ArchiveManifest(self._identity)
        if (owner := manifest.identity) != self._identity:
            raise StorageFailed(f"{place.name} is the archive of {owner}: give every broker one of its own")
        self._check_history(place.name, manifest)
        return ArchiveView(manifest, kept_from(manifest, place, place.names()))

    def _check_history(self, where: str, manifest: ArchiveManifest) -> None:
        """Check that the newest segment that archive and journal both have is the same: a copy that began again may
        have other records at those LSNs. Raises StorageFailed."""
        files, end = dict(self._journal.segments), self._journal.end
        shared = next((each for each in reversed(manifest.entries) if each.base in files and each.end <= end), None)
        if shared is None or shared.base == self._checked_base:
            return
        try:
            sha256 = digest(files[Lsn(shared.base)])
        except ValueError:
            return  # dropped meanwhile, since the archive has it
        if sha256 != shared.sha256:
            raise StorageFailed(
                f"{where} has another {shared.name} than the journal, of a history that was given up: name a new place "
                f"in [retention] archive, and keep the old one, which `metaq audit` and Spark read"
            )
        self._checked_base = shared.base

    # -- writing ----------------------------------------------------------------------------------------------

    def write(
        self,
        cut: int,
        taken: Mapping[PartitionName, tuple[Covered, int]],
        before: Mapping[PartitionName, ArchivedRange],
    ) -> ArchivedIndexFile:
        """Write the index of what a cut takes, durably; `add` it before the partitions begin later. A worker's job.

        Raises IndexDamaged, StorageFailed.
        """
        return write_archived_index(self._directory, self._identity, cut, taken, before)

    def add(self, file: ArchivedIndexFile) -> None:
        """Read from *file*, too; drop older ones that the archive has."""
        self._local[file.name], self._sorted = file, None
        if self._view is None:
            return
        listed = {each.name for each in self._known().indexes} - {file.name}
        for name in self._local.keys() & listed:
            del self._local[name]
            (self._directory / name).unlink(missing_ok=True)

    def waiting(self) -> list[tuple[Storage, str, int]]:
        local = sorted(self._local.values(), key=lambda each: each.cut)
        return [(self._storage, each.name, each.cut) for each in local]

    def listed(self, manifest: ArchiveManifest) -> None:
        self._told = manifest


def _local_indexes(directory: Path, names: Sequence[str], identity: JournalIdentity) -> dict[str, ArchivedIndexFile]:
    """Return the archived indexes in *directory*; what is no whole one was being written. Raises StorageFailed."""
    found: dict[str, ArchivedIndexFile] = {}
    for name in names:
        if name.endswith(TMP_SUFFIX):
            (directory / name).unlink()
        elif name.endswith(INDEX_SUFFIX):
            try:
                found[name] = ArchivedIndexFile.open(directory / name, identity)
            except InvalidContent as error:
                raise StorageFailed(f"{error}: restore it, or move it away and lose the offsets in it") from error
    return found
