"""What a commit makes visible, cut into parts: the same runs at the same offsets."""

from hypothesis import given
from hypothesis import strategies as st

from journal.frame import Lsn, Offset
from journal.publications import Block, Publication, Publications, pieces, topics_of
from journal.records import PartitionName
from journal.runs import Run, Runs

names = st.builds(PartitionName, st.sampled_from(["orders", "stock"]), st.integers(0, 2))
runs = st.builds(
    Run, st.builds(Lsn, st.integers(0, 10**6)), st.integers(1, 100), st.integers(1, 5), st.integers(0, 10**6)
)
blocks = st.lists(
    st.builds(
        lambda name, base, runs: Block(name, Offset(base), Runs(runs)),
        names,
        st.integers(0, 10**9),
        st.lists(runs, max_size=8),
    ),
    max_size=5,
)


@given(blocks=blocks, runs_max=st.integers(1, 10))
def test_pieces_are_the_whole(blocks: list[Block], runs_max: int) -> None:
    whole = Publications(blocks)
    one_by_one = list[Publication](whole)
    for publications in (whole, one_by_one):
        cut = list(pieces(publications, runs_max))
        assert [each for piece in cut for each in piece] == one_by_one
        assert all(len(piece) == runs_max for piece in cut[:-1])
        assert all(0 < len(piece) <= runs_max for piece in cut)
    for piece in pieces(whole, runs_max):
        assert isinstance(piece, Publications)
        for block in piece.blocks:
            assert block.runs.bytes == sum(run.bytes for run in block.runs)
            assert block.runs.messages == sum(run.messages for run in block.runs)
    assert set(topics_of(whole)) >= set(topics_of(one_by_one)) == {each.name.topic for each in one_by_one}
