"""A segment leaves a journal once it is stored and listed, whatever was interrupted, for its own archive only."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from journal.archive.keeper import SegmentKeeper
from journal.archive.manifest import NAME, archived_index_name, decode_archive_manifest
from journal.archive.places import DirectoryPlace
from journal.archive.view import read_manifest
from journal.errors import StorageFailed
from journal.wal.segments import JournalIdentity, Segments, segment_name
from journal.wal.storage import DirectoryStorage

SIZE = 4096
OWNER = JournalIdentity("shop", 3)


def journal(path: Path, owner: JournalIdentity = OWNER) -> tuple[DirectoryStorage, Segments]:
    storage = DirectoryStorage.open_for_writing(path)
    segments = Segments.open(storage, owner, SIZE, writable=True)
    for _ in range(4):
        segments.roll()
    return storage, segments


@pytest.fixture
def segments(tmp_path: Path) -> Iterator[Segments]:
    storage, segments = journal(tmp_path / "data")
    yield segments
    segments.close()
    storage.close()


def listed(path: Path) -> list[int]:
    return [entry.base for entry in decode_archive_manifest((path / NAME).read_bytes()).entries]


def held(path: Path) -> list[int]:
    return sorted(int(file.stem) for file in path.glob("*.journal"))


def test_it_goes_on_where_it_was_interrupted(tmp_path: Path, segments: Segments) -> None:
    archive = tmp_path / "archive"
    archive.mkdir()
    first = (tmp_path / "data" / segment_name(0)).read_bytes()
    (archive / segment_name(0)).write_bytes(first)  # stored, not listed, not dropped: a crash
    assert segments.drop_before(SIZE, SegmentKeeper(DirectoryPlace(archive))) == 1
    assert (listed(archive), held(archive), held(tmp_path / "data")[0]) == ([0], [0], SIZE)

    (tmp_path / "data" / segment_name(0)).write_bytes(first)  # listed, not dropped: another one
    storage = DirectoryStorage.open_for_reading(tmp_path / "data")
    file = storage.open(segment_name(0), writable=False)
    with SegmentKeeper(DirectoryPlace(archive)).kept(storage, segment_name(0), file):
        (tmp_path / "data" / segment_name(0)).unlink()
    file.close()
    assert listed(archive) == [0], "once"
    assert segments.drop_before(3 * SIZE, SegmentKeeper(DirectoryPlace(archive))) == 2
    assert (listed(archive), held(tmp_path / "data")) == ([0, SIZE, 2 * SIZE], [3 * SIZE])


def test_nothing_is_dropped_once_it_is_closed_or_while_it_refuses(tmp_path: Path, segments: Segments) -> None:
    keeper = SegmentKeeper(DirectoryPlace(tmp_path / "archive"))
    keeper.close()
    with pytest.raises(StorageFailed, match="kept, the broker stops"):
        segments.drop_before(SIZE, keeper)
    reasons = iter([None, "an index is being rebuilt"])  # found while the segment was stored
    with pytest.raises(StorageFailed, match="kept, an index is being rebuilt"):
        segments.drop_before(SIZE, SegmentKeeper(DirectoryPlace(tmp_path / "archive"), lambda: next(reasons)))
    assert held(tmp_path / "data")[0] == 0
    assert segments.start == 128


def test_an_archive_of_another_journal_or_with_a_changed_manifest_is_refused(
    tmp_path: Path, segments: Segments
) -> None:
    archive = tmp_path / "archive"
    segments.drop_before(SIZE, SegmentKeeper(DirectoryPlace(archive)))
    storage, others = journal(tmp_path / "other", JournalIdentity("shop", 4))
    with pytest.raises(StorageFailed, match="is the archive of broker 3"):
        others.drop_before(SIZE, SegmentKeeper(DirectoryPlace(archive)))
    others.close()
    storage.close()
    manifest = archive / NAME
    manifest.write_bytes(manifest.read_bytes().replace(b'"size":4096', b'"size":8192'))
    with pytest.raises(
        StorageFailed, match=r"the chain breaks at segment 0.*: restore it from a copy, or name a new place"
    ):
        segments.drop_before(2 * SIZE, SegmentKeeper(DirectoryPlace(archive)))
    assert held(tmp_path / "data")[0] == SIZE
    manifest.unlink()
    (archive / segment_name(SIZE)).write_bytes(bytes(SIZE))
    with pytest.raises(StorageFailed, match="give every broker an archive of its own"):
        segments.drop_before(2 * SIZE, SegmentKeeper(DirectoryPlace(archive)))
    assert held(tmp_path / "data")[0] == SIZE


def test_no_manifest_begins_where_one_was_lost(tmp_path: Path, segments: Segments) -> None:
    """It would list nothing of what is archived, and readers would be moved past it."""
    archive = tmp_path / "archive"
    segments.drop_before(SIZE, SegmentKeeper(DirectoryPlace(archive)))
    index = archive / archived_index_name(SIZE, "0" * 64)
    index.touch()  # comes behind the manifest
    manifest = (archive / NAME).read_bytes()
    (archive / NAME).unlink()
    for _ in range(2):
        with pytest.raises(StorageFailed, match=r"has lost its manifest.jsonl: restore it from a copy, or name a new"):
            segments.drop_before(2 * SIZE, SegmentKeeper(DirectoryPlace(archive)))
    with pytest.raises(StorageFailed, match=r"has lost its manifest.jsonl"):
        read_manifest(DirectoryPlace(archive))
    assert held(tmp_path / "data")[0] == SIZE
    (archive / NAME).write_bytes(manifest)
    segments.drop_before(2 * SIZE, SegmentKeeper(DirectoryPlace(archive)))
    assert listed(archive) == [0, SIZE]


def test_of_two_that_archive_at_once_one_stops(tmp_path: Path, segments: Segments) -> None:
    """A former master that goes on, say: what the other one listed is never undone."""
    archive = tmp_path / "archive"
    first = SegmentKeeper(DirectoryPlace(archive))
    segments.drop_before(SIZE, first)
    segments.drop_before(2 * SIZE, SegmentKeeper(DirectoryPlace(archive)))
    with pytest.raises(StorageFailed, match="was changed since it was read: stop the other broker"):
        segments.drop_before(3 * SIZE, first)
    assert listed(archive) == [0, SIZE]
    assert held(tmp_path / "data")[0] == 2 * SIZE
