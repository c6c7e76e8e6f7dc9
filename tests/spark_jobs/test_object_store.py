"""An archive in a real S3 server is read by its URL: what its manifest lists, or an error that names the object."""

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes

from journal.archive.keeper import SegmentKeeper
from journal.archive.manifest import ArchiveManifest, decode_archive_manifest
from journal.archive.places import archive_place
from journal.errors import StorageFailed
from journal.wal.segments import Segments, segment_name
from journal.wal.storage import DirectoryStorage
from spark_jobs.audit.audit import audit_journal
from spark_jobs.formats import register
from spark_jobs.messages.segments import DataLost
from spark_jobs.source.locations import plan
from tests.fixtures.forked import run_metaq
from tests.fixtures.s3_server import S3Server
from tests.meta_broker.store.test_object_archive import bucket
from tests.spark_jobs.journals import SEGMENT_BYTES, segment_bases
from tests.spark_jobs.messages.test_journal_stream import batches, stream_of, whole
from tests.spark_jobs.messages.test_published import read


@dataclass
class Archive:
    """An archive at *url*, and the same segments in the directory *copy*; *rest*: where the others are."""

    url: str
    copy: Path
    rest: Path
    files: Any

    def path(self, number: int) -> str:
        """Return the object of a segment."""
        return f"{self.url.removeprefix('s3://')}/{segment_name(segment_bases(self.copy)[number])}"


def archived(honest: Path, tmp_path: Path, url: str, files: Any) -> Archive:
    """Archive all segments but the last one at *url*."""
    whole, copy = shutil.copytree(honest, tmp_path / "whole"), tmp_path / "copy"
    copy.mkdir()
    storage = DirectoryStorage.open_for_writing(honest)
    segments = Segments.open(storage, None, SEGMENT_BYTES, writable=True)
    bases = segment_bases(honest)
    segments.drop_before(bases[-1], SegmentKeeper(archive_place(url)))
    segments.close()
    storage.close()
    for base in bases[:-1]:
        shutil.copy(whole / segment_name(base), copy)
    return Archive(url, copy, honest, files)


@pytest.fixture
def archive(honest: Path, tmp_path: Path, s3: S3Server, request: pytest.FixtureRequest) -> Archive:
    name = request.node.name.replace("_", "-")[:40].strip("-")
    return archived(honest, tmp_path, f"s3://{name}/b3", bucket(name))


def read_url(archive: Archive, *, fails: bool = True) -> list[dict[str, Any]]:
    return read(archive.url, fails=fails)


@pytest.fixture
def spark_with_store(spark: SparkSession, s3: S3Server) -> Iterator[SparkSession]:
    """The worker's Spark, whose Python workers find the store by their environment."""
    environment = spark.sparkContext.environment
    given = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    assert s3.endpoint in given.values()
    environment.update(given)
    register(spark)  # with that environment
    yield spark
    for name in given:
        del environment[name]
    register(spark)


def test_workers_read_what_a_copy_of_the_segments_gives(archive: Archive, spark_with_store: SparkSession) -> None:
    assert len(plan(archive.url)) > 1
    expected = read(archive.copy)
    assert read_url(archive) == expected
    names = ("topic", "partition", "offset", "payload")
    messages = spark_with_store.read.format("metaq").schema(
        "topic STRING, partition STRING, offset BIGINT, payload BINARY"
    )
    rows = messages.option("path", archive.url).load().collect()
    assert sorted(tuple(row[name] for name in names) for row in rows) == sorted(
        tuple(row[name] for name in names) for row in expected
    )


def test_a_stream_of_a_broker_goes_on_in_its_archive(archive: Archive) -> None:
    (end, first), *_ = batches(stream_of(archive.copy), ReadMaxBytes(5_000))
    rest = [rows for _, rows in batches(stream_of(archive.url), ReadMaxBytes(1), start=end)]
    assert len(rest) > 1, "a segment each"
    assert [*first, *(row for rows in rest for row in rows)] == whole(archive.copy)


@pytest.mark.parametrize("scheme", ["file://", ""])
@pytest.mark.parametrize("fails", ["true", "false"])
def test_an_archive_that_does_not_hold_yet_what_a_stream_has_read(
    honest: Path, tmp_path: Path, scheme: str, fails: str
) -> None:
    """No record is lost, and with failOnDataLoss=false none is read twice."""
    (tmp_path / "archive").mkdir()
    archive = archived(honest, tmp_path, f"{scheme}{tmp_path}/archive", None)
    *_, (end, _) = batches(stream_of(tmp_path / "whole"))
    stream = stream_of(archive.url, failOnDataLoss=fails)
    told = f"ends at LSN {segment_bases(archive.rest)[0]}, and was read up to .*wait until .*, or name the directory"
    with pytest.raises(StorageFailed, match=told):
        stream.latestOffset(end, ReadAllAvailable())
    with pytest.raises(StorageFailed, match=told):
        stream.partitions(stream.initialOffset(), end)


def test_an_archive_that_has_lost_its_end_is_another_one(honest: Path, tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    archive = archived(honest, tmp_path, f"file://{tmp_path}/archive", None)
    *_, (end, _) = batches(stream_of(archive.url))
    manifest = tmp_path / "archive" / "manifest.jsonl"
    manifest.write_bytes(b"".join(manifest.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(DataLost, match="is not the journal that was read"):
        stream_of(archive.url).latestOffset(end, ReadAllAvailable())


def test_the_audit_reads_a_url_alone_and_with_its_directory(honest: Path, tmp_path: Path, spark: SparkSession) -> None:
    """The URL is a directory's: of a store that this Spark, which other tests share, knows nothing of."""
    (tmp_path / "archive").mkdir()
    archive = archived(honest, tmp_path, f"file://{tmp_path}/archive", None)
    report = audit_journal(spark, archive.rest, archive=archive.url)
    assert report.holds, report.as_json()
    assert (report.totals.first_lsn, report.totals.messages) == (0, 300 + 1 + 2 + 6)
    # Changed in the padding, which no record holds: only the manifest tells.
    changed, removed = (tmp_path / "archive" / segment_name(base) for base in segment_bases(archive.copy)[:2])
    changed.write_bytes(changed.read_bytes()[:-1] + b"!")
    removed.unlink()
    report = audit_journal(spark, archive.url)
    assert not report.holds
    assert report.vouched_end == segment_bases(archive.rest)[0], "by its manifest"
    assert report.check("archive").counts == {"segment exchanged": 1, "segment missing": 1}, report.as_json()
    assert report.check("records").counts, report.as_json()


def test_damaged_and_missing_objects_are_named(archive: Archive) -> None:
    path, expected = archive.path(1), read(archive.copy)
    data = archive.files.cat_file(path)
    archive.files.pipe_file(path, data[:-1] + b"!")
    with pytest.raises(DataLost, match=f"{segment_name(segment_bases(archive.copy)[1])} is damaged"):
        read_url(archive)
    left = read_url(archive, fails=False)
    assert [row for row in expected if row in left] == left
    assert 0 < len(left) < len(expected)
    archive.files.rm_file(path)
    with pytest.raises(DataLost, match=r"is listed in manifest\.jsonl, and is not there"):
        read_url(archive)
    archive.files.pipe_file(path, data)
    archive.files.rm_file(archive.path(0))  # the first one: removed by hand
    assert plan(archive.url)[0].base == segment_bases(archive.copy)[1]


def test_what_is_no_archive_is_refused(archive: Archive, s3: S3Server) -> None:
    with pytest.raises(StorageFailed, match=r"nothing holds no manifest\.jsonl: name the archive of a broker"):
        plan(f"{archive.url}/nothing")
    done = run_metaq("audit", f"{archive.url}/nothing")
    assert (done.returncode, done.stdout) == (2, "")
    assert "holds no manifest.jsonl" in done.stderr
    manifest = f"{archive.url.removeprefix('s3://')}/manifest.jsonl"
    owner = decode_archive_manifest(archive.files.cat_file(manifest)).identity
    assert owner.broker_id == 3
    archive.files.pipe_file(manifest, ArchiveManifest(owner).with_segment(0, 1 << 62, "0" * 64).encode())
    archive.files.pipe_file(f"{archive.url.removeprefix('s3://')}/{segment_name(0)}", b"small")
    with pytest.raises(StorageFailed, match="bytes: no segment is so large"):
        plan(archive.url)
    archive.files.pipe_file(manifest, b"{}\n")
    with pytest.raises(StorageFailed, match=r"manifest\.jsonl, line 1: .*: restore it from a copy"):
        plan(archive.url)
