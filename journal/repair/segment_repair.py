"""Makes segment files readable as one journal: rewrites corrupt headers, makes missing files, full of zeros, and
replaces files with unreadable bytes by new ones, with zeros in their place.

Bytes that read back stay as they are; `journal.repair.repair` restores or drops the records of missing files.
"""

from dataclasses import dataclass
from itertools import pairwise

from journal.errors import InvalidContent, NotRepairable, UnreadableRange
from journal.records.header import Lsn
from journal.wal.record_window import read_past, read_some
from journal.wal.segments import (
    SEGMENT_BYTES_MAX,
    SEGMENT_HEADER_BYTES,
    JournalIdentity,
    SegmentHeader,
    Segments,
    read_header,
    segment_base,
    segment_name,
)
from journal.wal.storage import Storage

KEPT_PREFIX = "before-repair."  # of files with the former content of what a repair changed


@dataclass(frozen=True, slots=True)
class BrokenSegment:
    """A segment whose header must be written; *is_missing*: so must the file."""

    header: SegmentHeader
    is_missing: bool

    @property
    def name(self) -> str:
        return segment_name(self.header.base)


def find_broken_segments(storage: Storage, copy: Segments | None, known: int) -> list[BrokenSegment]:
    """Return the segments in *storage* that keep it from being read as one journal; changes nothing.

    *copy*: another directory of the same journal. *known*: the highest LSN in a checkpoint. Raises NotRepairable,
    ForeignJournal, StorageFailed.
    """
    sizes: dict[Lsn, int] = {}
    headers: dict[Lsn, SegmentHeader] = {}
    for name in storage.names():
        if (base := segment_base(name)) is None:
            continue
        file = storage.open(name, writable=False)
        try:
            sizes[base] = file.size
            headers[base] = read_header(file, f"{storage.path}/{name}")
        except InvalidContent:
            continue
        finally:
            file.close()
        _check_file(f"{storage.path}/{name}", base, sizes[base], headers[base])
    identities = {header.identity for header in headers.values()} | ({copy.identity} if copy else set())
    if len(identities) != 1:
        raise NotRepairable(
            f"{storage.path}: segment headers name {', '.join(map(str, identities)) or 'none'}, and it must be one: "
            f"give --from a copy of this journal, and leave only its segments here"
        )
    (identity,) = identities
    broken = [
        BrokenSegment(SegmentHeader(identity, base, sizes[base]), is_missing=False)
        for base in sizes
        if base not in headers
    ]
    return broken + _missing(storage.path, identity, sizes, copy, known)


def _check_file(where: str, base: Lsn, size: int, header: SegmentHeader) -> None:
    if header.base != base:
        raise NotRepairable(f"{where} is the segment {segment_name(header.base)}: give it that name again")
    if header.size != size:
        raise NotRepairable(
            f"{where} has {size} bytes, not {header.size}: keep a copy of it, make it as long as it was "
            f"(`truncate -s {header.size}`), and repair again"
        )


def _missing(
    path: str, identity: JournalIdentity, sizes: dict[Lsn, int], copy: Segments | None, known: int
) -> list[BrokenSegment]:
    """Return segments for every gap between files, with boundaries as in *copy*, and after the last up to *known*."""
    theirs = {base: file.size for base, file in copy} if copy else {}
    bases = sorted(sizes)
    made: dict[Lsn, int] = {}
    for base, following in [*pairwise(bases), (bases[-1], max(known, bases[-1] + sizes[bases[-1]]))]:
        at = Lsn(base + sizes[base])
        if at > following:
            raise NotRepairable(f"{path}: {segment_name(base)} overlaps {segment_name(following)}: leave one of them")
        while at < following:
            is_last = base == bases[-1]
            size = theirs.get(at, sizes[base] if is_last else min(following - at, SEGMENT_BYTES_MAX - 4096))
            if not is_last:
                size = min(size, following - at)
            made[at] = size
            at = Lsn(at + size)
    return [BrokenSegment(SegmentHeader(identity, base, size), is_missing=True) for base, size in made.items()]


def repair_segments(storage: Storage, broken: list[BrokenSegment]) -> None:
    """Write the headers and files of *broken*; durable on return. Raises StorageFailed, and can then be repeated."""
    for segment in broken:
        head, base = segment.header.pack(), segment.header.base
        if segment.is_missing:
            storage.create(segment.name, segment.header.size, head).close()
            continue
        file = storage.open(segment.name, writable=True)
        try:
            found, stopped_at = read_some(file.reader(), 0, SEGMENT_HEADER_BYTES)
            if stopped_at is not None:
                recreate_file(storage, segment.name, head)
                continue
            kept = f"{KEPT_PREFIX}{base:020d}-{base + SEGMENT_HEADER_BYTES:020d}"
            if kept not in storage.names():
                storage.replace(kept, found)
            file.write(0, [head])
            file.sync()
        finally:
            file.close()


def recreate_file(storage: Storage, name: str, head: bytes = b"") -> None:
    """Replace *name* by a new file with the readable bytes of the old one, zeros for the others, and *head* at its
    beginning.

    Keeps the old file, so that nothing else is written to the bad blocks of the disk. Durable on return. Raises
    StorageFailed, and can then be repeated.
    """
    old = storage.open(name, writable=False)
    try:
        new = storage.preallocate(name, old.size, b"", lambda: True)
        try:
            for found in read_past(old.reader(), 0, old.size):
                if not isinstance(found, UnreadableRange) and found[1].count(0) != len(found[1]):
                    new.write(found[0], [found[1]])
            if head:
                new.write(0, [head])
            new.sync()
        finally:
            new.close()
    finally:
        old.close()
    storage.link(name, KEPT_PREFIX + name)
    storage.rename_into_place(name)
