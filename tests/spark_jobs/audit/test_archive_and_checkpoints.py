"""Files of an archive, and of checkpoints, compared with what they should hold: without Spark."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from journal.archive.manifest import ArchiveManifest
from journal.state.checkpoint import FORMAT, BranchEntry, Checkpoint, PartitionEntry, encode_checkpoint
from journal.state.extent_entries import ExtentEntry
from journal.wal.segments import JournalIdentity
from spark_jobs.audit.archive_check import ArchivedFileRow, _findings
from spark_jobs.audit.checkpoint_files import read_checkpoints
from spark_jobs.source.directory import LSN_MAX

SIZE = 4096
SHA = [f"{number:064x}" for number in range(6)]
MANIFEST = ArchiveManifest(JournalIdentity("metaq", 0)).with_segment(0, SIZE, SHA[0]).with_segment(SIZE, SIZE, SHA[1])
FILES = {0: ArchivedFileRow(0, SIZE, SHA[0], ""), SIZE: ArchivedFileRow(SIZE, SIZE, SHA[1], "")}


@pytest.mark.parametrize(
    ("changes", "directory_from", "found"),
    [
        ({}, None, []),
        ({}, SIZE * 2, []),
        ({SIZE: None}, None, [("segment missing", SIZE)]),
        ({SIZE: None}, SIZE, []),
        ({SIZE: ArchivedFileRow(SIZE, 0, "", "no such sector")}, None, [("segment unreadable", SIZE)]),
        ({SIZE: ArchivedFileRow(SIZE, SIZE, SHA[2], "")}, None, [("segment exchanged", SIZE)]),
        ({2 * SIZE: ArchivedFileRow(2 * SIZE, SIZE, SHA[2], "")}, None, [("not listed", 2 * SIZE)]),
        ({2 * SIZE: ArchivedFileRow(2 * SIZE, SIZE, SHA[2], "")}, 2 * SIZE, []),
        ({}, 3 * SIZE, [("segment missing", 2 * SIZE)]),
    ],
)
def test_what_an_archive_lacks_or_has_beyond_its_manifest(
    changes: Mapping[int, ArchivedFileRow | None], directory_from: int | None, found: list[tuple[str, int]]
) -> None:
    files = {base: row for base, row in {**FILES, **changes}.items() if row is not None}
    assert [tuple(row)[:2] for row in _findings(MANIFEST, MANIFEST, files, directory_from)] == found


def test_a_segment_that_is_listed_while_files_are_read_is_no_finding() -> None:
    """Nor is one missing that was stored behind the files that were read."""
    stored = FILES | {2 * SIZE: ArchivedFileRow(2 * SIZE, SIZE, SHA[2], "")}
    later = MANIFEST.with_segment(2 * SIZE, SIZE, SHA[2]).with_segment(3 * SIZE, SIZE, SHA[3])
    assert not list(_findings(MANIFEST, later, stored, None))


def checkpoint(extent_bytes: int) -> Checkpoint:
    partition = PartitionEntry(topic="orders", partition=0, start=0, end=7)
    extents = (ExtentEntry("orders", 0, 128, extent_bytes, 1, 5),) * 2
    branch = BranchEntry(key="XID:1:67:62:q", state="IN_USE", first_lsn=1, began_ms=5, prepared_ms=0, extents=extents)
    return Checkpoint(
        format=FORMAT, lsn=1, epoch=1, incarnation=1, time_ms=1, partitions=[partition], branches=[branch]
    )


def test_checkpoints_that_do_not_read_back_or_hold_what_no_column_does_are_named(tmp_path: Path) -> None:
    whole = checkpoint(7)
    for number, data in enumerate((encode_checkpoint(whole), b"damaged", encode_checkpoint(checkpoint(LSN_MAX)))):
        (tmp_path / f"checkpoint.{number}").write_bytes(bytes(data))
    found = read_checkpoints(tmp_path)
    assert (found.valid, found.newest) == ({0: whole}, 0)
    assert set(found.damaged) == {1, 2}
    assert found.damaged[2] == f"a branch sums up to more than {LSN_MAX}"
    assert [tuple(row) for row in found.log_starts()] == [("orders", 0, 0)]
    assert read_checkpoints("s3://bucket/archive").log_starts() == []
