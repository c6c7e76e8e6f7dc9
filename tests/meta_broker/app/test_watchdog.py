"""A broker with a hanging disk leaves ZooKeeper, acknowledges nothing, and returns when it is safe to."""

import asyncio
import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from journal.state.wall_clock import wall_clock_ms
from meta_broker.app.watchdog import GOOD_SAMPLES, SAMPLES, HangDetector, LoopWatchdog, ProgressSample
from meta_broker.config.broker_config import BrokerConfig
from meta_broker.store.message_store import MessageStore
from tests.fixtures.broker import CONFIG, BrokerProcess
from tests.fixtures.frozen_disk import FreezableDisk, freezable_disk, make_busy
from tests.fixtures.replicas import ReplicaProcess
from tests.fixtures.tcp_proxy import TcpProxy
from tests.fixtures.wire import WireClient
from tests.fixtures.zookeeper_tree import snapshot, wait_until
from zk.brokers.replication import claim_epoch, read_replication
from zk.embedded.chroot import Chroot
from zk.session.session import ZooKeeperSession

MASTER = "/meta/brokers/ids/0/master"
SLAVE = "/meta/brokers/ids/0/slave1"
# A session longer than any test: a broker gone from ZooKeeper has left by itself.
PATIENT = CONFIG.replace("session_timeout_ms = 4000", "session_timeout_ms = 120000").replace(
    "[broker]", "[broker]\nhang_seconds_max = 1.0"
)


def changes(detector: HangDetector, samples: list[ProgressSample]) -> list[bool]:
    """Return whether it hangs after all *samples*."""
    for sample in samples:
        detector.add_sample(sample)
    return [detector.is_hanging]


IDLE = [ProgressSample(number, 100, 100) for number in range(3 * SAMPLES)]
BUSY = [ProgressSample(number, 100 + 10 * number, 60 + 10 * number) for number in range(3 * SAMPLES)]
SLOW = [ProgressSample(number, 500, 60 + number // (SAMPLES - 1)) for number in range(3 * SAMPLES)]
LOOP_STUCK = [ProgressSample(7, 100, 100)] * (SAMPLES + 1)
DISK_STUCK = [ProgressSample(number, 101, 100) for number in range(SAMPLES + 1)]


@pytest.mark.parametrize(
    ("samples", "hangs"),
    [
        (IDLE, False),
        (BUSY, False),
        (SLOW, False),
        (LOOP_STUCK, True),
        (LOOP_STUCK[1:], False),
        (DISK_STUCK, True),
        (DISK_STUCK[1:], False),
        ([*DISK_STUCK, ProgressSample(50, 101, 101)], True),  # it may be the last thing it did
        ([*DISK_STUCK, *(ProgressSample(50 + number, 101, 101) for number in range(GOOD_SAMPLES))], False),
        (
            [*DISK_STUCK, *(ProgressSample(50, 101, 101) for _ in range(GOOD_SAMPLES + 1))],
            True,
        ),  # the loop is stuck
    ],
)
def test_what_hangs_is_told_by_samples_without_progress(samples: list[ProgressSample], hangs: bool) -> None:
    assert changes(HangDetector(), samples) == [hangs]


def test_a_journal_that_is_fsynced_at_intervals_may_lie_behind_for_as_long() -> None:
    detector = HangDetector(journal_samples=2 * SAMPLES)
    assert changes(detector, [ProgressSample(number, 101, 100) for number in range(2 * SAMPLES)]) == [False]
    assert changes(detector, [ProgressSample(99, 101, 100)]) == [True]


@pytest.fixture
def session(zookeeper: Chroot) -> Iterator[ZooKeeperSession]:
    with ZooKeeperSession(zookeeper.connect) as session:
        yield session


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FreezableDisk]:
    with freezable_disk(tmp_path / "disk") as disk:
        yield disk


@contextlib.contextmanager
def running(broker: BrokerProcess, disk: FreezableDisk) -> Iterator[BrokerProcess]:
    """Until the end, when the disk is thawed: nobody could kill it before."""
    try:
        yield broker.start()
    finally:
        disk.thaw()
        broker.kill()


def warmed_up(broker: BrokerProcess) -> WireClient:
    """A client that keeps the broker busy: its next put is fsynced by the loop."""
    client = WireClient(broker.port)
    make_busy(client)
    return client


def gone(session: ZooKeeperSession, path: str = MASTER) -> bool:
    return session.read(path) is None


@pytest.mark.parametrize("flush", ["sync", "interval:20"])
def test_a_master_whose_disk_hangs_leaves_zookeeper_and_comes_back_with_it(
    flush: str, disk: FreezableDisk, zookeeper: Chroot, session: ZooKeeperSession, tmp_path: Path
) -> None:
    broker = BrokerProcess(tmp_path / "data", zookeeper.connect, config=PATIENT)
    broker.data, broker.flush = disk.directory / "data", flush
    with running(broker, disk), warmed_up(broker) as client, ThreadPoolExecutor(1) as worker:
        tree = snapshot(session)
        disk.freeze()
        hung = worker.submit(client.put, "orders", 1, b"while it hangs")
        wait_until(lambda: gone(session))
        assert [path for path in snapshot(session) if path != "/meta/brokers/ids/0"] == []
        wait_until(lambda: "CRITICAL meta_broker.app.watchdog hangs for=" in broker.log)
        named = re.search(r"hangs for=\d+\.\d s disk file=(\S+) .*: ZooKeeper session given up", broker.log)
        assert named is not None
        assert Path(named[1]).exists()
        assert named[1].endswith(".journal")
        assert not hung.done()
        disk.thaw()
        hung.result(60)
        wait_until(lambda: snapshot(session) == tree)
        assert "no longer hanging" in broker.log
        assert [message.payload for _, message in client.read_all("orders", 1)] == [b"while it hangs"]
        assert broker.stop() == 0


def test_a_master_that_was_superseded_while_its_disk_hung_acknowledges_nothing(
    disk: FreezableDisk, zookeeper: Chroot, session: ZooKeeperSession, tmp_path: Path
) -> None:
    broker = BrokerProcess(tmp_path / "data", zookeeper.connect, config=PATIENT + "\n[slave]\nid = 1\n")
    broker.data = disk.directory / "data"
    with running(broker, disk), warmed_up(broker) as client, ThreadPoolExecutor(1) as worker:
        disk.freeze()
        hung = worker.submit(client.put, "orders", 1, b"while it hangs")
        wait_until(lambda: gone(session))
        claim_epoch(session, 0, read_replication(session, 0), 1, "a slave that is promoted")
        disk.thaw()
        with pytest.raises(ConnectionError):
            hung.result(60)
        wait_until(lambda: "slave 1 of broker 0 serves at" in broker.log)  # as any superseded master
        assert gone(session)


def test_a_master_that_hangs_again_and_is_told_to_stop_meanwhile_stops(
    disk: FreezableDisk, zookeeper: Chroot, session: ZooKeeperSession, tmp_path: Path
) -> None:
    broker = BrokerProcess(tmp_path / "data", zookeeper.connect, config=PATIENT)
    broker.data = disk.directory / "data"
    with running(broker, disk), warmed_up(broker) as client, ThreadPoolExecutor(1) as worker:
        disk.freeze()
        hung = worker.submit(client.put, "orders", 1, b"first")
        wait_until(lambda: gone(session))
        disk.thaw()
        hung.result(60)
        wait_until(lambda: not gone(session))
        disk.freeze()
        hung = worker.submit(client.put, "orders", 1, b"second")
        wait_until(lambda: gone(session))
        os.kill(broker.pid, signal.SIGTERM)
        disk.thaw()
        assert broker.wait() == 0
        assert snapshot(session) in ({}, {"/meta/brokers/ids/0": (broker.url.encode(), False)})
        with contextlib.suppress(ConnectionError):  # it may have been answered, or not
            hung.result(60)
        assert "Traceback" not in broker.log
    with running(broker, disk), WireClient(broker.port) as client:
        assert [message.payload for _, message in client.read_all("orders", 1)] == [b"first", b"second"]


def test_a_master_that_hung_acknowledges_nothing_while_zookeeper_is_away(
    disk: FreezableDisk, zookeeper: Chroot, session: ZooKeeperSession, tmp_path: Path
) -> None:
    server, _, chroot = zookeeper.connect.partition("/")
    config = PATIENT.replace("[zookeeper]", "[zookeeper]\nconnect_timeout_ms = 5000")
    with TcpProxy(int(server.rpartition(":")[2])) as link:
        broker = BrokerProcess(tmp_path / "data", f"{link.connect}/{chroot}", config=config)
        broker.data = disk.directory / "data"
        with running(broker, disk), warmed_up(broker) as client, ThreadPoolExecutor(1) as worker:
            disk.freeze()
            hung = worker.submit(client.put, "orders", 1, b"while it hangs")
            wait_until(lambda: gone(session))
            link.refuse()
            disk.thaw()
            wait_until(lambda: "not back in ZooKeeper, trying again" in broker.log)
            assert not hung.done()
            with WireClient(broker.port) as other:  # everything else goes on
                assert {message.payload for _, message in other.read_all("orders", 0)} == {b"before"}
                assert list(other.read_all("orders", 1)) == []
            link.heal()
            hung.result(60)
            assert not gone(session)
            assert broker.stop() == 0


def test_a_slave_whose_disk_hangs_leaves_zookeeper_and_comes_back_with_it(
    disk: FreezableDisk, zookeeper: Chroot, session: ZooKeeperSession, tmp_path: Path
) -> None:
    master = BrokerProcess(tmp_path / "master", zookeeper.connect, config=PATIENT)
    slave = ReplicaProcess(tmp_path / "slave", zookeeper.connect, 1, PATIENT)
    slave.data = disk.directory / "data"
    with running(master, disk), running(slave, disk), warmed_up(master) as client:
        wait_until(lambda: "registered broker=0-s1" in slave.log)  # with all its topics
        tree = snapshot(session)
        disk.freeze()
        client.put("orders", 1, b"while it hangs")
        wait_until(lambda: gone(session, SLAVE))
        wait_until(lambda: "CRITICAL meta_broker.app.watchdog hangs for=" in slave.log)
        disk.thaw()
        wait_until(lambda: snapshot(session) == tree)
        assert slave.stop() == 0
        assert master.stop() == 0


def test_an_event_loop_that_stands_still_is_said_to_with_the_place(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def stand_still() -> None:
        store = MessageStore.open(BrokerConfig(data=tmp_path, broker_id=0, port=0), "test", lambda: None, wall_clock_ms)
        watchdog = LoopWatchdog(store.journal, None, 0.2, store.suspend_acks, store.resume_acks)
        try:
            watchdog.begin(asyncio.get_running_loop())
            wait_until(lambda: "hangs for=" in caplog.text)  # on the loop
            await asyncio.to_thread(wait_until, lambda: "no longer hanging" in caplog.text)
        finally:
            watchdog.close()
            store.close()

    asyncio.run(asyncio.wait_for(stand_still(), 120))
    assert re.search(r"CRITICAL .* hangs for=\d\.\d s event loop at=.*\.py:\d+\n", caplog.text) is not None
    assert "session" not in caplog.text  # it has none


def test_a_broker_that_was_stopped_for_a_while_does_not_hang(
    disk: FreezableDisk, zookeeper: Chroot, session: ZooKeeperSession, tmp_path: Path
) -> None:
    broker = BrokerProcess(tmp_path / "broker", zookeeper.connect, config=PATIENT)
    broker.data = disk.directory / "data"
    with running(broker, disk), warmed_up(broker) as client:
        before = session.read(MASTER)
        broker.pause()
        time.sleep(2.0)  # twice what would be a hang
        broker.resume()
        client.put("orders", 0, b"after")
        assert broker.stop() == 0
        assert before is not None
        assert "hang" not in broker.log.replace("hang_seconds", "")
