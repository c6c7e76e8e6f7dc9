"""Index updates of a commit, split into parts: the same extents at the same offsets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from journal.records.extents import Extent, ExtentList
from journal.records.header import Lsn, Offset
from journal.records.index_updates import IndexUpdate, IndexUpdateRun, IndexUpdates, chunks, topics_of
from journal.records.record import PartitionName

names = st.builds(PartitionName, st.sampled_from(["orders", "stock"]), st.integers(0, 2))
runs = st.builds(
    Extent, st.builds(Lsn, st.integers(0, 10**6)), st.integers(1, 100), st.integers(1, 5), st.integers(0, 10**6)
)
blocks = st.lists(
    st.builds(
        lambda name, base, runs: IndexUpdateRun(name, Offset(base), ExtentList(runs)),
        names,
        st.integers(0, 10**9),
        st.lists(runs, max_size=8),
    ),
    max_size=5,
)


@given(blocks=blocks, extents_max=st.integers(1, 10))
def test_pieces_are_the_whole(blocks: list[IndexUpdateRun], extents_max: int) -> None:
    whole = IndexUpdates(blocks)
    one_by_one = list[IndexUpdate](whole)
    assert whole[1:-1] == one_by_one[1:-1]
    assert [whole[at] for at in range(len(whole))] == one_by_one
    for outside in (len(whole), -1):
        with pytest.raises(IndexError):
            whole[outside]
    for updates in (whole, one_by_one):
        cut = list(chunks(updates, extents_max))
        assert [each for piece in cut for each in piece] == one_by_one
        assert all(len(piece) == extents_max for piece in cut[:-1])
        assert all(0 < len(piece) <= extents_max for piece in cut)
    for piece in chunks(whole, extents_max):
        assert isinstance(piece, IndexUpdates)
        for update_run in piece.update_runs:
            assert update_run.extents.bytes == sum(extent.bytes for extent in update_run.extents)
            assert update_run.extents.messages == sum(extent.messages for extent in update_run.extents)
    assert set(topics_of(whole)) >= set(topics_of(one_by_one)) == {each.name.topic for each in one_by_one}
