"""Checks an archive against its manifest: which segments it lists, and whether the files are those.

The workers take the SHA-256 of every file; the driver compares some hundred bytes a segment.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql import Row, SparkSession

from journal.archive.keeper import ArchiveReader
from journal.archive.manifest import NAME, ArchiveManifest, decode_archive_manifest
from journal.archive.places import archive_place
from journal.errors import InvalidContent, StorageFailed
from journal.wal.segments import segment_base, segment_name
from spark_jobs.source.locations import JournalLocation
from spark_jobs.source.schemas import FindingRow, Long, Text, arrow_schema, spark_schema
from spark_jobs.source.worker_rows import worker_rows

FORMAT: Final = "metaq-archive-files"


class ArchivedFileRow(NamedTuple):
    """One segment file as it is; an empty *sha256*: it can't be read, and *problem* says why."""

    base: Long
    size: Long
    sha256: Text
    problem: Text


@dataclass(frozen=True, slots=True)
class ArchiveResult:
    """Result of the check. *listed_end*: LSN behind the last segment that a whole manifest lists; None without one."""

    findings: list[FindingRow]
    unknown: list[str]
    segments: int
    listed_end: int | None


def is_archive(place: JournalLocation) -> bool:
    """Return True if *place* has a manifest; a URL names nothing else."""
    return isinstance(place, str) or (place / NAME).is_file()


def check_archive(spark: SparkSession, archive: JournalLocation, directory_from: int | None) -> ArchiveResult:
    """Compare *archive* with its manifest. *directory_from*: LSN from which on the broker's directory, listed before
    this call, has the segments itself; None: there is none.

    Raises StorageFailed.
    """
    path = str(archive if isinstance(archive, str) else archive.absolute())
    place = archive_place(path)
    try:
        manifest = _manifest(place)
        bases = sorted(base for name in place.names() if (base := segment_base(name)) is not None)
        rows: list[Row] = []
        if bases and manifest:
            read = partial(_read_file, path)
            rows = worker_rows(spark, FORMAT, bases, read, spark_schema(ArchivedFileRow)).collect()
        later = _manifest(place)
    except InvalidContent as error:
        found = FindingRow("manifest damaged", 0, 0, path, f"does not read back: {error}")
        return ArchiveResult([found], [], 0, None)
    if manifest is None:
        return ArchiveResult([], [f"{path} has no {NAME}: nothing tells which segments it should hold"], 0, None)
    by_base = {row["base"]: ArchivedFileRow(*row) for row in rows}
    findings = list(_findings(manifest, later or manifest, by_base, directory_from))
    return ArchiveResult(findings, [], len(manifest.entries), manifest.end)


def _manifest(place: ArchiveReader) -> ArchiveManifest | None:
    data = place.read(NAME)
    return None if data is None else decode_archive_manifest(data)


def _findings(
    manifest: ArchiveManifest, later: ArchiveManifest, files: dict[int, ArchivedFileRow], directory_from: int | None
) -> Iterator[FindingRow]:
    """Compare *files* with the manifest before they were listed, and what is not in that with a *later* one: a segment
    is stored first, then listed."""
    for entry in manifest.entries:
        subject, base = f"the segment at LSN {entry.base}", entry.base
        is_in_directory = directory_from is not None and base >= directory_from
        if (file := files.get(base)) is None:
            if not is_in_directory:
                yield FindingRow("segment missing", base, base, subject, f"is listed in {NAME}, and not here")
        elif not file.sha256:
            yield FindingRow("segment unreadable", base, base, subject, f"can't be read: {file.problem}")
        elif (file.size, file.sha256) != (entry.size, entry.sha256):
            detail = f"has SHA-256 {file.sha256}, {NAME} lists {entry.sha256}: it was changed or exchanged"
            yield FindingRow("segment exchanged", base, base, subject, detail)
    listed = {entry.base for entry in (*manifest.entries, *later.entries)}
    for base in sorted(files.keys() - listed):
        if directory_from is None or base < directory_from:  # else it is on its way here
            yield FindingRow("not listed", base, base, f"the segment at LSN {base}", f"is here, and not in {NAME}")
    if directory_from is not None and manifest.end < directory_from:
        detail = f"ends at LSN {manifest.end}, the directory begins at {directory_from}"
        yield FindingRow("segment missing", manifest.end, directory_from, "the archive", detail)


def _read_file(archive: str, base: int) -> Iterator[pa.RecordBatch]:
    """Yield the row of one segment file."""
    digest, size, problem = hashlib.sha256(), 0, ""

    def add(block: bytes) -> None:
        nonlocal size
        digest.update(block)
        size += len(block)

    try:
        if not archive_place(archive).download(segment_name(base), add):
            problem = "it is gone since the archive was listed"
    except StorageFailed as error:
        problem = str(error)
    row = ArchivedFileRow(base, size, "" if problem else digest.hexdigest(), problem)
    yield pa.RecordBatch.from_pylist([row._asdict()], schema=arrow_schema(ArchivedFileRow))
