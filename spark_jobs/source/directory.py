"""Maps the LSNs of a journal to the files of a directory, and finds those without a file. Reads segment headers only.

An audit continues where recovery refuses to: a missing segment, a broken segment header, or a file of the wrong length
become unreadable ranges.
"""

from dataclasses import dataclass
from errno import ENOENT
from pathlib import Path

from journal.errors import InvalidContent, StorageFailed
from journal.state.copy_marks import refuse_backup
from journal.wal.marks import read_recovery_point
from journal.wal.segments import (
    SEGMENT_BYTES_MAX,
    SEGMENT_HEADER_BYTES,
    JournalIdentity,
    SegmentHeader,
    read_header,
    segment_name,
)
from journal.wal.storage import DirectoryStorage

SUFFIX = ".journal"
LSN_MAX = 2**63 - 1  # the limit of a Spark column; no journal comes near
_NAME_DIGITS = 20


@dataclass(frozen=True, slots=True)
class MissingRange:
    """Bytes [lsn, end) of the journal that are missing or hold no valid records."""

    lsn: int
    end: int
    reason: str


@dataclass(frozen=True, slots=True)
class SegmentSlice:
    """LSNs [base, end) of the journal, read by one task.

    *size*: bytes of them in the file, 0 without one. *unreadable*: ranges known to be bad already. *fsynced*: LSN below
    which everything was fsynced, in a directory that was receiving a copy; None if the records say it. *sha256*: of the
    whole file, if a manifest tells.
    """

    base: int
    end: int
    size: int
    is_last: bool
    unreadable: tuple[MissingRange, ...] = ()
    fsynced: int | None = None
    sha256: str = ""


def missing_slice(base: int, end: int, reason: str) -> SegmentSlice:
    """Return a slice without a file."""
    return SegmentSlice(base, end, 0, False, (MissingRange(base, end, reason),))


def plan_directory(path: Path) -> list[SegmentSlice]:
    """Return slices of the journal in *path*, in LSN order without gaps: a missing segment is a slice without a file.

    Raises StorageFailed if *path* is no journal directory, DirectoryIsBackup for a copy that was interrupted,
    ForeignJournal for another version's.
    """
    bases = _bases(path)
    while True:
        try:
            return _slices(path, bases)
        except StorageFailed as error:
            before, bases = bases, _bases(path)
            if error.errno != ENOENT or bases[0] == before[0]:
                raise
            # Retention, which takes the oldest first, has deleted some meanwhile.


def _slices(path: Path, bases: list[int]) -> list[SegmentSlice]:
    storage = DirectoryStorage.open_for_reading(path)
    refuse_backup(storage, is_read=True)
    fsynced = read_recovery_point(storage)
    slices: list[SegmentSlice] = []
    owner: JournalIdentity | None = None
    for index, base in enumerate(bases):
        if slices and slices[-1].end < base:
            slices.append(missing_slice(slices[-1].end, base, "a segment is missing"))
        header, size = _read_header(path, base)
        known: list[MissingRange] = []
        end = base + size
        if isinstance(header, InvalidContent):
            known.append(MissingRange(base, base + SEGMENT_HEADER_BYTES, str(header)))
        else:
            owner = owner or header.identity
            known += _contradictions(header, base, size, owner)
            if SEGMENT_HEADER_BYTES < header.size <= SEGMENT_BYTES_MAX:
                end = base + header.size
        if slices and base < slices[-1].end:
            known.append(
                MissingRange(base, base + SEGMENT_HEADER_BYTES, f"the segment before it ends at {slices[-1].end}")
            )
        slices.append(SegmentSlice(base, end, min(size, end - base), index == len(bases) - 1, tuple(known), fsynced))
    return slices


def _bases(path: Path) -> list[int]:
    try:
        names = sorted(entry.name for entry in path.iterdir() if entry.name.endswith(SUFFIX))
    except OSError as error:
        raise StorageFailed(f"{path}: {error.strerror}: name the data directory of a broker") from error
    bases = []
    for name in names:
        digits = name.removesuffix(SUFFIX)
        if len(digits) != _NAME_DIGITS or not (digits.isascii() and digits.isdigit()):
            continue  # not a segment; recovery ignores it too
        if int(digits) > LSN_MAX - SEGMENT_BYTES_MAX:
            raise StorageFailed(f"{path / name}: no journal is that long: restore the file's name")
        bases.append(int(digits))
    if not bases:
        raise StorageFailed(f"{path}: holds no journal segment: name the data directory of a broker, or an archive")
    return bases


def _read_header(path: Path, base: int) -> tuple[SegmentHeader | InvalidContent, int]:
    """Return the segment's header, or what is wrong with it; and the size of the file."""
    name = segment_name(base)
    try:
        file = DirectoryStorage.open_for_reading(path).open(name, writable=False)
    except StorageFailed as error:
        raise StorageFailed(f"{error}: read again, retention may have deleted it") from error
    try:
        return read_header(file, str(path / name)), file.size
    except InvalidContent as error:
        return error, file.size
    finally:
        file.close()


def _contradictions(header: SegmentHeader, base: int, size: int, owner: JournalIdentity) -> list[MissingRange]:
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
            return [MissingRange(base + size, base + header.size, short)]
        reasons.append(short)
    return [MissingRange(base, base + SEGMENT_HEADER_BYTES, "; ".join(reasons))] if reasons else []
