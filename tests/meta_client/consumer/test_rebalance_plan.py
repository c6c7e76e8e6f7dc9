"""Shares: complete, disjoint, and moving only what moves."""

from hypothesis import given
from hypothesis import strategies as st

from meta_client.consumer.rebalance_plan import GroupSnapshot, Plan, plan_rebalance
from zk.groups.strategy import STRATEGIES, LoadBalanceStrategy, balanced
from zk.tree.nodes import Partition, string_order

consumer_ids = st.lists(st.text("abc0-_", min_size=1, max_size=6), unique=True, max_size=5)
partition_lists = st.lists(st.builds(Partition, st.integers(0, 2), st.integers(0, 12)), unique=True, max_size=20)


@given(consumer_ids, partition_lists, st.sampled_from(sorted(STRATEGIES)))
def test_shares_cover_everything_once(members: list[str], partitions: list[Partition], name: str) -> None:
    snapshot = GroupSnapshot(
        {"orders": sorted(members, key=string_order)}, {"orders": sorted(partitions, key=string_order)}
    )
    plans = [plan_rebalance(snapshot, member, (), STRATEGIES[name]) for member in members]
    claimed = [key for plan in plans for key in plan.claim]
    assert sorted(claimed) == sorted(("orders", partition) for partition in partitions if members)


@given(consumer_ids.filter(bool), partition_lists, partition_lists, st.sampled_from(list(STRATEGIES.values())))
def test_what_stays_is_in_neither_list(
    members: list[str], partitions: list[Partition], held: list[Partition], strategy: LoadBalanceStrategy
) -> None:
    snapshot = GroupSnapshot(
        {"orders": sorted(members, key=string_order)}, {"orders": sorted(partitions, key=string_order)}
    )
    owned = {("orders", partition) for partition in held}
    plan = plan_rebalance(snapshot, members[0], owned, strategy)
    assert after(plan, owned) == {*plan_rebalance(snapshot, members[0], (), strategy).claim}
    assert not set(plan.claim) & owned
    assert set(plan.release) <= owned


def after(plan: Plan, owned: set[tuple[str, Partition]]) -> set[tuple[str, Partition]]:
    return (owned - {*plan.release}) | {*plan.claim}


def test_a_topic_is_shared_by_its_subscribers() -> None:
    snapshot = GroupSnapshot(
        {"orders": ["a", "b"], "invoices": ["b"]},
        {"orders": [Partition(0, 0), Partition(0, 1)], "invoices": [Partition(0, 0)]},
    )
    assert plan_rebalance(snapshot, "a", (), balanced).claim == (("orders", Partition(0, 0)),)
    assert plan_rebalance(snapshot, "b", (), balanced).claim == (
        ("invoices", Partition(0, 0)),
        ("orders", Partition(0, 1)),
    )
    assert plan_rebalance(snapshot, "c", [("orders", Partition(0, 0))], balanced) == Plan(
        release=(("orders", Partition(0, 0)),), claim=()
    )
