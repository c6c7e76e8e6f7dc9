"""Copies of segments in another directory: a link, or on another disk a copy; never over another file."""

import os
from pathlib import Path

import pytest

from journal.errors import StorageFailed
from journal.wal.file_move import copy

BODY = os.urandom(3 << 20)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "data" / "segment"
    path.parent.mkdir()
    path.write_bytes(BODY)
    return path


def test_on_the_same_disk_it_is_the_same_file_however_often(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "archive" / "segment"
    for _ in range(2):
        copy(source, target)
        assert target.samefile(source)


def test_on_another_disk_it_is_a_copy_and_an_interrupted_one_is_finished(source: Path) -> None:
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == source.stat().st_dev:
        pytest.skip("there is no second file system")
    target = memory / f"metaq-{os.getpid()}" / "segment"
    try:
        target.parent.mkdir()
        target.with_name("segment.tmp").write_bytes(b"half")
        for _ in range(2):
            copy(source, target)
            assert target.read_bytes() == BODY
            assert not target.samefile(source)
            assert list(target.parent.iterdir()) == [target]
    finally:
        for left in target.parent.iterdir():
            left.unlink()
        target.parent.rmdir()


def test_another_file_stays(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "archive" / "segment"
    target.parent.mkdir()
    target.write_bytes(BODY)
    copy(source, target)  # the same bytes: an earlier copy
    target.write_bytes(BODY[:-1] + b"\0")
    with pytest.raises(StorageFailed, match="is there already and is not the segment: give every broker"):
        copy(source, target, Path("the segment"))
    assert target.read_bytes() == BODY[:-1] + b"\0"


def test_what_cannot_be_copied(source: Path, tmp_path: Path) -> None:
    with pytest.raises(StorageFailed, match="cannot be archived where it is"):
        copy(source, source.with_name("other"))
    with pytest.raises(StorageFailed, match=r"not archived as .*: No such file"):
        copy(source.with_name("gone"), tmp_path / "archive" / "gone")
