"""Conclusions about a promotion from the other slaves' copies, case by case."""

import dataclasses
import itertools

import pytest

from journal.records.epoch_history import WriterEpoch
from journal.records.header import Lsn
from journal.repair.tail import Tail
from meta_broker.replication.promotion.candidates import Candidate, NoReport, check_candidates, divergence
from meta_broker.replication.promotion.promotion_check import ClusterView, FormerMaster, ReplicaStatus, Severity
from meta_broker.replication.replica.slave_file import SlaveFacts
from tests.meta_broker.replication.replica.test_copy_report import REPORT
from zk.brokers.replication import ReplicationNode

FIRST, SECOND, THIRD = WriterEpoch(1, 1, Lsn(128)), WriterEpoch(1, 2, Lsn(300)), WriterEpoch(2, 1, Lsn(400))
FACTS = SlaveFacts(cluster="metaq", broker_id=0, slave_id=1, epoch=1, end=500, high_watermark=400, heard_ms=1)
HERE = ReplicaStatus(FACTS, 128, 500, 1, [], 0, (FIRST, SECOND))
COPY = dataclasses.replace(
    REPORT, slave_id=2, end=500, flushed=500, high_watermark=400, data="/data/it's 2", epoch_history=(FIRST, SECOND)
)


def cluster(mode: str = "async", in_sync: tuple[int, ...] = (), epoch: int = 1) -> ClusterView:
    assert mode in ("sync", "async")
    node = ReplicationNode(
        epoch=epoch, mode="sync" if mode == "sync" else "async", in_sync=in_sync, master="meta://h:1"
    )
    return ClusterView(node, connect="zk:2181")


def at(end: int, *epoch_history: WriterEpoch, slave_id: int = 2, is_complete: bool = True) -> Candidate:
    copy = dataclasses.replace(
        COPY,
        end=end,
        flushed=end,
        epoch_history=epoch_history,
        slave_id=slave_id,
        is_complete=is_complete,
        data=f"/data/{slave_id}",
    )
    return Candidate(f"meta://h:{slave_id}", copy)


CASES = [  # what the other slave has, and the one word and phrase about it
    (at(500, FIRST, SECOND), Severity.NOTE, "slave 2 has nothing that is not here"),
    (at(450, FIRST, SECOND), Severity.NOTE, "slave 2 has nothing that is not here"),
    (at(200, FIRST), Severity.NOTE, "slave 2 has nothing that is not here"),
    (at(501, FIRST, SECOND), Severity.RISK, "has 1 bytes more of this journal, up to LSN 501; promote that one"),
    (
        at(700, FIRST, SECOND, THIRD),
        Severity.RISK,
        "has 300 bytes more of this journal, up to LSN 700; promote that one",
    ),
    (at(900, FIRST), Severity.NOTE, "has 600 bytes, from LSN 300 on, that a later master never had"),
    (at(500, THIRD), Severity.RISK, "share no epoch of the journal"),
    (at(0), Severity.NOTE, "has no whole copy yet"),
    (at(900, FIRST, SECOND, is_complete=False), Severity.NOTE, "has no whole copy yet"),
    (
        Candidate("meta://h:2", NoReport("no connection")),
        Severity.NOTE,
        "slave 2 at meta://h:2 can't be asked how far it is: no connec",
    ),
]


@pytest.mark.parametrize(("other", "severity", "text"), CASES)
def test_one_other_slave(other: Candidate, severity: Severity, text: str) -> None:
    (found,) = check_candidates(HERE, cluster(), {2: other})
    assert (found.severity, text in found.text) == (severity, True), found


def test_the_candidate_with_most_is_named_with_the_command() -> None:
    candidates = {
        2: at(900, FIRST, SECOND),
        3: at(700, FIRST, SECOND, THIRD, slave_id=3),  # of a later master, which is what counts
        4: at(500, FIRST, SECOND, slave_id=4),
    }
    second, third, fourth = check_candidates(HERE, cluster(), candidates)
    assert fourth.text == "slave 4 has nothing that is not here"
    assert (second.severity, third.severity) == (Severity.RISK, Severity.RISK)
    assert second.text.endswith("up to LSN 900; another slave has more still")
    assert third.text.endswith("stop it, and on its machine: metaq promote /data/3 --zk zk:2181")


def test_a_directory_is_written_as_a_shell_takes_it() -> None:
    copy = dataclasses.replace(COPY, end=600)
    (found,) = check_candidates(HERE, cluster(), {2: Candidate("meta://h:2", copy)})
    assert """metaq promote '/data/it'"'"'s 2' --zk""" in found.text


def test_what_a_slave_in_sync_lacks_was_not_acknowledged() -> None:
    """Every combination: more elsewhere is no risk only while the newest master counted on this slave."""
    for mode, in_sync, epoch, epoch_history in itertools.product(
        ("sync", "async"), ((), (1,), (1, 2)), (1, 2), ((FIRST, SECOND), (FIRST, SECOND, THIRD))
    ):
        (found,) = check_candidates(HERE, cluster(mode, in_sync, epoch), {2: at(600, *epoch_history)})
        is_safe = mode == "sync" and 1 in in_sync and epoch == 1 and epoch_history[-1] == SECOND
        assert (found.severity is Severity.NOTE) == is_safe, (found, mode, in_sync, epoch, epoch_history)


@pytest.mark.parametrize(
    ("former", "severity"),
    [
        (FormerMaster(1, Tail(500, 600)), Severity.NOTE),  # opens and checkpoints alone
        (FormerMaster(1, Tail(500, 599)), Severity.RISK),  # the other slave goes on behind it
        (FormerMaster(1, Tail(500, 600, others={"TOPIC": 1})), Severity.RISK),
        (FormerMaster(1, None), Severity.RISK),
        (None, Severity.RISK),
    ],
)
def test_the_former_masters_directory_tells_what_there_was(former: FormerMaster | None, severity: Severity) -> None:
    (found,) = check_candidates(HERE, cluster(), {2: at(600, FIRST, SECOND)}, former)
    assert found.severity is severity, found


def test_a_slave_in_sync_that_is_not_registered_is_named() -> None:
    (found,) = check_candidates(HERE, cluster("sync", (1, 2, 3)), {})
    assert found.severity is Severity.NOTE
    assert found.text.startswith(
        "slave 2, 3 can't be asked how far it is: it is not registered, as slaves in mode sync"
    )
    found, _ = check_candidates(HERE, cluster("async", (1, 2, 3)), {2: at(500, FIRST, SECOND)})[::-1]
    assert found.text == "slave 3 can't be asked how far it is: it is not registered"
    assert check_candidates(HERE, cluster("sync", (1,)), {}) == []


def test_two_copies_agree_up_to_where_they_part() -> None:
    assert divergence(HERE, dataclasses.replace(COPY, end=600)) == (500, 0, 100)
    assert divergence(HERE, dataclasses.replace(COPY, end=350)) == (350, 150, 0)
    assert divergence(HERE, dataclasses.replace(COPY, epoch_history=(FIRST,))) == (300, 200, 200)
    assert divergence(HERE, dataclasses.replace(COPY, epoch_history=(THIRD,))) is None
