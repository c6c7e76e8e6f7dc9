"""Members and brokers come and go, members subscribe to this and that: whatever happens, everybody computes the same
shares, each partition has one owner, and nobody moves what need not move.

Shares are compared with the specification's words (9.5, 9.6) written down once more, slowly. Releases and claims are
then carried out one by one in any order, as processes do: nobody ever owns what another still has.
"""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from meta_client.consumer.rebalance_plan import GroupSnapshot, plan_rebalance
from tests.fixtures.shares import SLOW, java_sorted
from tests.fixtures.thoroughness import examples
from zk.brokers.cluster import subscribable_partitions
from zk.groups.strategy import STRATEGIES
from zk.tree.nodes import BrokerName, Partition, TopicNode, TopicPartition

TOPICS = ("orders", "invoices")
topics = st.sampled_from(TOPICS)
member_ids = st.text("ab-_.09Zé\U0001f600", min_size=1, max_size=4).map(lambda text: f"g_{text}")


class Group(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.members: dict[str, frozenset[str]] = {}
        self.brokers: dict[str, dict[BrokerName, TopicNode]] = {topic: {} for topic in TOPICS}
        self.owner: dict[TopicPartition, str] = {}  # as owner nodes say
        self.strategy = "default"

    @initialize(strategy=st.sampled_from(sorted(STRATEGIES)))
    def choose(self, strategy: str) -> None:
        self.strategy = strategy

    @rule(member=member_ids, subscribed=st.frozensets(topics, min_size=1))
    def join(self, member: str, subscribed: frozenset[str]) -> None:
        before = self.shares()
        is_new = member not in self.members
        if not is_new:
            self.crash(member)
        self.members[member] = subscribed
        if is_new and self.strategy == "consistent":
            moved = {key for key, owner in self.shares().items() if before.get(key, member) != owner}
            assert {self.shares()[key] for key in moved} <= {member}  # to the new one alone

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        member, before = data.draw(st.sampled_from(sorted(self.members))), self.shares()
        self.crash(member)
        del self.members[member]
        if self.strategy == "consistent":
            after = self.shares()
            assert all(before[key] == member for key in after if before.get(key) != after[key])  # its own alone

    @rule(topic=topics, broker_id=st.integers(0, 12), slave_id=st.none() | st.integers(0, 1), count=st.integers(0, 13))
    def offer(self, topic: str, broker_id: int, slave_id: int | None, count: int) -> None:
        others = {name: keys for name, keys in self.shares().items() if name[0] != topic}
        name = BrokerName(broker_id, slave_id)
        self.brokers[topic][name] = TopicNode(count, name)
        assert {key: owner for key, owner in self.shares().items() if key[0] != topic} == others

    @precondition(lambda self: any(self.brokers.values()))
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        offers = [(topic, name) for topic in TOPICS for name in sorted(self.brokers[topic], key=str)]
        topic, name = data.draw(st.sampled_from(offers))
        del self.brokers[topic][name]

    @precondition(lambda self: self.members)
    @rule(data=st.data(), steps=st.integers(1, 6))
    def act(self, data: st.DataObject, steps: int) -> None:
        """Some member does some of what it has to do; the rest has to wait, or another comes first."""
        member = data.draw(st.sampled_from(sorted(self.members)))
        self.rebalance(member, steps)

    @rule()
    def settle(self) -> None:
        """Rebalance all members until nothing is left to do: twice is enough, once to let go and once to take."""
        for _ in range(2):
            for member in self.members:
                self.rebalance(member)
        assert self.owner == self.shares()

    def rebalance(self, member: str, steps: int | None = None) -> None:
        owned = {key for key, owner in self.owner.items() if owner == member}
        plan = plan_rebalance(self.snapshot(), member, owned, STRATEGIES[self.strategy])
        share = {key for key, owner in self.shares().items() if owner == member}
        assert set(plan.release) == owned - share  # no more than it must
        assert set(plan.claim) == share - owned
        for key in plan.release[:steps]:
            del self.owner[key]
        for key in plan.claim[:steps]:
            self.owner.setdefault(key, member)  # a node is made once

    def crash(self, member: str) -> None:
        self.owner = {key: owner for key, owner in self.owner.items() if owner != member}

    def snapshot(self) -> GroupSnapshot:
        consumers = {
            topic: java_sorted([member for member, subscribed in self.members.items() if topic in subscribed])
            for topic in TOPICS
        }
        return GroupSnapshot(consumers, {topic: subscribable_partitions(self.brokers[topic]) for topic in TOPICS})

    def shares(self) -> dict[TopicPartition, str]:
        """Return the expected owners, computed the slow way."""
        shares: dict[TopicPartition, str] = {}
        for topic, consumers in self.snapshot().consumers.items():
            offered = {
                f"{name.broker_id}-{n}" for name, node in self.brokers[topic].items() for n in range(node.partitions)
            }
            partitions = java_sorted(sorted(offered))
            for name, owner in SLOW[self.strategy](partitions, list(consumers)).items() if consumers else ():
                partition = Partition.maybe_parse(name)
                assert partition is not None
                shares[topic, partition] = owner
        return shares

    @invariant()
    def all_members_agree(self) -> None:
        snapshot = self.snapshot()
        claimed = [
            (key, member)
            for member in self.members
            for key in plan_rebalance(snapshot, member, (), STRATEGIES[self.strategy]).claim
        ]
        assert max(Counter(key for key, _ in claimed).values(), default=1) == 1
        assert dict(claimed) == self.shares()

    @invariant()
    def default_shares_are_even(self) -> None:
        if self.strategy != "default":
            return
        shares = self.shares()
        for topic, consumers in self.snapshot().consumers.items():
            counts = Counter(owner for key, owner in shares.items() if key[0] == topic)
            sizes = [counts[consumer] for consumer in consumers]
            assert sizes == sorted(sizes, reverse=True)
            assert not sizes or sizes[0] - sizes[-1] <= 1


TestGroup = Group.TestCase
TestGroup.settings = settings(max_examples=examples(25), stateful_step_count=25, deadline=None)
