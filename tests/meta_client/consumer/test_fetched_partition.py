"""The table of a partition's states: what must hold of every way through it."""

from itertools import product

import pytest

from journal.records.state_table import walk
from meta_client.consumer.fetched_partition import ASSIGNED, NEXT, PartitionEvent, PartitionState

S = PartitionState
E = PartitionEvent


def reachable(state: PartitionState) -> set[PartitionState]:
    found = {state}
    while more := {after for it in found for after in NEXT[it].values()} - found:
        found |= more
    return found


@pytest.mark.parametrize("state", S)
def test_every_way_ends(state: PartitionState) -> None:
    assert S.GONE in reachable(state)
    assert reachable(S.GONE) == {S.GONE}


@pytest.mark.parametrize("state", ASSIGNED)
def test_an_assigned_one_can_be_taken_away_at_any_time_and_does_not_come_back(state: PartitionState) -> None:
    for event in (E.REVOKE, E.LOSE):
        assert not reachable(walk(NEXT, state, event)) & ASSIGNED
    is_delivering = state is S.DELIVERING
    assert walk(NEXT, state, E.REVOKE) is (S.DRAINING if is_delivering else S.LEAVING)
    assert walk(NEXT, state, E.LOSE) is (S.DETACHED if is_delivering else S.GONE)


def test_a_delivery_ends_where_one_began_and_it_is_released_after_that() -> None:
    in_delivery = {state for state in S if E.RETURN in NEXT[state]}
    assert in_delivery == {S.DELIVERING, S.DRAINING, S.DETACHED}
    assert all(E.RELEASE not in NEXT[state] and E.DELIVER not in NEXT[state] for state in in_delivery)
    assert {state for state in ASSIGNED if E.DELIVER in NEXT[state]} == {S.FETCHING}


@pytest.mark.parametrize(
    ("state", "event"), [(state, event) for state, event in product(S, E) if event not in NEXT[state]]
)
def test_what_the_table_lacks_is_a_mistake(state: PartitionState, event: PartitionEvent) -> None:
    with pytest.raises(AssertionError, match=f"{event.name} while {state.name}"):
        walk(NEXT, state, event)
