"""Next step of a broker's registration, for every order of news and failures."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from meta_broker.cluster.registration_plan import (
    RETRY_S,
    TOPIC_RETRY_S_MAX,
    TOPICS_PER_STEP,
    CheckNode,
    Register,
    RegistrationPlan,
    RegistrationStep,
    WriteChecksum,
    WriteInSync,
    WritePosition,
    WriteTopics,
)
from tests.fixtures.thoroughness import examples
from zk.brokers.journal_position import JournalPosition
from zk.brokers.registration import TopicRegistration
from zk.brokers.replication import ReplicationNode
from zk.session.session import SessionEvent, SessionState

ONE, TWO = TopicRegistration(1), TopicRegistration(2)
LATER = 1000.0
Tell = Callable[[RegistrationPlan], Any]


def in_sync(epoch: int = 1) -> WriteInSync:
    return WriteInSync(ReplicationNode(epoch=epoch), lambda node: None)


def connected(epoch: int = 1) -> SessionEvent:
    return SessionEvent(SessionState.CONNECTED, epoch)


@pytest.fixture
def plan() -> RegistrationPlan:
    """Plan of a broker that is registered in its first session."""
    plan = RegistrationPlan(7)
    plan.session_changed(connected())
    plan.done(Register(1), 0.0)
    return plan


EVERYTHING: dict[type[RegistrationStep], Tell] = {
    Register: lambda plan: plan.session_changed(connected(2)),
    WriteInSync: lambda plan: plan.in_sync_changed(in_sync()),
    CheckNode: lambda plan: plan.node_changed(),
    WriteChecksum: lambda plan: plan.checksum_changed(8),
    WriteTopics: lambda plan: plan.topic_changed("t", ONE),
}
# Of two steps that are due, which is taken; and which of the two can be taken while the other one is waiting for its
# next attempt. Without the broker there is nothing to hang topics on, and its own nodes carry the checksum anyhow.
FIRST = [
    (Register, WriteInSync, True),
    (Register, WriteChecksum, False),
    (Register, WriteTopics, False),
    (Register, CheckNode, False),
    (WriteInSync, CheckNode, True),
    (CheckNode, WriteTopics, True),
    (WriteInSync, WriteChecksum, True),
    (WriteInSync, WriteTopics, True),
    (WriteChecksum, WriteTopics, True),
]


@pytest.mark.parametrize(("first", "other", "may_overtake"), FIRST)
def test_what_availability_hangs_on_goes_first(
    first: type[RegistrationStep], other: type[RegistrationStep], may_overtake: bool, plan: RegistrationPlan
) -> None:
    EVERYTHING[other](plan)
    EVERYTHING[first](plan)
    step = plan.next(LATER)
    assert type(step) is first
    plan.failed(step, LATER)
    overtaking = plan.next(LATER)
    assert type(overtaking) is (other if may_overtake else type(None))
    assert plan.wait_s(LATER) == RETRY_S
    assert plan.next(LATER + RETRY_S) == step


def test_nothing_is_tried_without_a_connection(plan: RegistrationPlan) -> None:
    for tell in EVERYTHING.values():
        tell(plan)
    plan.session_changed(SessionEvent(SessionState.SUSPENDED, 2))
    assert plan.next(LATER) is None
    assert plan.wait_s(LATER) is None
    plan.session_changed(connected(2))
    assert plan.next(LATER) == Register(2)


def test_only_the_last_change_of_a_topic_counts(plan: RegistrationPlan) -> None:
    plan.topic_changed("t", ONE)
    plan.topic_changed("u", ONE)
    plan.topic_changed("t", None)
    plan.topic_changed("t", TWO)
    plan.topic_used("t", ONE)  # it is offered already
    assert plan.next(LATER) == WriteTopics({"t": TWO, "u": ONE})


def test_a_topic_that_was_deleted_is_used_again(plan: RegistrationPlan) -> None:
    plan.topic_changed("t", None)
    plan.topic_used("t", ONE)
    assert plan.next(LATER) == WriteTopics({"t": ONE})


def test_changes_of_the_in_sync_set_are_written_in_their_order(plan: RegistrationPlan) -> None:
    changes = [in_sync(number) for number in (1, 2, 3)]
    for change in changes:
        plan.in_sync_changed(change)
    for change in changes:
        step = plan.next(LATER)
        assert step is change
        plan.failed(step, 0.0)
        again = plan.next(LATER)
        assert again is change
        plan.done(again, LATER)
    assert plan.next(LATER) is None


def test_many_topics_are_written_in_steps_between_which_others_go_first(plan: RegistrationPlan) -> None:
    names = [f"t{number}" for number in range(TOPICS_PER_STEP + 1)]
    for name in names:
        plan.topic_used(name, ONE)
    step = plan.next(0.0)
    assert step == WriteTopics(dict.fromkeys(names[:-1], ONE))
    plan.done(step, 0.0)
    plan.in_sync_changed(change := in_sync())
    assert plan.next(0.0) is change
    plan.done(change, 0.0)
    assert not plan.is_complete
    last = plan.next(0.0)
    assert last == WriteTopics({names[-1]: ONE})
    plan.done(last, 0.0)
    assert plan.is_complete
    assert plan.next(LATER) is None


def test_a_refused_topic_holds_up_no_other_and_is_tried_ever_less_often(plan: RegistrationPlan) -> None:
    plan.topic_used("bad", ONE)
    plan.topic_used("good", ONE)
    step = plan.next(0.0)
    assert step is not None
    plan.done(step, 0.0, failed=["bad"])
    assert plan.is_complete  # as far as it can be
    assert plan.failed_topics == ["bad"]
    plan.topic_used("later", ONE)
    later = plan.next(0.0)
    assert later == WriteTopics({"later": ONE})
    plan.done(later, 0.0)
    now, waits = 0.0, []
    for _ in range(9):
        assert plan.next(now) is None
        wait_s = plan.wait_s(now)
        assert wait_s is not None
        waits.append(wait_s)
        now += wait_s
        again = plan.next(now)
        assert again == WriteTopics({"bad": ONE})
        plan.done(again, now, failed=["bad"])
    assert waits == [1, 2, 4, 8, 16, 32, TOPIC_RETRY_S_MAX, TOPIC_RETRY_S_MAX, TOPIC_RETRY_S_MAX]
    plan.topic_changed("bad", TWO)  # somebody did something about it
    changed = plan.next(now)
    assert changed == WriteTopics({"bad": TWO})
    plan.done(changed, now)
    assert plan.failed_topics == []


def test_a_new_session_needs_everything_again(plan: RegistrationPlan) -> None:
    plan.topic_used("t", ONE)
    plan.topic_used("bad", ONE)
    step = plan.next(0.0)
    assert step is not None
    plan.done(step, 0.0, failed=["bad"])
    plan.session_changed(connected(2))
    assert plan.next(0.0) == Register(2)
    plan.done(Register(2), 0.0)
    assert plan.next(0.0) == WriteTopics({"t": ONE, "bad": ONE})


def test_a_node_that_somebody_deleted_is_made_again_with_all_topics(plan: RegistrationPlan) -> None:
    plan.topic_used("t", ONE)
    plan.done(WriteTopics({"t": ONE}), 0.0)
    plan.node_changed()
    plan.node_deleted()
    plan.done(CheckNode(), 0.0)
    assert plan.is_registered is False
    assert plan.next(0.0) == Register(1)
    plan.done(Register(1), 0.0)
    assert plan.next(0.0) == WriteTopics({"t": ONE})


class Reconciled(RuleBasedStateMachine):
    """A plan whose steps fail at random: what stands in ZooKeeper ends as what was wanted, and nothing spins."""

    def __init__(self) -> None:
        super().__init__()
        self.plan = RegistrationPlan(0)
        self.now = 0.0
        self.session, self.is_connected = 1, True
        self.plan.session_changed(connected())
        self.wanted: dict[str, TopicRegistration] = {}
        self.stands: dict[str, TopicRegistration] = {}
        self.changes = 0
        self.asked: list[int] = []
        self.written: list[int] = []
        self.registered = 0
        self.checksum = self.kept_checksum = 0  # wanted; what the registration writes in every session
        self.checksum_stands: int | None = None

    @rule()
    def change_checksum(self) -> None:
        self.checksum += 1
        self.plan.checksum_changed(self.checksum)

    @rule(topic=st.sampled_from("abc"), offered=st.sampled_from([ONE, TWO, None]))
    def change(self, topic: str, offered: TopicRegistration | None) -> None:
        self.plan.topic_changed(topic, offered)
        self.wanted.pop(topic, None)
        if offered is not None:
            self.wanted[topic] = offered

    @rule(topic=st.sampled_from("abc"))
    def use(self, topic: str) -> None:
        self.plan.topic_used(topic, ONE)
        self.wanted.setdefault(topic, ONE)

    @rule()
    def change_in_sync(self) -> None:
        self.changes += 1
        self.asked.append(self.changes)
        self.plan.in_sync_changed(in_sync(self.changes))

    @rule()
    def lose_session(self) -> None:
        self.session += 1
        self.stands.clear()
        self.checksum_stands = None
        self.plan.session_changed(SessionEvent(SessionState.LOST, self.session - 1))
        self.plan.session_changed(connected(self.session))

    @rule(fails=st.booleans(), refused=st.sets(st.sampled_from("abc")))
    def step(self, fails: bool, refused: set[str]) -> None:
        if (step := self.plan.next(self.now)) is None:
            if (wait_s := self.plan.wait_s(self.now)) is not None:
                assert wait_s > 0
                self.now += wait_s
                assert self.plan.next(self.now) is not None
        elif fails:
            self.plan.failed(step, self.now)
        else:
            self.do(step, refused)

    def do(self, step: RegistrationStep, refused: set[str]) -> None:
        match step:
            case Register(epoch):
                self.registered = epoch
                self.checksum_stands = self.kept_checksum
            case WriteChecksum(checksum):
                self.checksum_stands = self.kept_checksum = checksum
            case WriteInSync(node, _):
                self.written.append(node.epoch)
            case WriteTopics(topics):
                assert self.registered == self.session
                for topic, offered in topics.items():
                    if topic not in refused:
                        self.stands.pop(topic, None)
                        if offered is not None:
                            self.stands[topic] = offered
        self.plan.done(step, self.now, refused)

    @invariant()
    def in_order(self) -> None:
        assert self.written == self.asked[: len(self.written)]

    def teardown(self) -> None:
        for _ in range(100):
            if (step := self.plan.next(self.now)) is not None:
                self.do(step, set())
            elif (wait_s := self.plan.wait_s(self.now)) is not None:
                self.now += wait_s
        assert self.plan.next(self.now) is None
        assert self.stands == self.wanted
        assert self.written == self.asked
        assert self.checksum_stands == self.checksum


TestReconciled = Reconciled.TestCase
TestReconciled.settings = settings(max_examples=examples(200), stateful_step_count=40)


def test_a_later_position_is_written_though_the_one_before_was_under_way(plan: RegistrationPlan) -> None:
    first, second = (JournalPosition(epoch=1, incarnation=1, end=end) for end in (100, 200))
    plan.position_changed(first)
    under_way = plan.next(LATER)
    plan.position_changed(second)
    assert under_way == WritePosition(first)
    plan.done(under_way, LATER)
    assert plan.next(LATER) == WritePosition(second)
