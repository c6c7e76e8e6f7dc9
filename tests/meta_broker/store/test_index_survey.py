"""Survey of what a truncation leaves of an index, compared with a plain loop."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from journal.records.extents import Extent
from journal.records.header import Lsn, Offset
from journal.records.index_updates import IndexUpdate
from journal.records.record import PartitionName
from meta_broker.store import index_layout, index_survey
from meta_broker.store.index_file import IndexFile
from meta_broker.store.index_survey import LSN_MAX, IndexSurvey
from meta_broker.store.partition_index import PartitionIndex

ORDERS = PartitionName("orders", 0)
LSNS = st.lists(st.integers(1, 40), max_size=30)
CHUNK_ENTRIES = 4


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_layout, "CHUNK_BYTES", (CHUNK_ENTRIES + 1) * 32)
    monkeypatch.setattr(index_layout, "CHUNK_ENTRIES", CHUNK_ENTRIES)
    monkeypatch.setattr(index_survey, "BLOCK_ENTRIES", 3)


def index_of(directory: Path, lsns: list[int], filed: int) -> PartitionIndex:
    """An entry of ten bytes for each of *lsns*, the first *filed* in its file."""
    index = PartitionIndex(directory / "orders-0.index")
    for number, lsn in enumerate(lsns):
        if number == filed:
            file_all(index)
        index.publish(IndexUpdate(ORDERS, Offset(10 * number), Extent(Lsn(lsn), 10, 1, number)))
    return index


def file_all(index: PartitionIndex) -> None:
    if (spill := index.spill()) is not None:
        index.filed(spill, index.write(spill))


def survey_of(index: PartitionIndex) -> IndexSurvey:
    return IndexSurvey(index.covered_with(index.spill()))


@settings(deadline=None)  # it waits for a disk
@given(LSNS, st.integers(0, 30), st.integers(0, 41), st.integers(0, 30))
def test_against_a_loop(lsns: list[int], filed: int, floor: int, gone: int) -> None:
    gone = min(gone, len(lsns))
    with tempfile.TemporaryDirectory() as directory:
        index = index_of(Path(directory), lsns, filed)
        index.trim(10 * gone)
        survey, kept = survey_of(index), lsns[gone:]
        young = next((at for at, lsn in enumerate(kept) if lsn >= floor), len(kept))
        assert survey.lowest_kept(floor) == min(kept[young:], default=LSN_MAX)
        lost = survey.entries_lost(floor)
        assert lost == max((at + 1 for at, lsn in enumerate(kept) if lsn < floor), default=0)
        assert survey.offset_behind(lost, index.end) == (10 * (gone + lost) if lost < len(kept) else index.end)
        cut = min(floor, survey.lowest_kept(floor))
        assert all(lsn < floor for lsn in kept[: survey.entries_lost(cut)])
        assert all(lsn >= cut for lsn in kept[survey.entries_lost(cut) :])


def test_each_chunk_is_looked_at_once_and_then_what_the_cut_goes_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 100 * CHUNK_ENTRIES
    index = index_of(tmp_path, [100 + number for number in range(count)], count)
    file_all(index)
    read: list[int] = []
    check = IndexFile.read

    def counted(file: IndexFile, chunk: int) -> bytes:
        read.append(chunk)
        return check(file, chunk)

    monkeypatch.setattr(IndexFile, "read", counted)
    assert survey_of(index).lowest_kept(100 + 4 * CHUNK_ENTRIES + 1) == 100 + 4 * CHUNK_ENTRIES + 1
    assert set(read) == set(range(100))
    read.clear()
    survey = survey_of(index)
    assert survey.lowest_kept(100 + 4 * CHUNK_ENTRIES + 1) == 100 + 4 * CHUNK_ENTRIES + 1
    assert survey.entries_lost(100 + 4 * CHUNK_ENTRIES) == 4 * CHUNK_ENTRIES
    assert set(read) <= {0, 1, 2, 3, 4, 50, 25, 12, 6}  # and a bisect for the start
    for number in range(3):  # more is written: what is known of the rest holds
        index.publish(IndexUpdate(ORDERS, Offset(10 * (count + number)), Extent(Lsn(9 + number), 10, 1, count)))
    file_all(index)
    read.clear()
    assert survey_of(index).lowest_kept(100 + CHUNK_ENTRIES) == 9
    assert len(set(read)) < 20
