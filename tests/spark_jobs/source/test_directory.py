"""Listing of a directory, after any change to its files."""

import struct
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from journal.errors import ForeignJournal, StorageFailed
from journal.records.header import Lsn
from journal.wal.segments import JournalIdentity, SegmentHeader, segment_name
from spark_jobs.source.directory import MissingRange, SegmentSlice
from spark_jobs.source.locations import plan
from tests.spark_jobs.journals import IDENTITY, SEGMENT_BYTES, segment_bases


def test_segments_in_order(honest: Path) -> None:
    bases = segment_bases(honest)
    (honest / "00000000000000000000.journal.tmp").write_bytes(b"")
    (honest / "notes.journal").write_bytes(b"mine")
    assert plan(honest) == [
        SegmentSlice(base, base + SEGMENT_BYTES, SEGMENT_BYTES, base == bases[-1]) for base in bases
    ]


def test_a_missing_segment_is_a_gap(honest: Path) -> None:
    _, second, third, *_ = segment_bases(honest)
    (honest / segment_name(second)).unlink()
    gap = plan(honest)[1]
    assert gap == SegmentSlice(second, third, 0, False, (MissingRange(second, third, "a segment is missing"),))


def test_retention_meanwhile_is_no_failure(tmp_path: Path) -> None:
    """Segments go, the oldest first, while the directory is listed and their headers are read."""
    bases = range(0, 400 * SEGMENT_BYTES, SEGMENT_BYTES)
    for base in bases:
        with (tmp_path / segment_name(base)).open("wb") as file:
            file.write(SegmentHeader(IDENTITY, Lsn(base), SEGMENT_BYTES).pack())
            file.truncate(SEGMENT_BYTES)

    def retain() -> None:
        for base in bases[:-100]:
            (tmp_path / segment_name(base)).unlink()
            time.sleep(0.002)

    with ThreadPoolExecutor(1) as meanwhile:
        retaining = meanwhile.submit(retain)
        while not retaining.done():
            begin = plan(tmp_path)[0].base
            assert [each.base for each in plan(tmp_path)][-100:] == [*bases[-100:]]
            assert begin <= bases[-100]
        retaining.result()
    (tmp_path / segment_name(bases[-99])).unlink()
    (tmp_path / segment_name(bases[-99])).symlink_to("nowhere")
    with pytest.raises(StorageFailed, match="No such file or directory: read again"):
        plan(tmp_path)


def test_a_truncated_segment(honest: Path) -> None:
    base = segment_bases(honest)[1]
    with (honest / segment_name(base)).open("r+b") as file:
        file.truncate(5000)
    segment = plan(honest)[1]
    reason = f"a file of 5000 bytes that should hold {SEGMENT_BYTES}"
    bad = MissingRange(base + 5000, base + SEGMENT_BYTES, reason)
    assert segment == SegmentSlice(base, base + SEGMENT_BYTES, 5000, False, (bad,))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda raw: b"", "no segment header"),
        (lambda raw: bytes(128) + raw[128:], "no segment header"),
        (lambda raw: raw[:20] + b"\xff" + raw[21:], "segment header checksum"),
        (
            lambda raw: SegmentHeader(JournalIdentity("test", 4), SEGMENT_BYTES, SEGMENT_BYTES).pack() + raw[128:],  # type: ignore[arg-type]  # an Lsn is an int
            "belongs to broker 4 of cluster 'test', the journal to broker 3 of cluster 'test'",
        ),
        (
            lambda raw: SegmentHeader(JournalIdentity("test", 3), 64, SEGMENT_BYTES).pack() + raw[128:],  # type: ignore[arg-type]  # an Lsn is an int
            "the segment header names LSN 64",
        ),
        (
            lambda raw: SegmentHeader(JournalIdentity("test", 3), SEGMENT_BYTES, 1 << 60).pack() + raw[128:],  # type: ignore[arg-type]  # an Lsn is an int
            f"the segment header names a size of {1 << 60} bytes",
        ),
        (lambda raw: raw + b"more", f"a file of {SEGMENT_BYTES + 4} bytes that should hold {SEGMENT_BYTES}"),
    ],
)
def test_a_broken_segment_header(honest: Path, damage: Callable[[bytes], bytes], reason: str) -> None:
    file = honest / segment_name(SEGMENT_BYTES)
    file.write_bytes(damage(file.read_bytes()))
    unreadable = [
        unreadable for segment in plan(honest) for unreadable in segment.unreadable if unreadable.lsn == SEGMENT_BYTES
    ]
    assert reason in [unreadable.reason for unreadable in unreadable]


def test_another_versions_journal_is_refused(honest: Path) -> None:
    file = honest / segment_name(0)
    raw = bytearray(file.read_bytes())
    raw[8] += 1
    raw[124:128] = struct.pack("<I", zlib.crc32(raw[:124]))
    file.write_bytes(raw)
    with pytest.raises(ForeignJournal, match="journal format 2, this metaq reads 1"):
        plan(honest)


def test_what_is_no_journal_says_what_to_name_instead(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed, match=r"No such file or directory: name the data directory of a broker"):
        plan(tmp_path / "nowhere")
    with pytest.raises(StorageFailed, match="holds no journal segment: name the data directory"):
        plan(tmp_path)
    (tmp_path / f"{'9' * 20}.journal").write_bytes(b"")
    with pytest.raises(StorageFailed, match="no journal is that long"):
        plan(tmp_path)
