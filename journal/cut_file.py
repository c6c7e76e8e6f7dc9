"""What was cut off a journal, kept beside it: one file for each cut, raw bytes behind a header. Drawn in FORMAT.md."""

import re
import struct
from collections.abc import Iterator
from typing import NamedTuple, Self

from journal.checksum import crc32
from journal.errors import ForeignStream, StorageFailed, UnreadableRange
from journal.frame import Lsn
from journal.open_journal import MIB
from journal.scan import Entry, ScanEnd
from journal.segments import Identity, Segments
from journal.storage import PREPARED_SUFFIX, FileReader, Storage
from journal.stream import RecordStream

MAGIC = b"METAQCUT"
VERSION = 1
CUT_HEADER_BYTES = 128
_NAME = re.compile(r"cut\.\d+-\d+\.\d+", re.ASCII)
# magic, version, broker id, LSN, end, segment end, epoch, incarnation, milliseconds, cluster; zeros, checksum
_HEADER = struct.Struct("<8sIiQQQIIQB64s")
_CRC = struct.Struct("<I")


class Cut(NamedTuple):
    """Bytes [lsn, end) of a journal that is now another from *lsn* on.

    *segment_end*: of the segment in which the records from *lsn* on begin; *lsn* itself where one begins. *epoch*,
    *incarnation*: of the last record that was cut.
    """

    identity: Identity
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
        """Of the file."""
        return CUT_HEADER_BYTES + self.end - self.lsn

    def pack(self) -> bytes:
        cluster = self.identity.cluster.encode()
        head = _HEADER.pack(
            MAGIC, VERSION, self.identity.broker_id, *self[1:], len(cluster), cluster.ljust(64, b"\0")
        ).ljust(CUT_HEADER_BYTES - _CRC.size, b"\0")
        return head + _CRC.pack(crc32(head))

    @classmethod
    def unpack(cls, raw: bytes, file_bytes: int) -> Self | str:
        """The header, or the reason why these bytes are none, or why a file of *file_bytes* does not fit it."""
        if len(raw) < CUT_HEADER_BYTES or raw[: len(MAGIC)] != MAGIC:
            return "no header of a cut"
        head = raw[: CUT_HEADER_BYTES - _CRC.size]
        if _CRC.unpack_from(raw, CUT_HEADER_BYTES - _CRC.size) != (crc32(head),):
            return "header checksum"
        _, version, broker_id, lsn, end, segment_end, epoch, incarnation, time_ms, size, cluster = _HEADER.unpack_from(
            raw
        )
        if version != VERSION:
            return f"format {version}, this metaq reads {VERSION}"
        try:
            identity = Identity(cluster[:size].decode(), broker_id)
        except UnicodeDecodeError:
            return "a cluster name that is not UTF-8"
        cut = cls(identity, Lsn(lsn), Lsn(end), Lsn(segment_end), epoch, incarnation, time_ms)
        return cut if cut.size == file_bytes else f"{file_bytes} bytes, not {cut.size}"


def save(segments: Segments, lsn: Lsn, scan: ScanEnd, time_ms: int) -> Cut:
    """Keep what stands between *lsn* and the end of the records in a file of its own; durable on return.

    One that stands there already is whole. Raises StorageFailed.
    """
    base, file = segments.locate(lsn)
    segment_end = Lsn(lsn if lsn == base else base + file.size)
    cut = Cut(segments.identity, lsn, scan.end, segment_end, *scan.life, time_ms)
    storage = segments.storage
    names = storage.names()
    if cut.name in names:
        return cut
    for name in names:
        if name.endswith(PREPARED_SUFFIX) and _NAME.fullmatch(name.removesuffix(PREPARED_SUFFIX)):
            storage.remove(name)  # of one that a crash cut short
    kept = storage.prepare(cut.name, cut.size, cut.pack(), lambda: True)
    try:
        for base, file in segments:
            begin, end = max(lsn, base), min(scan.end, base + file.size)
            for at in range(begin, end, MIB):
                kept.write(CUT_HEADER_BYTES + at - lsn, [file.reader().read(at - base, min(MIB, end - at))])
        kept.sync()
        storage.publish(cut.name)
    finally:
        kept.close()
    return cut


def list_cuts(storage: Storage) -> list[tuple[str, Cut | str]]:
    """Every cut file by name, in LSN order: what its header says, or why it says nothing. Raises StorageFailed."""
    found: list[tuple[str, Cut | str]] = []
    for name in storage.names():
        if _NAME.fullmatch(name):
            file = storage.open(name, writable=False)
            try:
                head = file.reader().read(0, min(CUT_HEADER_BYTES, file.size))
                found.append((name, Cut.unpack(head, file.size)))
            except UnreadableRange as error:
                found.append((name, str(error)))
            finally:
                file.close()
    return sorted(found, key=lambda each: (int(re.split(r"[.-]", each[0])[1]), each[0]))


def entries_of(file: FileReader, cut: Cut) -> Iterator[Entry]:
    """The records in a cut file, checksums verified. Raises StorageFailed where they do not read back."""
    stream = RecordStream(cut.identity, cut.lsn, cut.segment_end, (0, 0))
    try:
        for at in range(cut.lsn, cut.end, MIB):
            data = file.read(CUT_HEADER_BYTES + at - cut.lsn, min(MIB, cut.end - at))
            for buffer in stream.add(at, data):
                yield from stream.records(buffer)
                stream.take()
    except ForeignStream as error:
        raise StorageFailed(f"{cut.name}: {error}") from error
