"""Tails truncated from a journal, saved beside it: one file each, raw bytes after a header. Drawn in FORMAT.md."""

import re
import struct
from collections.abc import Iterator
from typing import NamedTuple, Self

from journal.checksum import crc32
from journal.errors import ForeignStream, InvalidContent, StorageFailed, UnreadableRange
from journal.records.header import Lsn
from journal.wal.open_journal import MIB
from journal.wal.record_stream import RecordStream
from journal.wal.scan import ScanEnd, ScannedRecord
from journal.wal.segments import JournalIdentity, Segments
from journal.wal.storage import TMP_SUFFIX, Storage
from journal.wal.storage_file import FileReader

MAGIC = b"METAQCUT"
VERSION = 1
TAIL_HEADER_BYTES = 128
_NAME = re.compile(r"cut\.\d+-\d+\.\d+", re.ASCII)
# magic, version, broker id, LSN, end, segment end, epoch, incarnation, milliseconds, cluster; zeros, checksum
_HEADER = struct.Struct("<8sIiQQQIIQB64s")
_CRC = struct.Struct("<I")


class DivergentTail(NamedTuple):
    """Bytes [lsn, end) of a journal that has other records from *lsn* on now.

    *segment_end*: of the segment in which the records from *lsn* on begin; *lsn* itself where one begins. *epoch*,
    *incarnation*: of the last truncated record.
    """

    identity: JournalIdentity
    lsn: Lsn
    end: Lsn
    segment_end: Lsn
    epoch: int
    incarnation: int
    time_ms: int

    @property
    def name(self) -> str:
        return f"cut.{self.lsn}-{self.end}.{self.epoch}"

    @property
    def size(self) -> int:
        """Size of the file."""
        return TAIL_HEADER_BYTES + self.end - self.lsn

    def pack(self) -> bytes:
        cluster = self.identity.cluster.encode()
        head = _HEADER.pack(
            MAGIC, VERSION, self.identity.broker_id, *self[1:], len(cluster), cluster.ljust(64, b"\0")
        ).ljust(TAIL_HEADER_BYTES - _CRC.size, b"\0")
        return head + _CRC.pack(crc32(head))

    @classmethod
    def unpack(cls, raw: bytes, file_bytes: int) -> Self:
        """Unpack the header of a file of *file_bytes*. Raises InvalidContent."""
        if len(raw) < TAIL_HEADER_BYTES or raw[: len(MAGIC)] != MAGIC:
            raise InvalidContent("no header of a cut")
        head = raw[: TAIL_HEADER_BYTES - _CRC.size]
        if _CRC.unpack_from(raw, TAIL_HEADER_BYTES - _CRC.size) != (crc32(head),):
            raise InvalidContent("header checksum")
        _, version, broker_id, lsn, end, segment_end, epoch, incarnation, time_ms, size, cluster = _HEADER.unpack_from(
            raw
        )
        if version != VERSION:
            raise InvalidContent(f"format {version}, this metaq reads {VERSION}")
        try:
            identity = JournalIdentity(cluster[:size].decode(), broker_id)
        except UnicodeDecodeError as error:
            raise InvalidContent("a cluster name that is not UTF-8") from error
        divergent_tail = cls(identity, Lsn(lsn), Lsn(end), Lsn(segment_end), epoch, incarnation, time_ms)
        if divergent_tail.size != file_bytes:
            raise InvalidContent(f"{file_bytes} bytes, not {divergent_tail.size}")
        return divergent_tail


def save_tail(segments: Segments, lsn: Lsn, scan: ScanEnd, time_ms: int) -> DivergentTail:
    """Save the bytes between *lsn* and the end of the records in a file; durable on return. An existing one is whole.
    Raises StorageFailed."""
    base, file = segments.locate(lsn)
    segment_end = Lsn(lsn if lsn == base else base + file.size)
    divergent_tail = DivergentTail(segments.identity, lsn, scan.end, segment_end, *scan.writer_epoch, time_ms)
    storage = segments.storage
    names = storage.names()
    if divergent_tail.name in names:
        return divergent_tail
    for name in names:
        if name.endswith(TMP_SUFFIX) and _NAME.fullmatch(name.removesuffix(TMP_SUFFIX)):
            storage.remove(name)  # left by a crash
    kept = storage.preallocate(divergent_tail.name, divergent_tail.size, divergent_tail.pack(), lambda: True)
    try:
        for base, file in segments:
            begin, end = max(lsn, base), min(scan.end, base + file.size)
            for at in range(begin, end, MIB):
                kept.write(TAIL_HEADER_BYTES + at - lsn, [file.reader().read(at - base, min(MIB, end - at))])
        kept.sync()
        storage.rename_into_place(divergent_tail.name)
    finally:
        kept.close()
    return divergent_tail


def list_saved_tails(storage: Storage) -> list[tuple[str, DivergentTail | InvalidContent]]:
    """Return every saved tail by name, in LSN order: its header, or why that is unreadable. Raises StorageFailed."""
    found: list[tuple[str, DivergentTail | InvalidContent]] = []
    for name in storage.names():
        if _NAME.fullmatch(name):
            file = storage.open(name, writable=False)
            try:
                head = file.reader().read(0, min(TAIL_HEADER_BYTES, file.size))
                found.append((name, DivergentTail.unpack(head, file.size)))
            except InvalidContent as error:
                found.append((name, error))
            except UnreadableRange as error:
                found.append((name, InvalidContent(str(error))))
            finally:
                file.close()
    return sorted(found, key=lambda each: (int(re.split(r"[.-]", each[0])[1]), each[0]))


def entries_of(file: FileReader, divergent_tail: DivergentTail) -> Iterator[ScannedRecord]:
    """Yield the records in a saved tail, checksums verified. Raises StorageFailed if they do not read back."""
    stream = RecordStream(divergent_tail.identity, divergent_tail.lsn, divergent_tail.segment_end, (0, 0))
    try:
        for at in range(divergent_tail.lsn, divergent_tail.end, MIB):
            data = file.read(TAIL_HEADER_BYTES + at - divergent_tail.lsn, min(MIB, divergent_tail.end - at))
            for buffer in stream.add(at, data):
                yield from stream.records(buffer)
                stream.drain()
    except ForeignStream as error:
        raise StorageFailed(f"{divergent_tail.name}: {error}") from error
