"""Retention's archive in a real S3 server: uploaded, read back, then deleted here; a store that is away delays it."""

import asyncio
import hashlib
import logging
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, cast

import pytest
from fsspec.core import url_to_fs

from journal.archive.manifest import ArchiveManifest, decode_archive_manifest
from journal.archive.object_place import ObjectPlace
from journal.errors import StorageFailed
from journal.wal.storage import DirectoryStorage
from journal.wal.storage_file import StorageFile
from meta_broker.config.sections import RetentionSection
from meta_broker.store import retention_job
from spark_jobs.source.locations import plan
from tests.fixtures.s3_server import S3Server
from tests.meta_broker.store.test_retention import ORDERS, SEGMENT_BYTES, Stage, judged, stage

MIB = 1024 * 1024


def bucket(name: str) -> Any:
    """Make a bucket; return fsspec's file system."""
    import s3fs

    files = s3fs.S3FileSystem(skip_instance_cache=True)
    files.mkdir(name)
    return files


def stored(files: Any, root: str) -> tuple[ArchiveManifest, dict[int, bytes]]:
    files.invalidate_cache()
    names = [path for path in files.ls(root) if path.endswith(".journal")]
    segments = {int(name.rpartition("/")[2].removesuffix(".journal")): files.cat_file(name) for name in names}
    return decode_archive_manifest(files.cat_file(f"{root}/manifest.jsonl")), segments


def section(url: str) -> RetentionSection:
    return RetentionSection(bytes=2 * SEGMENT_BYTES, policy="archive", archive=url, when=0.1)


async def until(on: Stage, holds: Callable[[], bool]) -> None:
    deadline = asyncio.get_running_loop().time() + 60
    while not holds():
        assert asyncio.get_running_loop().time() < deadline
        await on.ticks(1)
        await asyncio.sleep(0.02)


def test_segments_go_to_the_store_and_read_back(tmp_path: Path, s3: S3Server) -> None:
    files = bucket("first")

    async def story() -> None:
        async with stage(tmp_path / "data", section("s3://first/broker-0")) as on:
            for number in range(70):
                on.put(ORDERS, number)
            first = {int(path.stem): path.read_bytes() for path in (tmp_path / "data").glob("*.journal")}
            await until(on, lambda: on.store.journal.start_lsn > 128 + SEGMENT_BYTES)
            manifest, segments = stored(files, "first/broker-0")

            def is_settled() -> bool:
                nonlocal manifest, segments
                manifest, segments = stored(files, "first/broker-0")
                # A segment is stored a moment before it is listed, and that before it is deleted here.
                return len(manifest.entries) == len(segments) and on.store.journal.start_lsn == 128 + manifest.end

            await until(on, is_settled)
            assert segments == {base: first[base] for base in segments}, "byte for byte"
            assert [(entry.base, entry.sha256) for entry in manifest.entries] == [
                (base, hashlib.sha256(data).hexdigest()) for base, data in sorted(segments.items())
            ]
        assert list(judged(tmp_path / "data")) == []

    asyncio.run(story())


def test_a_store_that_is_away_delays_retention_and_loses_nothing(
    tmp_path: Path, s3: S3Server, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with stage(tmp_path / "data", section("s3://second/broker-0")) as on:
            for number in range(70):
                on.put(ORDERS, number)
            await until(on, lambda: "segments not archived, kept and tried again" in caplog.text)
            assert on.store.journal.start_lsn == 128
            s3.kill()
            caplog.clear()
            await until(on, lambda: "segments not archived, kept and tried again" in caplog.text)
            on.put(ORDERS, 70)  # it goes on to serve
            s3.start()
            bucket("second")
            await until(on, lambda: on.store.journal.start_lsn > 128)
        assert list(judged(tmp_path / "data")) == []

    caplog.set_level(logging.ERROR)
    asyncio.run(story())


def test_a_store_that_never_answers_does_not_hold_up_a_stop(
    tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention_job, "STOP_WAIT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")

        async def story() -> None:
            async with stage(tmp_path / "data", section("s3://third/broker-0")) as on:
                for number in range(70):
                    on.put(ORDERS, number)
                await until(on, lambda: on.store.checkpoints._retention.is_uploading)
                held = sorted((tmp_path / "data").glob("*.journal"))
            assert sorted((tmp_path / "data").glob("*.journal")) == held
            assert list(judged(tmp_path / "data")) == []

        asyncio.run(story())


class BadSector:
    """A segment that fails to read in its second half."""

    def __init__(self, whole: StorageFile) -> None:
        self._whole = whole
        self.size = whole.size

    def reader(self) -> Self:
        return self

    def read(self, position: int, size: int) -> bytes:
        if position + size > self.size // 2:
            raise StorageFailed("a bad sector")
        return bytes(self._whole.reader().read(position, size))


def archived_and_read_back(directory: Path, url: str) -> None:
    """Move whole segments to *url*: they are deleted here once the manifest there names them."""

    async def story() -> None:
        async with stage(directory, section(url)) as on:
            for number in range(70):
                on.put(ORDERS, number)
            await until(on, lambda: on.store.journal.start_lsn > 128 + SEGMENT_BYTES)
            files, root = url_to_fs(url, skip_instance_cache=True)
            manifest, segments = stored(files, root)
            assert [(entry.base, entry.sha256) for entry in manifest.entries] == [
                (base, hashlib.sha256(data).hexdigest()) for base, data in sorted(segments.items())
            ]
            assert on.store.journal.start_lsn == 128 + manifest.end
            assert [each.base for each in plan(url)] == sorted(segments)
        assert list(judged(directory)) == []

    asyncio.run(story())


def upload_that_fails_half_way(directory: Path, url: str, size: int = 12 * MIB) -> None:
    """Nothing of it is in the store, and the next attempt is not held up by it."""
    storage, place = DirectoryStorage.open_for_writing(directory), ObjectPlace(url)
    data = b"".join(number.to_bytes(8, "big") for number in range(size // 8))
    file = storage.create("segment", len(data), data)
    try:
        with pytest.raises(StorageFailed, match="a bad sector"):
            place.put(storage, "segment", cast(StorageFile, BadSector(file)), hashlib.sha256(data).hexdigest())
        assert place.read("segment") is None
        for _ in range(2):
            place.put(storage, "segment", file, hashlib.sha256(data).hexdigest())
        assert place.read("segment") == data
        assert place.names() == {"segment"}
    finally:
        file.close()
        storage.close()


@pytest.mark.parametrize("size", [4096, 12 * MIB])
def test_an_upload_that_fails_half_way_leaves_nothing(tmp_path: Path, s3: S3Server, size: int) -> None:
    bucket(f"fourth-{size}")
    upload_that_fails_half_way(tmp_path, f"s3://fourth-{size}/broker-0", size)
