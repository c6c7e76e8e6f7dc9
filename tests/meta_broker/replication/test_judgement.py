"""What is said of a promotion, case by case."""

import itertools

import pytest

from meta_broker.replication.judgement import Cluster, Standing, Weight, judge
from meta_broker.replication.slave_file import SlaveFacts
from zk.replication import ReplicationNode

MASTER = "meta://10.0.0.9:8123"
FACTS = SlaveFacts(cluster="metaq", broker_id=0, slave_id=1, master=MASTER, epoch=2, end=500, fence=400, heard_ms=1)


def standing(*, end: int = 500, active: int = 0, facts: SlaveFacts = FACTS) -> Standing:
    return Standing(facts, 128, end, 2, ["1_YQ==_Yg=="], active)


def node(
    epoch: int = 2, mode: str = "sync", in_sync: tuple[int, ...] = (1, 2), master: str = MASTER, claimed_by: str = ""
) -> ReplicationNode:
    assert mode in ("sync", "async")
    return ReplicationNode(
        epoch=epoch, mode="sync" if mode == "sync" else "async", in_sync=in_sync, master=master, claimed_by=claimed_by
    )


CASES = [  # the node, and the one word and phrase about it
    (node(), Weight.NOTE, "in sync: everything"),
    (node(in_sync=(1,)), Weight.NOTE, "in sync: everything"),
    (node(in_sync=(2, 3)), Weight.RISK, "not in sync, and slave 2, 3 is: promote that one"),
    (node(in_sync=()), Weight.RISK, "no slave was in sync"),
    (node(mode="async"), Weight.RISK, "asynchronously"),
    (None, Weight.RISK, "no master of broker 0 has told ZooKeeper"),
    (node(epoch=3), Weight.RISK, "ZooKeeper knows epoch 3 and this slave has followed epoch 2: meta://10"),
    (node(epoch=3, master="", claimed_by="slave 2"), Weight.RISK, "slave 2 claimed it and never served"),
    # A promotion of this very slave that was cut short is done again.
    (node(epoch=3, master="", claimed_by="slave 1"), Weight.NOTE, "in sync: everything"),
    (node(epoch=3, master="", claimed_by="slave 1", in_sync=()), Weight.RISK, "no slave was in sync"),
]


@pytest.mark.parametrize(("known", "weight", "text"), CASES)
def test_what_zookeeper_knows(known: ReplicationNode | None, weight: Weight, text: str) -> None:
    last = judge(standing(), Cluster(known))[-1]
    assert (last.weight, text in last.text) == (weight, True), last


def test_a_master_that_is_registered_stops_every_promotion() -> None:
    for known, _, _ in CASES:
        findings = judge(standing(), Cluster(known, MASTER))
        assert [one.text for one in findings if one.weight is Weight.STOP] == [
            f"a master of broker 0 is registered at {MASTER}: stop it, or wait until its ZooKeeper session is over"
        ]


@pytest.mark.parametrize(
    ("end", "weight", "text"),
    [
        (399, Weight.RISK, "1 bytes of that are not here"),
        (400, Weight.NOTE, "100 bytes of the master's journal that nobody was told of, LSN 400 to 500"),
        (500, Weight.NOTE, "everything that the master had when it was last heard is here"),
        (501, Weight.NOTE, "everything that the master had when it was last heard is here"),
    ],
)
def test_what_the_masters_last_word_proves(end: int, weight: Weight, text: str) -> None:
    first = judge(standing(end=end), Cluster(node()))[0]
    assert (first.weight, text in first.text) == (weight, True), first


def test_without_zookeeper_somebody_must_answer_for_it() -> None:
    assert judge(standing(), None)[-1].weight is Weight.RISK


def test_a_slave_that_never_heard_from_a_master_may_lack_anything() -> None:
    silent = SlaveFacts(cluster="metaq", broker_id=0, slave_id=1)
    assert judge(standing(facts=silent), Cluster(node()))[0].weight is Weight.RISK


def test_only_an_in_sync_slave_of_the_newest_epoch_is_without_risk() -> None:
    """Every combination: no risk means that the master counted on this slave until the end."""
    for mode, epoch, in_sync, master, claimed_by in itertools.product(
        ("sync", "async"), (1, 2, 3), ((), (1,), (2,), (1, 2)), (MASTER, ""), ("", "slave 1", "slave 2")
    ):
        known = node(epoch, mode, in_sync, master, claimed_by)
        is_safe = all(one.weight is Weight.NOTE for one in judge(standing(), Cluster(known)))
        is_newest = epoch <= 2 or (not master and claimed_by == "slave 1")
        assert is_safe == (mode == "sync" and 1 in in_sync and is_newest), known
