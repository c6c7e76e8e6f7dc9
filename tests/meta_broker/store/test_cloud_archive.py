"""Retention's archive in Azure's and Google's object stores: uploaded, read back, then deleted here; read by Spark."""

from pathlib import Path

import pytest
from fsspec.core import url_to_fs

from journal.archive.object_place import ObjectPlace
from journal.errors import StorageFailed
from tests.meta_broker.store.test_object_archive import MIB, archived_and_read_back, upload_that_fails_half_way

# Of the driver of gs, which sends 8 MiB at once.
pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body directly with raw bytes:ResourceWarning")


def made(scheme: str, name: str) -> str:
    """Make a bucket, or a container; return the URL of an archive in it."""
    files, _ = url_to_fs(f"{scheme}://{name}/x", skip_instance_cache=True)
    files.mkdir(name)
    return f"{scheme}://{name}/broker-0"


def test_segments_go_to_the_store_and_read_back(tmp_path: Path, cloud_scheme: str) -> None:
    archived_and_read_back(tmp_path / "data", made(cloud_scheme, "first"))


@pytest.mark.parametrize("size", [4096, 12 * MIB])
def test_an_upload_that_fails_half_way_leaves_nothing(tmp_path: Path, cloud_scheme: str, size: int) -> None:
    upload_that_fails_half_way(tmp_path, made(cloud_scheme, f"half-{size}"), size)


def test_a_manifest_is_replaced_whole(cloud_scheme: str) -> None:
    url = made(cloud_scheme, "manifests")
    place = ObjectPlace(url)
    assert (place.read("manifest.jsonl"), place.names()) == (None, set())
    for data in (b"first\n" * 9, b"second\n", b"third\n" * 2 * MIB):
        place.replace("manifest.jsonl", data)
        assert ObjectPlace(url).read("manifest.jsonl") == data
    blocks: list[bytes] = []
    assert place.download("manifest.jsonl", blocks.append)
    assert b"".join(blocks) == data
    assert not place.download("nothing", blocks.append)
    with pytest.raises(StorageFailed):
        ObjectPlace(url.replace("manifests", "nowhere")).replace("manifest.jsonl", b"x")
