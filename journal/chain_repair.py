"""Making one journal of segment files again: headers that rotted are written anew, missing files made, full of zeros.

Nothing that reads back is touched, and what the missing files held is for `journal.repair` to restore or to drop.
"""

from dataclasses import dataclass
from itertools import pairwise

from journal.errors import NotRepairable
from journal.frame import Lsn
from journal.segments import (
    SEGMENT_BYTES_MAX,
    SEGMENT_HEADER_BYTES,
    Identity,
    SegmentHeader,
    Segments,
    segment_base,
    segment_name,
)
from journal.storage import Storage

KEPT_PREFIX = "before-repair."  # of the files that hold what a repair changed


@dataclass(frozen=True, slots=True)
class BrokenSegment:
    """A segment whose header must be written; *is_missing*: so must the file."""

    header: SegmentHeader
    is_missing: bool

    @property
    def name(self) -> str:
        return segment_name(self.header.base)


def find_broken(storage: Storage, copy: Segments | None, known: int) -> list[BrokenSegment]:
    """What keeps the segments in *storage* from being read as one journal; nothing is changed.

    *copy*: another directory of the same journal. *known*: the highest LSN that a checkpoint knows. Raises
    NotRepairable, ForeignJournal, StorageFailed.
    """
    sizes: dict[Lsn, int] = {}
    headers: dict[Lsn, SegmentHeader] = {}
    for name in storage.names():
        if (base := segment_base(name)) is None:
            continue
        file = storage.open(name, writable=False)
        try:
            sizes[base] = file.size
            header = SegmentHeader.unpack(bytes(file.view()[:SEGMENT_HEADER_BYTES]), f"{storage.path}/{name}")
        finally:
            file.close()
        if isinstance(header, SegmentHeader):
            headers[base] = header
            _check_file(f"{storage.path}/{name}", base, sizes[base], header)
    identities = {header.identity for header in headers.values()} | ({copy.identity} if copy else set())
    if len(identities) != 1:
        raise NotRepairable(
            f"{storage.path}: segment headers name {', '.join(map(str, identities)) or 'nobody'}, and it must be one: "
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
    path: str, identity: Identity, sizes: dict[Lsn, int], copy: Segments | None, known: int
) -> list[BrokenSegment]:
    """Segments for every gap between files, cut as *copy* has them, and behind the last up to *known*."""
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


def mend_chain(storage: Storage, broken: list[BrokenSegment]) -> None:
    """Write what *broken* names; durable on return. Raises StorageFailed, and can be done again then."""
    for segment in broken:
        head, base = segment.header.pack(), segment.header.base
        if segment.is_missing:
            storage.create(segment.name, segment.header.size, head).close()
            continue
        file = storage.open(segment.name, writable=True)
        try:
            kept = f"{KEPT_PREFIX}{base:020d}-{base + SEGMENT_HEADER_BYTES:020d}"
            if kept not in storage.names():
                storage.replace(kept, bytes(file.view()[:SEGMENT_HEADER_BYTES]))
            file.write(0, [head])
            file.sync()
        finally:
            file.close()
