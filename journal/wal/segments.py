"""The journal as one address space over its segment files.

Segment `<20-digit base LSN>.journal` holds LSNs [base, base + size), beginning with the segment header, so that file
position = LSN - base, always. Any thread may read while the writer rolls and another thread drops: both replace the
whole chain at once, under a lock.
"""

import logging
import re
import struct
import threading
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import NamedTuple, Self

from journal.checksum import crc32
from journal.errors import CorruptJournal, ForeignJournal, InvalidContent, StorageFailed, UnreadableRange
from journal.records.header import HEADER_BYTES, Lsn
from journal.wal.reserve import Reserve
from journal.wal.segment_preallocator import SegmentPreallocator
from journal.wal.storage import TMP_SUFFIX, SegmentArchive, Storage
from journal.wal.storage_file import FileReader, StorageFile

log = logging.getLogger(__name__)

MAGIC = b"METAQJNL"
VERSION = 1
SEGMENT_HEADER_BYTES = 128
SEGMENT_BYTES_MIN = 4096
SEGMENT_BYTES_MAX = 1 << 32
CLUSTER_BYTES_MAX = 64
FIRST_RECORD_BYTES = 64 * 1024  # read to tell a segment with records from an empty one

_NAME = re.compile(r"(\d{20})\.journal", re.ASCII)
# magic, version, broker id, base LSN, segment bytes, cluster name; then zeros, and the checksum of all before it
_HEADER = struct.Struct("<8sIiQQB64s")
_CRC = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class JournalIdentity:
    """Identity of a journal's broker. Stands in every segment header."""

    cluster: str
    broker_id: int

    def __str__(self) -> str:
        return f"broker {self.broker_id} of cluster {self.cluster!r}"


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The first 128 bytes of a segment file."""

    identity: JournalIdentity
    base: Lsn
    size: int

    def pack(self) -> bytes:
        cluster = self.identity.cluster.encode()
        if not 0 < len(cluster) <= CLUSTER_BYTES_MAX:
            raise ValueError(f"cluster name {self.identity.cluster!r} is not 1 to {CLUSTER_BYTES_MAX} bytes long")
        head = _HEADER.pack(MAGIC, VERSION, self.identity.broker_id, self.base, self.size, len(cluster), cluster)
        head = head.ljust(SEGMENT_HEADER_BYTES - _CRC.size, b"\0")
        return head + _CRC.pack(crc32(head))

    @classmethod
    def unpack(cls, raw: bytes | memoryview, where: str) -> Self:
        """Unpack a header. Raises InvalidContent, ForeignJournal for another version."""
        if len(raw) < SEGMENT_HEADER_BYTES or raw[: len(MAGIC)] != MAGIC:
            raise InvalidContent("no segment header")
        head = raw[: SEGMENT_HEADER_BYTES - _CRC.size]
        if _CRC.unpack_from(raw, SEGMENT_HEADER_BYTES - _CRC.size) != (crc32(head),):
            raise InvalidContent("segment header checksum")
        _, version, broker_id, base, size, cluster_bytes, cluster = _HEADER.unpack_from(raw)
        if version != VERSION:
            raise ForeignJournal(
                f"{where}: journal format {version}, this metaq reads {VERSION}: use the metaq that wrote it"
            )
        try:
            identity = JournalIdentity(cluster[:cluster_bytes].decode(), broker_id)
        except UnicodeDecodeError as error:
            raise InvalidContent("a cluster name that is not UTF-8") from error
        return cls(identity, Lsn(base), size)


def read_header(file: StorageFile, where: str) -> SegmentHeader:
    """Read the header of *file*. Raises InvalidContent, ForeignJournal, StorageFailed."""
    try:
        return SegmentHeader.unpack(file.reader().read(0, min(file.size, SEGMENT_HEADER_BYTES)), where)
    except UnreadableRange as error:
        raise InvalidContent(str(error)) from error


def segment_name(base: int) -> str:
    return f"{base:020d}.journal"


def segment_base(name: str) -> Lsn | None:
    """Return the base LSN in a segment file's name; None for other names."""
    return Lsn(int(match[1])) if (match := _NAME.fullmatch(name)) else None


def unnamed_base(name: str) -> Lsn | None:
    """Return the base LSN in the temporary name of a segment; None for other names."""
    return segment_base(name.removesuffix(TMP_SUFFIX)) if name.endswith(TMP_SUFFIX) else None


class _Chain(NamedTuple):
    """All segments: base LSNs, rising, and their files."""

    bases: tuple[Lsn, ...] = ()
    files: tuple[StorageFile, ...] = ()
    end: Lsn = Lsn(0)  # the first LSN beyond

    @classmethod
    def of(cls, bases: tuple[Lsn, ...], files: tuple[StorageFile, ...]) -> Self:
        return cls(bases, files, Lsn(bases[-1] + files[-1].size) if bases else Lsn(0))


class Segments:
    """Every segment of a journal, in LSN order, each starting where the one before it ends."""

    def __init__(self, storage: Storage, identity: JournalIdentity, segment_bytes: int) -> None:
        if not SEGMENT_BYTES_MIN <= segment_bytes <= SEGMENT_BYTES_MAX or segment_bytes % 4096:
            raise ValueError(
                f"segment_bytes {segment_bytes} is not a multiple of 4096 in [{SEGMENT_BYTES_MIN}, {SEGMENT_BYTES_MAX}]"
            )
        self.storage = storage
        self.identity = identity
        self.segment_bytes = segment_bytes
        self._chain = _Chain()  # replaced, never changed
        self._changing = threading.Lock()
        self.dropping: Lsn | None = None  # base of the segment whose file goes, a moment before itself
        self.preallocator = SegmentPreallocator(storage)  # writer thread, once the journal runs
        self.reserve = Reserve(storage, segment_bytes + segment_bytes // 8 & -4096)

    @classmethod
    def open(cls, storage: Storage, identity: JournalIdentity | None, segment_bytes: int, *, writable: bool) -> Self:
        """Open the segments in the directory (none, for a new one). *identity* None: accept any.

        Raises ForeignJournal if a segment belongs to another broker, CorruptJournal if a header or the chain of
        segments is broken.
        """
        segments = cls(storage, identity or JournalIdentity("?", 0), segment_bytes)
        try:
            if writable:
                storage.sync_all()  # before anything depends on it
            names = storage.names()
            for name in names:
                if (base := segment_base(name)) is not None:
                    segments._adopt(name, base, checked=identity is not None, writable=writable)
            for name in names:
                if (base := unnamed_base(name)) is not None and base == segments.end:
                    named = name.removesuffix(TMP_SUFFIX)
                    segments._maybe_adopt_unnamed(named, base, checked=identity is not None, writable=writable)
        except BaseException:
            segments.close()
            raise
        return segments

    def _adopt(self, name: str, base: int, *, checked: bool, writable: bool) -> None:
        where = f"{self.storage.path}/{name}"
        before = self._chain
        file = self.storage.open(name, writable=writable)
        self._append(Lsn(base), file)
        try:
            header = read_header(file, where)
        except InvalidContent as error:
            raise CorruptJournal(base, None, str(error), where) from error
        if (checked or before.bases) and header.identity != self.identity:
            raise ForeignJournal(
                f"{where} belongs to {header.identity}, not to {self.identity}: start that broker here, "
                f"or give this one its own --data directory"
            )
        self.identity = header.identity
        if (header.base, header.size) != (base, file.size):
            raise CorruptJournal(base, None, f"a file of {file.size} bytes that should hold {header.size}", where)
        if before.bases and before.end != base:
            raise CorruptJournal(before.end, Lsn(base), "a segment is missing", where)

    def _maybe_adopt_unnamed(self, name: str, base: Lsn, *, checked: bool, writable: bool) -> None:
        """Adopt a segment at the end of the chain that has lost its name, if it holds records: a power failure undid
        the rename that a failed fsync of the directory had left visible."""
        if not self._holds_records(name + TMP_SUFFIX):
            return
        log.warning("segment without its name adopted path=%s/%s", self.storage.path, name)
        if writable:
            self.storage.rename_into_place(name)
        self._adopt(name if writable else name + TMP_SUFFIX, base, checked=checked, writable=writable)

    def _holds_records(self, name: str) -> bool:
        """Return True if bytes stand where the first record of a segment begins: none is written before that one."""
        try:
            file = self.storage.open(name, writable=False)
        except StorageFailed:
            if name in self.storage.names():
                raise
            return False  # a live broker has named it meanwhile
        try:
            size = max(min(FIRST_RECORD_BYTES, file.size - SEGMENT_HEADER_BYTES), 0)
            return file.reader().read(SEGMENT_HEADER_BYTES, size).count(0) != size
        finally:
            file.close()

    def _append(self, base: Lsn, file: StorageFile) -> None:
        with self._changing:
            self._chain = _Chain.of((*self._chain.bases, base), (*self._chain.files, file))

    def __len__(self) -> int:
        return len(self._chain.bases)

    def __iter__(self) -> Iterator[tuple[Lsn, StorageFile]]:
        bases, files, _ = self._chain
        return zip(bases, files, strict=True)

    @property
    def start(self) -> Lsn:
        """First LSN that a record can have."""
        bases = self._chain.bases
        return Lsn((bases[0] if bases else 0) + SEGMENT_HEADER_BYTES)

    @property
    def end(self) -> Lsn:
        """First LSN beyond the last segment."""
        return self._chain.end

    @property
    def body_bytes_max(self) -> int:
        """Limit of meta plus body of a record, which never spans segments."""
        return self.segment_bytes - SEGMENT_HEADER_BYTES - HEADER_BYTES - 8

    def remove_unfinished(self) -> None:
        """Delete segments in the making, unless they may hold a record's only copy. Call it before a writer runs."""
        for name in self.storage.names():
            if (base := unnamed_base(name)) is None:
                continue
            if base not in self._chain.bases and self._holds_records(name):
                log.error(
                    "segment without its name is not part of the journal, left path=%s/%s", self.storage.path, name
                )
            else:
                self.storage.remove(name)

    def drop_cache(self, lsn: int) -> None:
        """Drop cached pages from *lsn* on, so that reads show the disk's content and not the pages that a failed fsync
        left. Raises StorageFailed."""
        for base, file in self:
            if base + file.size > lsn:
                file.drop_cache()

    def preallocate_next(self, *, prezero: bool) -> None:
        """Begin to make the next segment, unless begun. Returns at once. Writer thread only.

        *prezero*: write its zeros, too; it pays when appends wait for their fsync.
        """
        if not self.preallocator.is_started:
            header = SegmentHeader(self.identity, self.end, self.segment_bytes)
            self.preallocator.start(segment_name(header.base), header.size, header.pack(), prezero=prezero)

    def roll(self) -> tuple[Lsn, StorageFile]:
        """Add the next segment; it is durable on return. Writer thread only, once the journal runs.

        A preallocated one is only renamed. It must not have its name earlier: the existence of a segment proves the
        previous one durable, which the caller has ensured.
        """
        return self._add(SegmentHeader(self.identity, self.end, self.segment_bytes))

    def roll_to(self, header: SegmentHeader) -> tuple[Lsn, StorageFile]:
        """Add the segment that *header* describes, in a copy; otherwise like roll. The first may begin anywhere."""
        assert not len(self) or header.base == self.end
        if header.size != self.segment_bytes:
            self.preallocator.close()  # made ahead, in the wrong size
            self.segment_bytes = header.size
        return self._add(header)

    def _add(self, header: SegmentHeader) -> tuple[Lsn, StorageFile]:
        file = self.preallocator.make(segment_name(header.base), header.size, header.pack(), self.reserve)
        self._append(header.base, file)
        return header.base, file

    def locate(self, lsn: int) -> tuple[Lsn, StorageFile]:
        """Return base and file of the segment that holds *lsn*. Raises KeyError if none does."""
        bases, files, _ = self._chain
        if (index := bisect_right(bases, lsn) - 1) < 0 or lsn >= bases[index] + files[index].size:
            raise KeyError(f"LSN {lsn} is in no segment of {self.storage.path}")
        return bases[index], files[index]

    def read(self, lsn: int, size: int) -> bytes:
        """Return bytes [lsn, lsn + size), which must lie inside one segment. Blocks on the disk. Raises KeyError,
        UnreadableRange, StorageFailed."""
        base, file = self.reader(lsn)
        return file.read(lsn - base, size)

    def reader(self, lsn: int) -> tuple[Lsn, FileReader]:
        """Return the base of the segment that holds *lsn*, and a reader of its file. Raises KeyError."""
        base, file = self.locate(lsn)
        try:
            return base, file.reader()
        except ValueError as error:  # between the two lines another thread dropped it
            raise KeyError(f"LSN {lsn} is in no segment of {self.storage.path} any more") from error

    def reopen(self, base: Lsn) -> None:
        """Replace the file of the segment at *base* by the one that has its name now."""
        bases, files, _ = self._chain
        index = bases.index(base)
        file = self.storage.open(segment_name(base), writable=True)
        with self._changing:
            self._chain = _Chain.of(bases, (*files[:index], file, *files[index + 1 :]))
        files[index].close()

    def drop_from(self, base: int) -> None:
        """Delete the segments from *base* on, newest first; durable on return. Not while a writer runs."""
        while (bases := self._chain.bases) and bases[-1] >= base:
            self._drop(-1)

    def drop_before(self, lsn: int, archive: SegmentArchive | None = None) -> int:
        """Delete the segments that end at or below *lsn*, once *archive* has them; oldest first. The newest checkpoint
        must hold every partition's new start. Returns their number; durable then. One thread at a time. Existing
        readers stay valid. Raises StorageFailed; the remaining segments stay part of the journal."""
        count = 0
        while len(self) and self._chain.bases[0] + self._chain.files[0].size <= lsn:
            self._drop(0, archive)
            count += 1
        return count

    def _drop(self, index: int, archive: SegmentArchive | None = None) -> None:
        """Delete the file of the first or last segment, then remove it from the chain. If that fails, it stays part of
        the journal and must be retried before any other: dropping out of order would leave a gap."""
        base, file = self._chain.bases[index], self._chain.files[index]
        name = segment_name(base)
        with nullcontext() if archive is None else archive.kept(self.storage, name, file):
            if self._chain.files[index] is not file:
                raise StorageFailed(f"{self.storage.path}/{name}: replaced while it was archived")
            self.dropping = base
            self.storage.remove(name)
            with self._changing:
                bases, files, _ = self._chain
                left = slice(1, None) if index == 0 else slice(None, -1)
                self._chain, self.dropping = _Chain.of(bases[left], files[left]), None
            file.close()

    def close(self) -> None:
        """Close all files. Idempotent."""
        self.preallocator.close()
        for file in self._chain.files:
            file.close()
