"""What the other slaves' copies say about a promotion, case by case."""

import dataclasses
import itertools

import pytest

from journal.frame import Lsn
from journal.lives import Life
from journal.tail import Tail
from meta_broker.replication.copy_report import CopyReport
from meta_broker.replication.judgement import Cluster, Former, Standing, Weight
from meta_broker.replication.other_slaves import Other, judge_others, relation
from meta_broker.replication.slave_file import SlaveFacts
from zk.replication import ReplicationNode

FIRST, SECOND, THIRD = Life(1, 1, Lsn(128)), Life(1, 2, Lsn(300)), Life(2, 1, Lsn(400))
FACTS = SlaveFacts(cluster="metaq", broker_id=0, slave_id=1, epoch=1, end=500, fence=400, heard_ms=1)
HERE = Standing(FACTS, 128, 500, 1, [], 0, (FIRST, SECOND))
COPY = CopyReport(
    cluster="metaq",
    broker_id=0,
    slave_id=2,
    start=128,
    end=500,
    flushed=500,
    fence=400,
    is_complete=True,
    data="/data/it's 2",
    lives=(FIRST, SECOND),
)


def cluster(mode: str = "async", in_sync: tuple[int, ...] = (), epoch: int = 1) -> Cluster:
    assert mode in ("sync", "async")
    node = ReplicationNode(
        epoch=epoch, mode="sync" if mode == "sync" else "async", in_sync=in_sync, master="meta://h:1"
    )
    return Cluster(node, connect="zk:2181")


def at(end: int, *lives: Life, slave_id: int = 2, is_complete: bool = True) -> Other:
    copy = dataclasses.replace(
        COPY, end=end, flushed=end, lives=lives, slave_id=slave_id, is_complete=is_complete, data=f"/data/{slave_id}"
    )
    return Other(f"meta://h:{slave_id}", copy)


CASES = [  # what the other slave has, and the one word and phrase about it
    (at(500, FIRST, SECOND), Weight.NOTE, "slave 2 has nothing that is not here"),
    (at(450, FIRST, SECOND), Weight.NOTE, "slave 2 has nothing that is not here"),
    (at(200, FIRST), Weight.NOTE, "slave 2 has nothing that is not here"),
    (at(501, FIRST, SECOND), Weight.RISK, "has 1 bytes more of this journal, up to LSN 501; promote that one"),
    (at(700, FIRST, SECOND, THIRD), Weight.RISK, "has 300 bytes more of this journal, up to LSN 700; promote that one"),
    (at(900, FIRST), Weight.NOTE, "has 600 bytes, from LSN 300 on, that a later master never had"),
    (at(500, THIRD), Weight.RISK, "share no life of the journal"),
    (at(0), Weight.NOTE, "has no whole copy yet"),
    (at(900, FIRST, SECOND, is_complete=False), Weight.NOTE, "has no whole copy yet"),
    (
        Other("meta://h:2", "no connection"),
        Weight.NOTE,
        "slave 2 at meta://h:2 can't be asked how far it is: no connec",
    ),
]


@pytest.mark.parametrize(("other", "weight", "text"), CASES)
def test_one_other_slave(other: Other, weight: Weight, text: str) -> None:
    (found,) = judge_others(HERE, cluster(), {2: other})
    assert (found.weight, text in found.text) == (weight, True), found


def test_who_has_most_is_named_with_the_command() -> None:
    others = {
        2: at(900, FIRST, SECOND),
        3: at(700, FIRST, SECOND, THIRD, slave_id=3),  # of a later master, which is what counts
        4: at(500, FIRST, SECOND, slave_id=4),
    }
    second, third, fourth = judge_others(HERE, cluster(), others)
    assert fourth.text == "slave 4 has nothing that is not here"
    assert (second.weight, third.weight) == (Weight.RISK, Weight.RISK)
    assert second.text.endswith("up to LSN 900; another slave has more still")
    assert third.text.endswith("stop it, and on its machine: metaq promote /data/3 --zk zk:2181")


def test_a_directory_is_written_as_a_shell_takes_it() -> None:
    copy = dataclasses.replace(COPY, end=600)
    (found,) = judge_others(HERE, cluster(), {2: Other("meta://h:2", copy)})
    assert """metaq promote '/data/it'"'"'s 2' --zk""" in found.text


def test_what_a_slave_in_sync_lacks_nobody_was_told_of() -> None:
    """Every combination: more elsewhere is no risk only while the newest master counted on this slave."""
    for mode, in_sync, epoch, lives in itertools.product(
        ("sync", "async"), ((), (1,), (1, 2)), (1, 2), ((FIRST, SECOND), (FIRST, SECOND, THIRD))
    ):
        (found,) = judge_others(HERE, cluster(mode, in_sync, epoch), {2: at(600, *lives)})
        is_safe = mode == "sync" and 1 in in_sync and epoch == 1 and lives[-1] == SECOND
        assert (found.weight is Weight.NOTE) == is_safe, (found, mode, in_sync, epoch, lives)


@pytest.mark.parametrize(
    ("former", "weight"),
    [
        (Former(1, Tail(500, 600)), Weight.NOTE),  # opens and checkpoints alone
        (Former(1, Tail(500, 599)), Weight.RISK),  # the other slave goes on behind it
        (Former(1, Tail(500, 600, others={"TOPIC": 1})), Weight.RISK),
        (Former(1, None), Weight.RISK),
        (None, Weight.RISK),
    ],
)
def test_the_former_masters_directory_tells_what_there_was(former: Former | None, weight: Weight) -> None:
    (found,) = judge_others(HERE, cluster(), {2: at(600, FIRST, SECOND)}, former)
    assert found.weight is weight, found


def test_a_slave_in_sync_that_is_not_registered_is_named() -> None:
    (found,) = judge_others(HERE, cluster("sync", (1, 2, 3)), {})
    assert found.weight is Weight.NOTE
    assert found.text.startswith(
        "slave 2, 3 can't be asked how far it is: it is not registered, as slaves in mode sync"
    )
    found, _ = judge_others(HERE, cluster("async", (1, 2, 3)), {2: at(500, FIRST, SECOND)})[::-1]
    assert found.text == "slave 3 can't be asked how far it is: it is not registered"
    assert judge_others(HERE, cluster("sync", (1,)), {}) == []


def test_two_copies_agree_up_to_where_they_part() -> None:
    assert relation(HERE, dataclasses.replace(COPY, end=600)) == (500, 0, 100)
    assert relation(HERE, dataclasses.replace(COPY, end=350)) == (350, 150, 0)
    assert relation(HERE, dataclasses.replace(COPY, lives=(FIRST,))) == (300, 200, 200)
    assert relation(HERE, dataclasses.replace(COPY, lives=(THIRD,))) is None
