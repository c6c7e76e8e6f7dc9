"""Retention's archive in a real HDFS: uploaded, read back, then deleted here; read by Spark's source."""

import asyncio
import hashlib
from pathlib import Path

import fsspec
import pytest

from journal.archive.object_place import ObjectPlace
from journal.errors import StorageFailed
from spark_jobs.source.places import plan
from tests.meta_broker.store.test_object_archive import section, stored, until, upload_that_fails_half_way
from tests.meta_broker.store.test_retention import ORDERS, SEGMENT_BYTES, judged, stage


def test_segments_go_to_hdfs_and_read_back(tmp_path: Path, hdfs: str) -> None:
    url = f"{hdfs}/archives/broker-0"

    async def story() -> None:
        async with stage(tmp_path / "data", section(url)) as on:
            for number in range(70):
                on.put(ORDERS, number)
            await until(on, lambda: on.store.journal.start_lsn > 128 + SEGMENT_BYTES)
            files, root = fsspec.core.url_to_fs(url)
            manifest, segments = stored(files, root)
            assert [(entry.base, entry.sha256) for entry in manifest.entries] == [
                (base, hashlib.sha256(data).hexdigest()) for base, data in sorted(segments.items())
            ]
            assert on.store.journal.start_lsn == 128 + manifest.end
            assert [each.base for each in plan(url)] == sorted(segments)
        assert list(judged(tmp_path / "data")) == []

    asyncio.run(story())


def test_an_upload_that_fails_half_way_leaves_no_segment(tmp_path: Path, hdfs: str) -> None:
    upload_that_fails_half_way(tmp_path, f"{hdfs}/half/broker-0")


def test_a_manifest_is_replaced_whole(hdfs: str) -> None:
    """Nobody sees it half written, and a write that fails leaves the one before."""
    place = ObjectPlace(f"{hdfs}/manifests/broker-0")
    for data in (b"first\n" * 9, b"second\n"):
        place.replace("manifest.jsonl", data)
        assert place.read("manifest.jsonl") == data
    stranger = ObjectPlace(f"{hdfs.replace('//', '//stranger-to-', 1)}/manifests/broker-0")
    with pytest.raises(StorageFailed, match="Forbidden"):
        stranger.replace("manifest.jsonl", b"third")
    assert place.read("manifest.jsonl") == b"second\n"
    assert place.names() == {"manifest.jsonl"}
