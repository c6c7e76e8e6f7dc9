"""Output of `metaq journal`: records and verdicts as text and as JSON. Pure."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from journal.errors import CorruptJournal
from journal.repair.check import CheckedFile, CheckReport
from journal.repair.damage import Damage
from journal.state.inspection import RecordSummary, StoredMessages
from journal.wal.scan import EndVerdict, ScannedRecord
from meta_client.operations.text import printable, time_text
from meta_client.protocol.compression import CODEC_NUMBERS, Codec, codec_number
from meta_client.protocol.errors import InvalidMessage
from meta_client.protocol.messages import walk_frames


def place_text(place: StoredMessages) -> str:
    offset = "" if place.base is None else f"@{place.base}"
    return f"{place.name}{offset}+{place.bytes} ({place.messages})"


def compressed_in(entry: ScannedRecord) -> dict[str, int]:
    """Count a record's messages by codec; an unknown codec is named by its number."""
    found: dict[str, int] = {}
    body = entry.body
    try:
        for frame in walk_frames(body, verify_checksums=False, data_bytes_max=len(body)):
            if number := codec_number(frame.flag):
                label = Codec(number).label if number in CODEC_NUMBERS else str(number)
                found[label] = found.get(label, 0) + 1
    except InvalidMessage:
        return found  # `metaq audit` reports invalid messages
    return found


def line_text(line: RecordSummary, compressed: Mapping[str, int]) -> str:
    head = f"{line.lsn:>12} {time_text(line.time_ms)} {line.kind:<10} {line.epoch}.{line.incarnation}"
    words = [f"{head} durable={line.durable}", str(line.key or ""), *map(place_text, line.places), line.note]
    words += [f"{label}={messages}" for label, messages in compressed.items()]
    return printable("  ".join(word for word in words if word))


def line_object(line: RecordSummary, compressed: Mapping[str, int]) -> dict[str, Any]:
    return {
        "lsn": line.lsn,
        "kind": line.kind,
        "key": None if line.key is None else str(line.key),
        "branch_lsn": line.branch_lsn,
        "places": [
            {
                "topic": place.name.topic,
                "partition": place.name.partition,
                "base": place.base,
                "bytes": place.bytes,
                "count": place.messages,
            }
            for place in line.places
        ],
        "bytes": line.bytes,
        "compressed": dict(compressed),
        "time_ms": line.time_ms,
        "epoch": line.epoch,
        "incarnation": line.incarnation,
        "durable": line.durable,
        "note": line.note,
    }


def torn_text(lsn: int, reason: str, *, is_held: bool) -> str:
    if is_held:
        return f"torn tail at LSN {lsn} ({reason}): the broker that runs here is writing there; its next start cuts it"
    return (
        f"torn tail at LSN {lsn} ({reason}): no fsync of what stands there ever returned; "
        f"the next start of the broker cuts it"
    )


def unreadable_text(error: CorruptJournal) -> str:
    """Describe segments that do not form one journal."""
    size = "" if error.next_valid_lsn is None else f", up to {_held(error)} bytes"
    corrupt = (
        f"corrupt at LSN {error.lsn} ({error.reason}): the segments do not form one journal; "
        f"keep a copy of the directory, then see `metaq journal repair`"
    )
    return f"{printable(corrupt)}\nunknown: what is affected{size} of any partition: no record was read"


def _held(error: CorruptJournal) -> int | None:
    return None if error.next_valid_lsn is None else error.next_valid_lsn - error.lsn


def unreadable_object(error: CorruptJournal, directory: Path) -> dict[str, Any]:
    return {
        "directory": str(directory),
        "verdict": EndVerdict.CORRUPT.value,
        "sound": False,
        "end": error.lsn,
        "reason": error.reason,
        "resumes": error.next_valid_lsn,
        "affected": {"unknown": [{"bytes": _held(error), "partitions": [], "why": "no record was read"}]},
    }


def report_lines(report: CheckReport, directory: Path, *, is_held: bool) -> Iterator[str]:
    """Yield the report as text; the verdict is the last line, followed only by what is affected."""
    yield printable(
        f"{directory}: journal of {report.identity}, {report.records} records of {report.bytes} bytes "
        f"in {report.segments} segments, LSN {report.start} to {report.end}"
    )
    for start, end in report.dropped:
        yield f"dropped by a repair: LSN {start} to LSN {end}"
    for file in report.checkpoints:
        yield from map(printable, checkpoint_lines(file))
    there = f" at LSN {report.end}" if report.verdict is EndVerdict.CORRUPT else ""  # what follows may have ended it
    for what, keys in (("in doubt", report.prepared), ("active", report.active), ("decided", report.decided)):
        for key in keys:
            yield printable(f"{what}{there}: {key}")
    if report.contradiction is not None:
        yield printable(f"contradiction: {report.contradiction}")
    match report.verdict:
        case EndVerdict.WHOLE:
            yield f"whole: every record up to LSN {report.end} reads back"
        case EndVerdict.TORN:
            yield torn_text(report.end, report.reason, is_held=is_held)
        case EndVerdict.CORRUPT:
            yield printable(
                f"corrupt at LSN {report.end} ({report.reason}): what was once fsynced there does not read back; "
                f"keep a copy of the directory, then see `metaq journal repair`"
            )
            yield from map(printable, damage_lines(report.damage))


def checkpoint_lines(file: CheckedFile) -> Iterator[str]:
    name = f"checkpoint.{file.number}"
    if file.problems:
        yield from (f"{name}: {problem}" for problem in file.problems)
    elif file.compared:
        yield f"{name}: agrees with the records below LSN {file.lsn}"
    else:
        yield f"{name}: up to LSN {file.lsn}, not compared: records below it are gone or do not read back"


def damage_lines(damage: Damage) -> Iterator[str]:
    for gap in damage.gaps:
        end = "the end of the journal" if gap.end is None else f"LSN {gap.end}"
        yield f"affected: LSN {gap.start} to {end} ({gap.reason})"
    for one in damage.unreadable:
        yield f"unreadable: LSN {one.start} to LSN {one.end}: {one.text}"
    for lost in damage.offsets:
        end = "the end of the partition" if lost.end is None else str(lost.end)
        yield f"affected: {lost.name} from offset {lost.start} to {end}: {lost.why}"
    for branch in damage.branches:
        yield f"affected: branch {branch.key}: {branch.why}"
    for unknown in damage.unknown:
        names = ", ".join(map(str, unknown.names))
        of = f" of partitions {names}, and perhaps of others" if names else " of any partition"
        yield f"unknown: up to {unknown.bytes} bytes{of}: {unknown.why}"


def report_object(report: CheckReport, directory: Path, *, is_held: bool) -> dict[str, Any]:
    damage = report.damage
    return {
        "directory": str(directory),
        "verdict": report.verdict.value,
        "sound": report.is_sound,
        "cluster": report.identity.cluster,
        "broker": report.identity.broker_id,
        "held": is_held,
        "segments": report.segments,
        "records": report.records,
        "bytes": report.bytes,
        "start": report.start,
        "end": report.end,
        "reason": None if report.verdict is EndVerdict.WHOLE else report.reason,
        "resumes": report.next_valid_lsn,
        "contradiction": report.contradiction,
        "dropped": [{"start": start, "end": end} for start, end in report.dropped],
        "checkpoints": [
            {"number": file.number, "lsn": file.lsn, "compared": file.compared, "problems": list(file.problems)}
            for file in report.checkpoints
        ],
        "prepared": list(map(str, report.prepared)),
        "active": list(map(str, report.active)),
        "decided": list(map(str, report.decided)),
        "affected": damage_object(damage),
    }


def damage_object(damage: Damage) -> dict[str, Any]:
    return {
        "lsns": [{"start": gap.start, "end": gap.end, "reason": gap.reason} for gap in damage.gaps],
        "unreadable": [{"start": one.start, "end": one.end, "error": one.text} for one in damage.unreadable],
        "offsets": [
            {
                "topic": lost.name.topic,
                "partition": lost.name.partition,
                "start": lost.start,
                "end": lost.end,
                "why": lost.why,
            }
            for lost in damage.offsets
        ],
        "branches": [{"key": str(branch.key), "why": branch.why} for branch in damage.branches],
        "unknown": [
            {
                "bytes": unknown.bytes,
                "partitions": [{"topic": name.topic, "partition": name.partition} for name in unknown.names],
                "why": unknown.why,
            }
            for unknown in damage.unknown
        ],
    }
