"""Findings about a promotion, case by case."""

import itertools

import pytest

from meta_broker.replication.promotion.promotion_check import ClusterView, ReplicaStatus, Severity, check_promotion
from meta_broker.replication.replica.slave_file import SlaveFacts
from zk.brokers.journal_position import JournalPosition
from zk.brokers.replication import ReplicationNode

MASTER = "meta://10.0.0.9:8123"
FACTS = SlaveFacts(
    cluster="metaq", broker_id=0, slave_id=1, master=MASTER, epoch=2, end=500, high_watermark=400, heard_ms=1
)


def status(*, end: int = 500, active: int = 0, facts: SlaveFacts = FACTS) -> ReplicaStatus:
    return ReplicaStatus(facts, 128, end, 2, ["1_YQ==_Yg=="], active)


def node(
    epoch: int = 2, mode: str = "sync", in_sync: tuple[int, ...] = (1, 2), master: str = MASTER, claimed_by: str = ""
) -> ReplicationNode:
    assert mode in ("sync", "async")
    return ReplicationNode(
        epoch=epoch, mode="sync" if mode == "sync" else "async", in_sync=in_sync, master=master, claimed_by=claimed_by
    )


CASES = [  # the node, and the one word and phrase about it
    (node(), Severity.NOTE, "in sync: everything"),
    (node(in_sync=(1,)), Severity.NOTE, "in sync: everything"),
    (node(in_sync=(2, 3)), Severity.RISK, "not in sync, and slave 2, 3 is: promote that one"),
    (node(in_sync=()), Severity.RISK, "no slave was in sync"),
    (node(mode="async"), Severity.RISK, "asynchronously"),
    (None, Severity.RISK, "ZooKeeper has no in-sync set of broker 0"),
    (node(epoch=3), Severity.RISK, "ZooKeeper knows epoch 3 and this slave has followed epoch 2: meta://10"),
    (node(epoch=3, master="", claimed_by="slave 2"), Severity.RISK, "slave 2 claimed it and never served"),
    # A promotion of this very slave that was cut short is done again.
    (node(epoch=3, master="", claimed_by="slave 1"), Severity.NOTE, "in sync: everything"),
    (node(epoch=3, master="", claimed_by="slave 1", in_sync=()), Severity.RISK, "no slave was in sync"),
]


@pytest.mark.parametrize(("known", "severity", "text"), CASES)
def test_what_zookeeper_knows(known: ReplicationNode | None, severity: Severity, text: str) -> None:
    last = check_promotion(status(), ClusterView(known))[-1]
    assert (last.severity, text in last.text) == (severity, True), last


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_an_older_directory_of_a_slave_in_sync_lacks_what_zookeeper_knows(mode: str) -> None:
    def last(end: int, epoch: int = 2) -> tuple[Severity, bool]:
        position = JournalPosition(epoch=epoch, incarnation=1, end=end)
        found = check_promotion(status(), ClusterView(node(mode=mode), position=position))[-1]
        return found.severity, "everything up to LSN 501: 1 bytes of that are not here" in found.text

    assert last(501) == (Severity.RISK, True)
    assert not last(500)[1]
    assert not last(501, epoch=1)[1]  # of a master before the one that this slave has followed


def test_a_master_that_is_registered_stops_every_promotion() -> None:
    for known, _, _ in CASES:
        findings = check_promotion(status(), ClusterView(known, MASTER))
        assert [one.text for one in findings if one.severity is Severity.STOP] == [
            f"a master of broker 0 is registered at {MASTER}: stop it, or wait until its ZooKeeper session is over"
        ]


@pytest.mark.parametrize(
    ("end", "severity", "text"),
    [
        (399, Severity.RISK, "1 bytes of that are not here"),
        (400, Severity.NOTE, "100 unacknowledged bytes of the master's journal, LSN 400 to 500"),
        (500, Severity.NOTE, "everything that the master had when it was last heard is here"),
        (501, Severity.NOTE, "everything that the master had when it was last heard is here"),
    ],
)
def test_what_the_masters_last_word_proves(end: int, severity: Severity, text: str) -> None:
    first = check_promotion(status(end=end), ClusterView(node()))[0]
    assert (first.severity, text in first.text) == (severity, True), first


def test_without_zookeeper_somebody_must_answer_for_it() -> None:
    assert check_promotion(status(), None)[-1].severity is Severity.RISK


def test_a_slave_that_never_reached_a_master_may_lack_anything() -> None:
    silent = SlaveFacts(cluster="metaq", broker_id=0, slave_id=1)
    assert check_promotion(status(facts=silent), ClusterView(node()))[0].severity is Severity.RISK


def test_only_an_in_sync_slave_of_the_newest_epoch_is_without_risk() -> None:
    """Every combination: no risk means that the master counted on this slave until the end."""
    for mode, epoch, in_sync, master, claimed_by in itertools.product(
        ("sync", "async"), (1, 2, 3), ((), (1,), (2,), (1, 2)), (MASTER, ""), ("", "slave 1", "slave 2")
    ):
        known = node(epoch, mode, in_sync, master, claimed_by)
        is_safe = all(one.severity is Severity.NOTE for one in check_promotion(status(), ClusterView(known)))
        is_newest = epoch <= 2 or (not master and claimed_by == "slave 1")
        assert is_safe == (mode == "sync" and 1 in in_sync and is_newest), known
