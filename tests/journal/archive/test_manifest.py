"""A manifest shows every change that was made to it, and every segment that is not the one it lists."""

import pytest

from journal.archive.manifest import ArchivedSegment, ArchiveManifest, decode_archive_manifest
from journal.errors import InvalidContent
from journal.wal.segments import JournalIdentity

OWNER = JournalIdentity("shop", 3)
SHA = [f"{number:064x}" for number in range(1, 5)]


def manifest(*bases: int) -> ArchiveManifest:
    made = ArchiveManifest(OWNER)
    for base, sha256 in zip(bases, SHA, strict=False):
        made = made.with_segment(base, 4096, sha256)
    return made


def test_it_reads_back_and_finds_its_segments() -> None:
    made = manifest(0, 4096, 16384)
    assert decode_archive_manifest(made.encode()) == made
    assert made.end == 20480
    assert [made.find(base) is not None for base in (0, 4096, 8192, 16384)] == [True, True, False, True]
    assert decode_archive_manifest(ArchiveManifest(OWNER).encode()) == ArchiveManifest(OWNER)
    with pytest.raises(ValueError, match="comes before LSN 20480"):
        made.with_segment(16384, 4096, SHA[0])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda lines: [*lines[:2], *lines[3:]], "line 3: the chain breaks at segment 8192"),
        (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], "line 2: the chain breaks at segment 4096"),
        (lambda lines: [*lines[:3], lines[3].replace(SHA[2].encode(), SHA[3].encode())], "line 4: the chain breaks"),
        (lambda lines: [lines[0].replace(b"shop", b"sh0p"), *lines[1:]], "line 2: the chain breaks at segment 0"),
        (lambda lines: [*lines[:3], lines[3][:-5]], "line 4: "),
        (lambda lines: [lines[0].replace(b'"format":1', b'"format":2'), *lines[1:]], "format 2, this version reads 1"),
        (lambda lines: [b""], "line 1: "),
    ],
)
def test_a_change_is_named_with_its_line(change, reason: str) -> None:  # type: ignore[no-untyped-def]
    lines = manifest(0, 4096, 8192).encode().splitlines()
    with pytest.raises(InvalidContent, match=reason):
        decode_archive_manifest(b"\n".join([*change(lines), b""]))


def test_a_manifest_that_is_cut_off_says_so() -> None:
    with pytest.raises(InvalidContent, match="line 4: cut off"):
        decode_archive_manifest(manifest(0, 4096, 8192).encode()[:-1])


def test_indexes_stand_between_segments_in_the_same_chain() -> None:
    made = manifest(0, 4096).with_index(8192, 100, SHA[3])
    assert made.with_index(8192, 100, SHA[3]) is made
    made = made.with_segment(8192, 4096, SHA[2])
    assert decode_archive_manifest(made.encode()) == made
    assert [entry.base for entry in made.entries] == [0, 4096, 8192]
    assert [entry.name for entry in made.indexes] == [f"{8192:020d}.{SHA[3]}.index"]
    lines = made.encode().splitlines()
    with pytest.raises(InvalidContent, match="line 4: the chain breaks at segment 8192"):
        decode_archive_manifest(b"\n".join([*lines[:3], lines[4], b""]))
    with pytest.raises(InvalidContent, match="line 4: the chain breaks at index 8192"):
        decode_archive_manifest(b"\n".join([*lines[:3], lines[3].replace(b":100", b":101"), lines[4], b""]))


def test_a_right_chain_does_not_make_a_wrong_order_right() -> None:
    """Forge the chain, as a process that may write the manifest can."""
    made = manifest(4096)._with(ArchivedSegment(0, 4096, SHA[1], ""))
    with pytest.raises(InvalidContent, match="line 3: segment 0 comes before LSN 8192"):
        decode_archive_manifest(made.encode())
