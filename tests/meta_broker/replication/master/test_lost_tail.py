"""A master that lost what it had acknowledged takes it back from a slave in sync before it acknowledges anything."""

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from journal.repair.offline import opened_store
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.power import cut_power
from tests.fixtures.replicas import Replicas, wait_identical, wait_until
from tests.fixtures.wire import Refused, WireClient
from tests.meta_broker.replication.master.test_watermark import (
    SYNC,
    is_written,
    put_acknowledged,
    unanswered,
    wait_written_down,
    written_down,
)
from zk.brokers.replication import read_replication
from zk.embedded.chroot import Chroot
from zk.session.session import ZooKeeperSession

DEGRADE = SYNC + "without_slaves = 'degrade'\n"
FIRST = [b"%04d" % number for number in range(20)]
NEVER_FLUSHED = "interval:60000"


def everything(broker: BrokerProcess) -> list[tuple[int, bytes]]:
    """Each offset with what it serves."""
    with WireClient(broker.port) as client:
        return [(offset, message.payload) for offset, message in client.read_all("orders", 0)]


def serves(broker: BrokerProcess, wanted: list[tuple[int, bytes]]) -> bool:
    """Return whether it serves; it may just be restarting."""
    try:
        return everything(broker) == wanted
    except ConnectionError:
        return False


def is_logged(broker: BrokerProcess, text: str, at: int = 0) -> bool:
    """From byte *at* of its log on."""
    return text in broker.log_from(at)


def payloads(broker: BrokerProcess) -> list[bytes]:
    return [payload for _, payload in everything(broker)]


def pair_of(tmp_path: Path, zookeeper: Chroot, config: str, flush: str, slaves: int = 1) -> Replicas:
    replicas = Replicas(tmp_path / "pair", zookeeper.connect, config, slaves)
    replicas.master.flush = flush
    return replicas


@pytest.fixture
def pair(tmp_path: Path, zookeeper: Chroot) -> Iterator[Replicas]:
    """Master whose writes are never fsynced, and slave 1, which fsyncs all."""
    with pair_of(tmp_path, zookeeper, SYNC, NEVER_FLUSHED) as replicas:
        put_acknowledged(replicas.master, FIRST)
        yield replicas


def configure(master: BrokerProcess, **replication_ms: int) -> None:
    """Change times of its replication, from its next start on."""
    config = master.config_path.read_text()
    for key, ms in replication_ms.items():
        config, found = re.subn(rf"\b{key} = \d+", f"{key} = {ms}", config)
        assert found == 1
    master.config_path.write_text(config)


def check_all(replicas: Replicas, before: list[tuple[int, bytes]]) -> None:
    """Check that all records are still there, the master goes on, and its slave has the same bytes; then again after
    the slave's promotion."""
    master, slave = replicas.master, replicas.slaves[0]
    put_acknowledged(master, [b"later"])
    after = everything(master)
    assert after[: len(before)] == before
    assert [payload for _, payload in after[len(before) :]] == [b"later"]
    wait_identical(master.data, slave.data)
    assert (master.stop(), slave.stop()) == (0, 0)
    replicas.promote(slave)
    assert everything(slave) == after


def test_what_a_power_cut_took_comes_back_before_anything_is_acknowledged(pair: Replicas) -> None:
    before = everything(pair.master)
    assert len(before) == len(FIRST)
    master = pair.master
    master.kill()
    assert cut_power(master.data) > 0
    master.start()
    check_all(pair, before)
    assert "lost tail restored" in master.log


def test_it_survives_restarts_and_an_operator_opening_the_directory(pair: Replicas) -> None:
    before = everything(pair.master)
    pair.slaves[0].kill()
    pair.master.kill()
    cut_power(pair.master.data)
    configure(pair.master, timeout_ms=1000)
    for _ in range(2):
        pair.master.start()  # each writes its own records where the lost ones stood
        assert before[: len(everything(pair.master))] == everything(pair.master)
        with WireClient(pair.master.port) as client, pytest.raises(Refused, match="not yet replicated"):
            client.put("orders", 0, b"nobody was told")
        assert pair.master.stop() == 0
        assert not written_down(pair.master.data).is_whole
    with opened_store(pair.master.data, "test"):
        pass
    pair.slaves[0].start()
    pair.master.start()
    check_all(pair, before)


def test_a_master_that_may_go_on_alone_does_not_before_a_slave_that_has_everything_was_heard(
    tmp_path: Path, zookeeper: Chroot
) -> None:
    with pair_of(tmp_path, zookeeper, DEGRADE, NEVER_FLUSHED) as replicas:
        master, slave = replicas.master, replicas.slaves[0]
        with ZooKeeperSession(zookeeper.connect) as session:

            def in_sync() -> tuple[int, ...]:
                node = read_replication(session, 0).node
                return node.in_sync if node is not None else ()

            wait_until(lambda: in_sync() == (1,), "the slave is in sync")
            put_acknowledged(master, FIRST)
            before = everything(master)
            slave.kill()
            master.kill()
            cut_power(master.data)
            configure(master, silence_ms=1000, lag_ms=1000, timeout_ms=1000)
            master.start()
            with WireClient(master.port) as client:
                with pytest.raises(Refused, match="not yet replicated"):
                    client.put("orders", 0, b"nobody was told")
                until = time.monotonic() + 2  # silence_ms, twice
                while time.monotonic() < until:
                    with pytest.raises(Refused, match="no slave that has it is connected: one of 1"):
                        client.put("orders", 0, b"nobody was told")
            assert in_sync() == (1,)
        slave.start()
        wait_until(lambda: "lost tail restored" in master.log, "the master has what it lost")
        wait_until(lambda: serves(master, before), "and shows it")
        check_all(replicas, before)


def test_a_master_that_may_lack_something_does_not_change_over_to_waiting_for_nobody(pair: Replicas) -> None:
    before = everything(pair.master)
    config = pair.master.config_path.read_text()
    pair.master.kill()
    cut_power(pair.master.data)
    pair.master.config_path.write_text(config.replace("mode = 'sync'", "mode = 'async'"))
    with pytest.raises(AssertionError, match="may lack what was acknowledged; in sync are slaves 1: start it in mode"):
        pair.master.start()
    pair.master.config_path.write_text(config)
    pair.master.start()
    wait_until(lambda: serves(pair.master, before), "the master has what it lost")
    assert pair.master.stop() == 0
    pair.master.config_path.write_text(config.replace("mode = 'sync'", "mode = 'async'"))
    pair.master.start()
    assert everything(pair.master) == before


def test_a_slave_that_is_new_does_not_take_the_place_of_one_that_has_everything(
    tmp_path: Path, zookeeper: Chroot
) -> None:
    with pair_of(tmp_path, zookeeper, SYNC, NEVER_FLUSHED) as replicas:
        master, slave = replicas.master, replicas.slaves[0]
        put_acknowledged(master, FIRST)
        before = everything(master)
        slave.kill()
        master.kill()
        cut_power(master.data)
        newcomer = replicas.add_process(2)
        newcomer.link = replicas.new_link(newcomer)
        configure(master, silence_ms=1000, lag_ms=1000)
        master.start()
        newcomer.start()
        with WireClient(master.port) as client:

            def has_all() -> bool:
                lines = [line for line in client.stats("replication") if line.startswith("slave 2 ")]
                return any(" lag_bytes 0 " in line for line in lines)

            wait_until(has_all, "the newcomer has what the master has")
            until = time.monotonic() + 2  # silence_ms, twice: the other one would have left
            while time.monotonic() < until:
                with pytest.raises(Refused):
                    client.put("orders", 0, b"nobody was told")
        slave.start()
        put_acknowledged(master, [b"later"])
        assert payloads(master) == [*FIRST, b"later"]
        assert everything(master)[: len(before)] == before


@pytest.mark.parametrize("flush", ["sync", NEVER_FLUSHED])
def test_a_directory_that_is_restored_from_an_older_copy_gets_the_rest_back(
    tmp_path: Path, zookeeper: Chroot, flush: str
) -> None:
    with pair_of(tmp_path, zookeeper, SYNC, flush) as replicas:
        master = replicas.master
        put_acknowledged(master, FIRST)
        assert master.stop() == 0
        shutil.copytree(master.data, tmp_path / "copy")
        master.start()
        put_acknowledged(master, [b"%04d" % number * 16_000 for number in range(100)])  # more than a segment
        before = everything(master)
        master.kill_and_lose()
        shutil.copytree(tmp_path / "copy", master.data, dirs_exist_ok=True)
        master.start()
        wait_until(lambda: "lost tail restored" in master.log, "the master has what it lost")
        check_all(replicas, before)


def test_a_master_that_is_killed_while_it_takes_back_what_it_lost_does_so_the_next_time(pair: Replicas) -> None:
    while True:
        with WireClient(pair.master.port) as client:
            for number in range(40):
                client.put("orders", 0, b"%04d" % number * 16_000)
        before = everything(pair.master)
        pair.master.kill()
        if cut_power(pair.master.data) > 0:  # else a checkpoint covered all of it
            break
        pair.master.start()
    begun = 0
    for delay_s in (0.0, 0.02, 0.05, 0.1):
        at, patience = pair.master.launch(), time.monotonic() + (10 if begun else 60)
        while not is_logged(pair.master, "lost here, fetching", at) and time.monotonic() < patience:
            time.sleep(0.01)
        time.sleep(delay_s)  # it is killed somewhere further on, or was done
        pair.master.kill()
        if not is_logged(pair.master, "lost here, fetching", at):
            break  # the one before had done it, and was killed before it said so
        begun += 1
        if is_logged(pair.master, "lost tail restored", at):
            break
    assert begun
    pair.master.start()
    check_all(pair, before)


def test_an_empty_directory_is_no_masters_that_could_acknowledge_anything(pair: Replicas) -> None:
    """After a disk was replaced, the slave that has everything is not truncated to match a new journal."""
    before = everything(pair.master)
    wait_written_down(pair)
    pair.master.kill_and_lose()
    configure(pair.master, timeout_ms=1000)
    pair.master.start()
    wait_until(lambda: "shares nothing with this master" in pair.slaves[0].log, "the slave says what is wrong")
    with WireClient(pair.master.port) as client:
        with pytest.raises(Refused):
            client.put("orders", 0, b"nobody was told")
        assert any(" state refusing " in line for line in client.stats("replication"))
    pair.master.kill()
    slave, emptied = pair.slaves[0], pair.master
    assert slave.stop() == 0
    pair.promote(slave)
    assert everything(slave) == before
    assert "and start this one with an empty directory: it will follow" in slave.log
    shutil.rmtree(emptied.data)
    at = emptied.launch()
    wait_until(lambda: is_logged(emptied, "following master=", at), "the new disk has a slave's copy")


def test_a_slave_in_sync_that_comes_back_with_an_empty_directory_speaks_for_nobody(
    tmp_path: Path, zookeeper: Chroot
) -> None:
    """The power takes the master's tail and one slave's disk; another slave in sync has all that was acknowledged."""
    with pair_of(tmp_path, zookeeper, SYNC, NEVER_FLUSHED, slaves=2) as replicas:
        master, (emptied, whole) = replicas.master, replicas.slaves
        with ZooKeeperSession(zookeeper.connect) as session:

            def are_in_sync() -> bool:
                node = read_replication(session, 0).node
                return node is not None and node.in_sync == (1, 2)

            wait_until(are_in_sync, "both slaves are in sync")
            put_acknowledged(master, FIRST)
            assert are_in_sync()
        before = everything(master)
        emptied.kill()
        whole.kill()
        master.kill()
        cut_power(master.data)
        shutil.rmtree(emptied.data)
        master.start()
        emptied.start()
        with WireClient(master.port) as client:

            def has_begun() -> bool:
                """Refused, or fed with what the master has left."""
                lines = [line for line in client.stats("replication") if line.startswith("slave 1 ")]
                return "has nothing now" in emptied.log or any(" lag_bytes 0 " in line for line in lines)

            wait_until(has_begun, "the slave with nothing was heard")
        emptied.kill()
        emptied.start()  # if it was fed, all that it has is its master's
        time.sleep(2)  # to be let in
        whole.start()
        put_acknowledged(master, [b"later"])
        assert everything(master)[: len(before)] == before


def test_two_slaves_in_sync_that_part_from_each_other_do_not_keep_a_master_from_serving(
    tmp_path: Path, zookeeper: Chroot
) -> None:
    """The power goes under load: one slave has a message more, which nobody was told of."""
    with pair_of(tmp_path, zookeeper, SYNC + "in_sync_min = 2\n", NEVER_FLUSHED, slaves=2) as replicas:
        master, (shorter, longer) = replicas.master, replicas.slaves
        put_acknowledged(master, FIRST)
        before = everything(master)
        shorter.kill()
        with unanswered(master):
            wait_until(lambda: is_written(master) and is_written(longer), "one slave has it")
            longer.kill()
            master.kill()
        cut_power(master.data)
        master.start()
        shorter.start()
        wait_until(lambda: "lost tail restored" in master.log, "the master has what both have")
        wait_until(lambda: master.log.count("slave linked slave=1") > 0, "and goes on with it")
        time.sleep(1)
        longer.start()
        put_acknowledged(master, [b"later"])
        assert everything(master)[: len(before)] == before
        assert master.log.count("lost tail restored") <= 3
