"""Owners as fetches tell them: the highest epoch counts, and only so many are remembered."""

from hypothesis import given
from hypothesis import strategies as st

from journal.records.record import PartitionName
from meta_broker.handlers.owners import Owned, OwnerEpochs

PLACES = [Owned(group, PartitionName("t", number)) for group in ("a", "b") for number in range(3)]


@given(st.lists(st.tuples(st.sampled_from(PLACES), st.integers(0, 20)), max_size=40))
def test_the_highest_epoch_is_told(fetches: list[tuple[Owned, int]]) -> None:
    owners, model = OwnerEpochs(len(PLACES)), dict[Owned, int]()
    for owned, epoch in fetches:
        assert owners.known(owned) == model.get(owned)
        model[owned] = max(epoch, model.get(owned, 0))
        assert owners.seen(owned, epoch) == model[owned]


def test_the_partition_longest_without_a_fetch_is_forgotten() -> None:
    owners = OwnerEpochs(2)
    owners.seen(PLACES[0], 5)
    owners.seen(PLACES[1], 5)
    owners.seen(PLACES[0], 4)  # stale, but it fetches: what is known of it is still needed
    owners.seen(PLACES[2], 5)
    assert [owners.known(place) for place in PLACES[:3]] == [5, None, 5]
    assert len(owners) == 2
