"""What a cut leaves of an index, against a loop that is too dumb to be wrong."""

from hypothesis import given
from hypothesis import strategies as st

from meta_broker.store import index_survey
from meta_broker.store.index_survey import BLOCK_ENTRIES, LSN_MAX, entries_lost, lowest_kept, lsns_of, offsets_of
from meta_broker.store.partition_index import ENTRY

LSNS = st.lists(st.integers(0, 40), max_size=30)


def packed(lsns: list[int]) -> bytes:
    return b"".join(ENTRY.pack(10 * at, lsn, 0, 10, 1) for at, lsn in enumerate(lsns))


@given(LSNS, st.integers(0, 30), st.integers(0, 41))
def test_against_a_loop(lsns: list[int], split: int, floor: int) -> None:
    parts = [lsns_of(packed(lsns[:split])), lsns_of(packed(lsns[split:]))]
    young = next((at for at, lsn in enumerate(lsns) if lsn >= floor), len(lsns))
    assert lowest_kept(parts, floor) == min(lsns[young:], default=LSN_MAX)
    assert entries_lost(parts, floor) == max((at + 1 for at, lsn in enumerate(lsns) if lsn < floor), default=0)


@given(LSNS, st.integers(0, 41))
def test_a_cut_below_what_is_kept_loses_none_of_it(lsns: list[int], floor: int) -> None:
    parts = [lsns_of(packed(lsns))]
    cut = min(floor, lowest_kept(parts, floor))
    assert all(lsn < floor for lsn in lsns[: entries_lost(parts, cut)])
    assert all(lsn >= cut for lsn in lsns[entries_lost(parts, cut) :])


def test_blocks_are_looked_at_one_after_the_other() -> None:
    count = 2 * BLOCK_ENTRIES + 7
    lsns = [100 + at for at in range(count)]
    lsns[BLOCK_ENTRIES + 3] = 5  # committed late, put early
    parts = [lsns_of(packed(lsns))]
    assert entries_lost(parts, 50) == BLOCK_ENTRIES + 4
    assert entries_lost(parts, 100 + 2 * BLOCK_ENTRIES + 2) == 2 * BLOCK_ENTRIES + 2
    assert lowest_kept(parts, 100 + BLOCK_ENTRIES) == 5
    assert lowest_kept(parts, 100 + BLOCK_ENTRIES + 4) == 100 + BLOCK_ENTRIES + 4
    assert list(offsets_of(packed(lsns[:3]))) == [0, 10, 20]
    assert index_survey.lsns_of(b"").tolist() == []
