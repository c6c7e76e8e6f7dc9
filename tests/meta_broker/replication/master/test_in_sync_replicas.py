"""The in-sync set and the replicated LSN as slaves come, lag, go silent and return."""

from itertools import count
from typing import Literal

import pytest

from journal.records.header import Lsn
from journal.wal.high_watermark import LSN_MAX
from meta_broker.config.sections import ReplicationSection
from meta_broker.errors import ConfigError
from meta_broker.replication.link_protocol import LinkRefused
from meta_broker.replication.master.handshake import SendProgress
from meta_broker.replication.master.in_sync_replicas import NOTHING, SLAVES_MAX, InSyncReplicas
from meta_broker.replication.master.loss_check import LossCheck
from zk.brokers.replication import ReplicationNode

pytestmark = pytest.mark.scenario("H06")

SYNC = ReplicationSection(mode="sync")
DEGRADE = ReplicationSection(mode="sync", without_slaves="degrade")


def begun(section: ReplicationSection = SYNC, node: ReplicationNode | None = None) -> InSyncReplicas:
    in_sync = InSyncReplicas(section, 1, "meta://m:1", 0.0, LossCheck())
    in_sync.load(node, 0.0)
    return in_sync


def node(*slaves: int, mode: str = "sync", epoch: int = 1) -> ReplicationNode:
    assert mode in ("sync", "async")
    return ReplicationNode(
        epoch=epoch, mode="sync" if mode == "sync" else "async", in_sync=slaves, in_sync_min=1, master="meta://m:1"
    )


def settle(in_sync: InSyncReplicas, high_watermark: int, now: float) -> ReplicationNode | None:
    """Return the change due for ZooKeeper at *now*, written at once."""
    wanted = in_sync.plan(Lsn(high_watermark), now)
    if wanted is not None:
        in_sync.on_written(wanted)
    return wanted


def first_change(in_sync: InSyncReplicas, high_watermark: int, now: float) -> tuple[float, ReplicationNode]:
    """Return the first time, in half-second steps, at which a change is due, and the change."""
    for step in count(1):
        if (wanted := in_sync.plan(Lsn(high_watermark), now + 0.5 * step)) is not None:
            return now + 0.5 * step, wanted
    raise AssertionError


def test_async_after_sync_waits_until_no_slave_is_said_to_have_everything() -> None:
    in_sync = begun(ReplicationSection(), node(1))
    assert in_sync.replicated == NOTHING
    assert settle(in_sync, 0, 0.1) == ReplicationNode(epoch=1, in_sync=(1,), master="meta://m:1")
    assert in_sync.replicated == LSN_MAX
    assert begun(ReplicationSection(), node()).replicated == LSN_MAX


def test_async_does_not_wait_and_leaves_no_trace_without_slaves() -> None:
    in_sync = begun(ReplicationSection())
    assert in_sync.replicated == LSN_MAX
    assert settle(in_sync, 500, 1.0) is None
    in_sync.on_connected(1, Lsn(500), 1.0)
    in_sync.on_ack(1, Lsn(500), Lsn(500), 1.1)
    assert settle(in_sync, 500, 1.2) == ReplicationNode(epoch=1, in_sync=(1,), master="meta://m:1")
    assert in_sync.replicated == LSN_MAX


def test_nothing_is_replicated_before_zookeeper_was_read() -> None:
    in_sync = InSyncReplicas(DEGRADE, 1, "m", 0.0, LossCheck())
    assert in_sync.replicated == NOTHING
    assert in_sync.plan(Lsn(0), 0.5) is None


def test_refuse_waits_for_a_first_slave_and_degrade_does_not() -> None:
    assert begun(SYNC).replicated == NOTHING
    assert begun(DEGRADE).replicated == LSN_MAX


def test_a_slave_joins_once_it_has_everything_acknowledged_and_is_waited_for_before_it_is_written() -> None:
    in_sync = begun(DEGRADE, node())
    in_sync.on_connected(1, Lsn(1000), 0.1)
    in_sync.on_ack(1, Lsn(400), Lsn(1000), 0.2)
    assert in_sync.plan(Lsn(900), 0.5) is None
    assert in_sync.replicated == LSN_MAX
    in_sync.on_ack(1, Lsn(1000), Lsn(1100), 0.6)
    wanted = in_sync.plan(Lsn(1000), 0.7)
    assert wanted == node(1)
    assert in_sync.replicated == 1000  # it may stand there already
    assert in_sync.plan(Lsn(1000), 0.8) is None  # one at a time
    in_sync.on_written(wanted)
    in_sync.on_ack(1, Lsn(1100), Lsn(1100), 0.9)
    assert in_sync.replicated == 1100


def test_a_slave_leaves_zookeeper_before_anything_counts_without_it() -> None:
    in_sync = begun(DEGRADE, node(1))
    in_sync.on_connected(1, Lsn(100), 0.1)
    in_sync.on_ack(1, Lsn(100), Lsn(100), 0.2)
    in_sync.on_disconnected(1)
    for step in range(1, 6):
        assert in_sync.plan(Lsn(100), 0.2 + 0.5 * step) is None
    assert in_sync.replicated == 100
    wanted = in_sync.plan(Lsn(100), 3.3)
    assert wanted == node()
    assert in_sync.replicated == 100  # ZooKeeper may be away for long
    in_sync.on_written(wanted)
    assert in_sync.replicated == LSN_MAX


def test_refuse_stops_when_the_last_one_leaves_and_goes_on_when_one_is_back() -> None:
    in_sync = begun(SYNC, node(1))
    for step in range(1, 20):
        assert in_sync.plan(Lsn(0), 0.5 * step) is None  # it stays named: it has everything that was acknowledged
        assert in_sync.is_refusing == (0.5 * step > 3.0)
    assert in_sync.why_not(1, 9.5) == "silent"
    assert in_sync.replicated == NOTHING
    in_sync.on_connected(1, Lsn(100), 10.0)
    in_sync.on_ack(1, Lsn(100), Lsn(100), 10.1)
    assert in_sync.plan(Lsn(50), 10.2) is None
    assert not in_sync.is_refusing
    assert in_sync.replicated == 100


def test_refuse_gives_up_a_slave_only_for_another_one() -> None:
    in_sync = begun(SYNC, node(1))
    for step in range(1, 18):
        assert in_sync.plan(Lsn(100), 0.5 * step) is None
    in_sync.on_connected(2, Lsn(100), 8.5)
    in_sync.on_ack(2, Lsn(100), Lsn(100), 8.55)
    wanted = in_sync.plan(Lsn(100), 8.6)
    assert wanted == node(2)
    assert in_sync.replicated == NOTHING  # slave 1 may stand there still
    in_sync.on_written(wanted)
    assert in_sync.replicated == 100


@pytest.mark.parametrize("has_reported", [False, True])
@pytest.mark.parametrize("in_sync_min", [1, 2])
@pytest.mark.parametrize("without_slaves", ["refuse", "degrade"])
def test_a_slave_that_starts_over_leaves_the_in_sync_set(
    in_sync_min: int, without_slaves: Literal["refuse", "degrade"], has_reported: bool
) -> None:
    """A slave with an emptied directory leaves the set: a master that lost its tail would trust it to have that."""
    section = ReplicationSection(mode="sync", in_sync_min=in_sync_min, without_slaves=without_slaves)
    in_sync = begun(section, node(1, 2))
    for slave_id in (1, 2):
        in_sync.on_connected(slave_id, Lsn(1000), 0.1)
        in_sync.on_ack(slave_id, Lsn(1000), Lsn(1000), 0.2)
    settle(in_sync, 1000, 0.3)
    in_sync.on_disconnected(1)
    in_sync.on_connected(1, Lsn(1000), 0.5, is_empty=True)
    if has_reported:
        in_sync.on_ack(1, Lsn(128), Lsn(1000), 0.6)
    wanted = settle(in_sync, 1000, 0.7)
    assert wanted is not None
    assert wanted.in_sync == (2,)
    in_sync.on_ack(1, Lsn(1000), Lsn(1000), 0.8)
    joined = settle(in_sync, 1000, 0.9)
    assert joined is not None
    assert joined.in_sync == (1, 2)


def test_every_slave_in_sync_is_waited_for_so_that_each_can_be_promoted() -> None:
    in_sync = begun(SYNC, node(1, 2))
    for slave_id, reported in ((1, 700), (2, 300)):
        in_sync.on_connected(slave_id, Lsn(700), 0.1)
        in_sync.on_ack(slave_id, Lsn(reported), Lsn(700), 0.2)
    assert in_sync.replicated == 300


def test_a_slave_that_stays_behind_leaves_although_it_talks() -> None:
    in_sync = begun(DEGRADE, node(1))
    in_sync.on_connected(1, Lsn(100), 0.0)
    now, end, step = 0.0, 0, 0
    while now < 10:
        step += 1
        now, end = 0.1 * step, 100 + 1000 * step
        in_sync.on_ack(1, Lsn(step), Lsn(end), now)  # a byte a step, and the master a thousand
        if settle(in_sync, 0, now) is not None:
            break
    assert in_sync.why_not(1, now) == "behind"
    assert 2.9 < now < 3.3
    assert in_sync.lag_s(1, now) == pytest.approx(now, abs=0.2)
    in_sync.on_ack(1, Lsn(end), Lsn(end), now + 0.1)
    assert settle(in_sync, 0, now + 0.2) == node(1)


def test_a_slave_that_keeps_up_with_a_full_load_stays_though_it_never_has_everything() -> None:
    in_sync = begun(SYNC, node(1))
    in_sync.on_connected(1, Lsn(0), 0.0)
    for step in range(1, 200):
        in_sync.on_ack(1, Lsn(1000 * (step - 1)), Lsn(1000 * step), 0.1 * step)
        assert settle(in_sync, 0, 0.1 * step) is None
    assert in_sync.lag_s(1, 20.0) < 0.4


def test_a_pause_of_the_master_is_not_silence_of_its_slaves() -> None:
    in_sync = begun(DEGRADE, node(1))
    in_sync.on_connected(1, Lsn(100), 0.1)
    in_sync.on_ack(1, Lsn(100), Lsn(100), 0.2)
    assert in_sync.plan(Lsn(100), 0.5) is None
    assert in_sync.plan(Lsn(100), 60.0) is None  # stopped for a minute: it may have been superseded meanwhile
    assert in_sync.why_not(1, 60.0) == ""
    now, wanted = first_change(in_sync, 100, 60.0)
    assert wanted == node()
    assert 62.0 <= now <= 64.0


def test_a_new_epoch_is_written_at_once() -> None:
    in_sync = InSyncReplicas(SYNC, 3, "meta://new:1", 0.0, LossCheck())
    in_sync.load(node(1, 2, epoch=3), 0.0)
    assert settle(in_sync, 0, 0.1) == ReplicationNode(
        epoch=3, mode="sync", in_sync=(1, 2), in_sync_min=1, master="meta://new:1"
    )
    assert in_sync.replicated == NOTHING  # until both have said what they have


def test_names_of_slaves_are_bounded() -> None:
    in_sync = begun(SYNC, node(0))
    for slave_id in range(1, 3 * SLAVES_MAX):
        in_sync.on_connected(slave_id, Lsn(0), 0.1)
        in_sync.on_disconnected(slave_id)
    assert len(in_sync.slaves) == SLAVES_MAX
    assert 0 in in_sync.slaves
    for slave_id in range(1000, 1000 + SLAVES_MAX - 1):
        in_sync.on_connected(slave_id, Lsn(0), 0.1)
    with pytest.raises(LinkRefused, match="no more than that"):
        in_sync.on_connected(5000, Lsn(0), 0.2)


def test_times_that_would_give_up_a_slave_that_is_well() -> None:
    ReplicationSection().check("f")
    with pytest.raises(ConfigError, match=r"f: replication\.silence_ms 1000"):
        ReplicationSection(silence_ms=1000).check("f")
    with pytest.raises(ConfigError, match=r"f: replication\.lag_ms 1000"):
        ReplicationSection(lag_ms=1000).check("f")


@pytest.mark.parametrize("section", [SYNC, DEGRADE], ids=["refuse", "degrade"])
def test_a_master_that_may_have_lost_something_waits_for_one_that_was_in_sync(section: ReplicationSection) -> None:
    loss = LossCheck()
    loss.load(node(1, 2), is_whole=False)
    in_sync = InSyncReplicas(section, 1, "meta://m:1", 0.0, loss)
    in_sync.load(node(1, 2), 0.0)
    in_sync.on_connected(3, Lsn(500), 0.1)
    in_sync.on_ack(3, Lsn(500), Lsn(500), 0.2)  # it has all that is here, which may be too little
    for step in range(100):  # long beyond silence_ms
        in_sync.on_ack(3, Lsn(500), Lsn(500), 0.5 * step)
        settle(in_sync, 0, 0.5 * step)
        assert in_sync.members == (1, 2)
        assert in_sync.replicated == NOTHING
        assert not loss.confirm(SendProgress(3, Lsn(500), keeps_own_journal=True))
    in_sync.on_connected(2, Lsn(500), 50.0)
    in_sync.on_ack(2, Lsn(500), Lsn(500), 50.0)
    assert in_sync.replicated == NOTHING
    assert loss.confirm(SendProgress(2, Lsn(500), keeps_own_journal=True))
    settle(in_sync, 0, 50.1)
    assert in_sync.members == (2, 3)
    assert in_sync.replicated == 500


def test_what_a_slave_turns_out_to_have_stops_everything_until_it_or_another_one_says_otherwise() -> None:
    loss = LossCheck()
    in_sync = InSyncReplicas(DEGRADE, 1, "meta://m:1", 0.0, loss)
    in_sync.load(node(1, 2), 0.0)
    in_sync.on_connected(2, Lsn(500), 0.1)
    in_sync.on_ack(2, Lsn(500), Lsn(500), 0.2)
    loss.suspect({1, *in_sync.members})
    assert in_sync.replicated == NOTHING
    for step in range(100):
        assert settle(in_sync, 0, 0.5 * step) is None
    assert loss.confirm(SendProgress(2, Lsn(500), keeps_own_journal=True))
    assert settle(in_sync, 0, 50.0) is not None


def test_nobody_leaves_with_what_is_acknowledged_and_not_fsynced_here() -> None:
    in_sync = begun(DEGRADE, node(1))
    in_sync.on_connected(1, Lsn(500), 0.1)
    in_sync.on_ack(1, Lsn(500), Lsn(500), 0.2)
    for step in range(20):
        assert in_sync.plan(Lsn(500), 0.5 * step, Lsn(499)) is None
    assert in_sync.wants_flush
    wanted = in_sync.plan(Lsn(500), 10.0, Lsn(500))
    assert wanted is not None
    assert wanted.in_sync == ()
    assert not in_sync.wants_flush
