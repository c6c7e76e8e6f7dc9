"""Checks where the journal begins and ends, and tells what vouches for that: a journal that lost its first or last
segment reads back as well as a whole one."""

from dataclasses import dataclass, field
from pathlib import Path

from journal.errors import StorageFailed
from journal.records.header import HEADER_BYTES
from journal.wal.marks import SavedWatermark
from journal.wal.segments import segment_name, unnamed_base
from journal.wal.storage import DirectoryStorage
from spark_jobs.audit.checkpoint_files import Checkpoints, read_checkpoints
from spark_jobs.audit.report import SourcedClaim
from spark_jobs.source.locations import JournalLocation
from spark_jobs.source.schemas import FindingRow


@dataclass(slots=True)
class RangeResult:
    """Result of the check. *vouched_end*: records below it can't be missing; None: nothing says so. *unknown*: why the
    range is not known, empty if it is."""

    findings: list[FindingRow] = field(default_factory=list)
    evidence: list[SourcedClaim] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    vouched_end: int | None = None


@dataclass(frozen=True, slots=True)
class ReadRange:
    """LSNs [first, end) that were read, in segments up to *segments_end*. *named*: number and LSN of the newest
    CHECKPOINT record; None without one."""

    first: int
    end: int
    segments_end: int
    named: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Vouchers:
    """Facts read before the records: checkpoints, the saved high watermark, and where an archive's manifest ends."""

    checkpoints: Checkpoints
    saved: SavedWatermark | None
    listed_end: int | None


def check_range(place: JournalLocation, vouchers: Vouchers, read: ReadRange) -> RangeResult:
    """Check both ends. *vouchers* were read before the records, and the call comes after: then a live broker never
    looks as if it had lost something.

    Raises StorageFailed.
    """
    result = RangeResult()
    _check_start(place, vouchers.checkpoints, read, result)
    _vouch_for_end(vouchers, read, result)
    _check_end(place, vouchers, read, result)
    return result


def _check_start(place: JournalLocation, checkpoints: Checkpoints, read: ReadRange, result: RangeResult) -> None:
    first = read.first
    if first == 0:
        result.evidence.append(
            SourcedClaim("nothing stood before the first record", 0, 0, "LSN 0: the journal's birth")
        )
        return
    claim = f"nothing but what retention deleted stood below LSN {first}"
    if checkpoints.newest is None:
        result.unknown.append(f"no checkpoint says that the journal may begin at LSN {first}")
        result.evidence.append(
            SourcedClaim(claim, 0, first, "no checkpoint names where the partitions begin", is_vouched=False)
        )
        return
    number, at = checkpoints.newest, checkpoints.valid[checkpoints.newest].lsn
    # Retention may have gone on with a newer one meanwhile.
    if at < first and (newest := read_checkpoints(place).valid):
        number, at = max((number, checkpoint.lsn) for number, checkpoint in newest.items())
    if at < first:
        detail = f"goes on at LSN {at}, the first segment begins at {first}"
        result.findings.append(FindingRow("segment missing", at, at, f"checkpoint.{number}", detail))
    result.evidence.append(
        SourcedClaim(claim, 0, first, f"checkpoint.{number}, which names where the partitions begin")
    )


def _vouch_for_end(vouchers: Vouchers, read: ReadRange, result: RangeResult) -> None:
    first, end, saved = read.first, read.end, vouchers.saved
    sources = [
        (checkpoint.lsn, f"checkpoint.{number}, written when they were durable")
        for number, checkpoint in vouchers.checkpoints.valid.items()
        if checkpoint.lsn > first
    ]
    if vouchers.listed_end is not None and vouchers.listed_end > first:
        sources.append((vouchers.listed_end, "the archive's manifest, which lists their segments"))
    if saved is not None and saved.is_whole and saved.lsn > first:
        sources.append((saved.lsn, "the file watermark: they were acknowledged"))
        if saved.lsn > end:
            detail = f"says that everything below LSN {saved.lsn} was acknowledged, the records end at LSN {end}"
            result.findings.append(FindingRow("acknowledged and missing", end, saved.lsn, "the file watermark", detail))
    if sources:
        lsn, source = max(sources)
        result.vouched_end = min(lsn, end)
        result.evidence.append(SourcedClaim("no record of these is missing", first, result.vouched_end, source))


def _check_end(place: JournalLocation, vouchers: Vouchers, read: ReadRange, result: RangeResult) -> None:
    _look_behind(place, read, result)
    vouched = read.first if result.vouched_end is None else result.vouched_end
    reasons = []
    if result.vouched_end is None:
        missing = "no checkpoint, no watermark and no manifest"
        if read.named is not None:
            missing = f"no checkpoint.{read.named[0]}, which the record at LSN {read.named[1]} tells of"
        reasons.append(missing)
    is_listed = vouchers.listed_end == read.segments_end  # an archive ends with a full segment
    if read.end > read.segments_end - HEADER_BYTES and not is_listed and not _exists(place, read.segments_end):
        reasons.append("the last segment is full, and the next one is not here")
    result.unknown += [f"{reason}: more records may have followed LSN {read.end}" for reason in reasons]
    why = "; ".join(reasons) or "what comes behind the newest checkpoint reads back, others may have followed it"
    result.evidence.append(
        SourcedClaim(f"the journal ends at LSN {read.end}", vouched, read.end, why, is_vouched=False)
    )


def _look_behind(place: JournalLocation, read: ReadRange, result: RangeResult) -> None:
    """Find a segment made ahead of need behind one that is not there: it is made when the one before has its name."""
    for name in DirectoryStorage.open_for_reading(place).names() if isinstance(place, Path) else ():
        if (
            (base := unnamed_base(name)) is not None
            and base > read.segments_end
            and not _exists(place, read.segments_end)
        ):
            detail = f"was made when the segments up to there had their names, but they end at LSN {read.segments_end}"
            result.findings.append(FindingRow("segment missing", read.segments_end, base, name, detail))


def _exists(place: JournalLocation, base: int) -> bool:
    if not isinstance(place, Path):
        return False  # an archive has what its manifest lists, and the segments read are those
    try:
        return (place / segment_name(base)).exists()
    except OSError as error:
        raise StorageFailed(f"{place / segment_name(base)}: {error.strerror}") from error
