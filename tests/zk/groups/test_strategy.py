"""Sharing partitions out: the specification's values, and that shares cover everything exactly once."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zk.groups.strategy import STRATEGIES, LoadBalanceStrategy, balanced, consistent, ring_hash
from zk.tree.nodes import Partition, string_order

FIVE = [Partition(0, number) for number in range(5)]
members = st.lists(st.text("abc-_.0129", min_size=1, max_size=12), unique=True, max_size=12).map(
    lambda ids: sorted(ids, key=string_order)
)
partition_lists = st.lists(st.builds(Partition, st.integers(0, 20), st.integers(0, 120)), unique=True, max_size=60).map(
    lambda found: sorted(found, key=string_order)
)


def test_five_partitions_for_two() -> None:
    assert balanced("a", ["a", "b"], FIVE) == FIVE[:3]
    assert balanced("b", ["a", "b"], FIVE) == FIVE[3:]


def test_ring_hashes_are_ketamas() -> None:
    assert ring_hash("0-0") == 53638855
    assert ring_hash("0-1") == 556329922


def test_five_partitions_on_the_ring() -> None:
    group = ["g_c1", "g_c2"]
    assert consistent("g_c1", group, FIVE) == [Partition(0, 3), Partition(0, 4)]
    assert consistent("g_c2", group, FIVE) == [Partition(0, 0), Partition(0, 1), Partition(0, 2)]


@pytest.mark.parametrize("strategy", STRATEGIES.values())
def test_a_stranger_gets_nothing(strategy: LoadBalanceStrategy) -> None:
    assert strategy("x", ["a"], FIVE) == []
    assert strategy("x", [], FIVE) == []
    assert strategy("a", ["a"], []) == []
    assert strategy("a", ["a"], FIVE) == FIVE


@pytest.mark.parametrize("strategy", STRATEGIES.values())
@given(consumers=members, partitions=partition_lists)
def test_shares_are_disjoint_and_cover(
    strategy: LoadBalanceStrategy, consumers: list[str], partitions: list[Partition]
) -> None:
    shares = [strategy(consumer, consumers, partitions) for consumer in consumers]
    given_out = Counter(partition for share in shares for partition in share)
    assert given_out == Counter(partitions if consumers else [])


@pytest.mark.scenario("B10")
@given(consumers=members.filter(bool), partitions=partition_lists)
def test_balanced_shares_differ_by_one_at_most_and_shrink(consumers: list[str], partitions: list[Partition]) -> None:
    sizes = [len(balanced(consumer, consumers, partitions)) for consumer in consumers]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.scenario("B11")
@given(consumers=members.filter(bool), partitions=partition_lists)
def test_on_the_ring_only_the_leavers_partitions_move(consumers: list[str], partitions: list[Partition]) -> None:
    stayers = consumers[1:]
    for consumer in stayers:
        before = consistent(consumer, consumers, partitions)
        assert set(before) <= set(consistent(consumer, stayers, partitions))
