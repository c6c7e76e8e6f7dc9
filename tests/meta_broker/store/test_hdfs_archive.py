"""Retention's archive in a real HDFS: uploaded, read back, then deleted here; read by Spark's source."""

from pathlib import Path

import pytest

from journal.archive.object_place import ObjectPlace
from journal.errors import StorageFailed
from tests.meta_broker.store.test_object_archive import archived_and_read_back, upload_that_fails_half_way


def test_segments_go_to_hdfs_and_read_back(tmp_path: Path, hdfs: str) -> None:
    archived_and_read_back(tmp_path / "data", f"{hdfs}/archives/broker-0")


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
