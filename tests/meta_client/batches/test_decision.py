"""The node that decides a query's newest batch: one decision stands, whoever else writes, forbids or has finished."""

from collections.abc import Iterator

import pytest

from meta_client.batches import decision
from meta_client.batches.decision import OVER, BatchDecision, Decisions, SinkFailed
from meta_client.batches.names import BatchName, BranchName
from zk.embedded.chroot import Chroot
from zk.session.session import ZooKeeperSession

BRANCHES = (BranchName(0, "a"), BranchName(1, "b"))
FIRST, SECOND = BatchName("orders", 1), BatchName("orders", 2)


@pytest.fixture
def session(zookeeper: Chroot) -> Iterator[ZooKeeperSession]:
    with ZooKeeperSession(zookeeper.connect) as session:
        yield session


def test_one_decision_stands(session: ZooKeeperSession) -> None:
    decisions = Decisions(session, "orders")
    made = decisions.decide(SECOND, BRANCHES, "plan")
    assert made == decisions.read() == BatchDecision(2, BRANCHES, plan="plan")
    for name in (FIRST, SECOND):
        assert decisions.decide(name, BRANCHES[:1]) == made, "decided, or a later one"
        assert not decisions.forbid(name)
    decisions.mark_done(BatchDecision(2, BRANCHES))  # another one
    assert not decisions.read().is_done
    for _ in range(2):
        decisions.mark_done(made)
        assert decisions.read().is_done


def test_a_run_that_was_given_up_decides_nothing(session: ZooKeeperSession) -> None:
    decisions = Decisions(session, "orders")
    seen = frozenset({decisions.version()})
    assert decisions.forbid(FIRST), "which changes the version"
    with pytest.raises(SinkFailed, match="ran twice at once, and the other run was given up"):
        decisions.decide(FIRST, BRANCHES, seen=seen)
    assert decisions.decide(FIRST, BRANCHES, seen=frozenset({decisions.version()})).branches == BRANCHES


def test_more_branches_than_a_node_holds_are_refused(
    session: ZooKeeperSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decision, "NODE_BYTES_MAX", 10)
    decisions = Decisions(session, "orders")
    with pytest.raises(SinkFailed, match="2 branches are more than a decision can name: repartition to fewer tasks"):
        decisions.decide(FIRST, BRANCHES)
    assert decisions.version() is None


def test_a_write_that_nobody_can_repeat_leaves_no_node(session: ZooKeeperSession) -> None:
    name = BatchName.once()
    decisions = Decisions(session, name.query)
    assert decisions.read() == OVER
    decisions.begin()
    made = decisions.decide(name, BRANCHES)
    assert made.branches == BRANCHES
    decisions.mark_done(made)
    assert (decisions.read(), decisions.version()) == (OVER, None)
