"""Which files of a directory hold which LSNs, and which LSNs no file holds. Reads segment headers only.

Where recovery refuses to go on, an audit goes on and reports: a missing segment, a broken segment header, a file
of the wrong length become stretches that do not read back.
"""

from dataclasses import dataclass
from pathlib import Path

from journal.copy_mark import read_mark
from journal.errors import StorageFailed
from journal.segments import SEGMENT_BYTES_MAX, SEGMENT_HEADER_BYTES, Identity, SegmentHeader, read_header, segment_name
from journal.storage import DirectoryStorage

SUFFIX = ".journal"
LSN_MAX = 2**63 - 1  # what a column of Spark holds; no journal comes near
_NAME_DIGITS = 20


@dataclass(frozen=True, slots=True)
class Stretch:
    """Bytes [lsn, end) of the journal that are there, or should be, and are no records."""

    lsn: int
    end: int
    reason: str


@dataclass(frozen=True, slots=True)
class Piece:
    """LSNs [base, end) of the journal: what one Spark task reads.

    *size*: bytes of them that a file holds, 0 when there is none. *stretches*: what is known to be bad already.
    *fsynced*: below it everything was, in a directory that was receiving a copy; None where the records tell.
    """

    base: int
    end: int
    size: int
    is_last: bool
    stretches: tuple[Stretch, ...] = ()
    fsynced: int | None = None


def plan(path: Path) -> list[Piece]:
    """The journal in *path*, in LSN order, without holes: a missing segment is a piece without a file.

    Raises StorageFailed for what is no journal directory, ForeignJournal for another version's.
    """
    bases = _bases(path)
    fsynced = read_mark(DirectoryStorage.open_for_reading(path))
    pieces: list[Piece] = []
    owner: Identity | None = None
    for index, base in enumerate(bases):
        if pieces and pieces[-1].end < base:
            hole = Stretch(pieces[-1].end, base, "a segment is missing")
            pieces.append(Piece(hole.lsn, hole.end, 0, False, (hole,)))
        header, size = _read_header(path, base)
        known: list[Stretch] = []
        end = base + size
        if isinstance(header, str):
            known.append(Stretch(base, base + SEGMENT_HEADER_BYTES, header))
        else:
            owner = owner or header.identity
            known += _contradictions(header, base, size, owner)
            if SEGMENT_HEADER_BYTES < header.size <= SEGMENT_BYTES_MAX:
                end = base + header.size
        if pieces and base < pieces[-1].end:
            known.append(Stretch(base, base + SEGMENT_HEADER_BYTES, f"the segment before it ends at {pieces[-1].end}"))
        pieces.append(Piece(base, end, min(size, end - base), index == len(bases) - 1, tuple(known), fsynced))
    return pieces


def _bases(path: Path) -> list[int]:
    try:
        names = sorted(entry.name for entry in path.iterdir() if entry.name.endswith(SUFFIX))
    except OSError as error:
        raise StorageFailed(f"{path}: {error.strerror}: name the data directory of a broker") from error
    bases = []
    for name in names:
        digits = name.removesuffix(SUFFIX)
        if len(digits) != _NAME_DIGITS or not (digits.isascii() and digits.isdigit()):
            continue  # someone else's file; recovery passes it over too
        if int(digits) > LSN_MAX - SEGMENT_BYTES_MAX:
            raise StorageFailed(f"{path / name}: no journal is that long: restore the file's name")
        bases.append(int(digits))
    if not bases:
        raise StorageFailed(f"{path}: holds no journal segment: name the data directory of a broker, or an archive")
    return bases


def _read_header(path: Path, base: int) -> tuple[SegmentHeader | str, int]:
    """The segment's header, or what is wrong with it; and the bytes that the file has."""
    name = segment_name(base)
    try:
        file = DirectoryStorage.open_for_reading(path).open(name, writable=False)
    except StorageFailed as error:
        raise StorageFailed(f"{error}: read again, retention may have deleted it") from error
    try:
        return read_header(file, str(path / name)), file.size
    finally:
        file.close()


def _contradictions(header: SegmentHeader, base: int, size: int, owner: Identity) -> list[Stretch]:
    reasons = []
    if header.base != base:
        reasons.append(f"the segment header names LSN {header.base}")
    if header.identity != owner:
        reasons.append(f"belongs to {header.identity}, the journal to {owner}")
    if not SEGMENT_HEADER_BYTES < header.size <= SEGMENT_BYTES_MAX:
        reasons.append(f"the segment header names a size of {header.size} bytes")
    elif size != header.size:
        short = f"a file of {size} bytes that should hold {header.size}"
        if size < header.size:
            return [Stretch(base + size, base + header.size, short)]
        reasons.append(short)
    return [Stretch(base, base + SEGMENT_HEADER_BYTES, "; ".join(reasons))] if reasons else []
