"""After a start a master in mode sync shows what was acknowledged, as far as that was written down, and no more."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from journal.records.header import Lsn
from journal.wal.marks import WATERMARK, SavedWatermark, read_watermark, write_watermark
from journal.wal.storage import DirectoryStorage
from meta_broker.replication.replica.slave_file import SlaveFile
from meta_client.protocol.requests import Put
from tests.fixtures.broker import CONFIG, BrokerProcess, running_broker
from tests.fixtures.forked import run_metaq
from tests.fixtures.replicas import Replicas, wait_until
from tests.fixtures.wire import Refused, WireClient
from zk.embedded.chroot import Chroot

NO_CHECKPOINTS = CONFIG.replace("checkpoint_seconds = 2.0", "checkpoint_seconds = 1000.0")
# A slave that stalls stays in sync, and so does what is acknowledged; no put fails, to be stored all the same.
SYNC = NO_CHECKPOINTS + (
    "\n[replication]\nheartbeat_ms = 100\nsilence_ms = 20000\nlag_ms = 20000\ntimeout_ms = 50000\nmode = 'sync'\n"
)
FIRST = [b"%04d" % number for number in range(20)]
UNACKNOWLEDGED = b"nobody was told"


def seen(broker: BrokerProcess, partition: int = 0) -> list[bytes]:
    with WireClient(broker.port) as client:
        return [message.payload for _, message in client.read_all("orders", partition)]


def high_watermark(broker: BrokerProcess) -> int:
    with WireClient(broker.port) as client:
        words = client.stats("replication")[1].split()
        return int(words[words.index("high_watermark") + 1])


def written_down(directory: Path) -> SavedWatermark:
    watermark = read_watermark(DirectoryStorage.open_for_reading(directory))
    assert watermark is not None
    return watermark


def put_acknowledged(broker: BrokerProcess, bodies: list[bytes]) -> None:
    """Put them, one after the other; the first as soon as a slave is in sync."""

    def is_taken() -> bool:
        try:
            with WireClient(broker.port) as client:
                # A put that waits for a slave in vain is stored all the same, and would be again.
                if not any("in_sync true" in line and " lag_bytes 0 " in line for line in client.stats("replication")):
                    return False
                client.put("orders", 0, bodies[0])
        except (Refused, ConnectionError):  # it may begin again with what a slave has
            return False
        return True

    wait_until(is_taken, "a slave is in sync")
    with WireClient(broker.port) as client:
        for body in bodies[1:]:
            client.put("orders", 0, body)


def wait_written_down(replicas: Replicas) -> None:
    """The master has written down all that it has acknowledged, and its slave what it was told of that: all."""
    master, slave = replicas.master, replicas.slaves[0]
    reached = high_watermark(master)

    def slave_knows() -> bool:
        facts = SlaveFile(slave.data).read()
        return facts is not None and facts.high_watermark >= reached

    wait_until(lambda: written_down(master.data).lsn >= reached, "it is written down")
    wait_until(slave_knows, "the slave has it in its file")


@pytest.fixture
def pair(tmp_path: Path, zookeeper: Chroot) -> Iterator[Replicas]:
    """A master in mode sync that has acknowledged FIRST, and written that down; and slave 1, which knows it."""
    with Replicas(tmp_path / "pair", zookeeper.connect, SYNC) as running:
        put_acknowledged(running.master, FIRST)
        wait_written_down(running)
        yield running


@contextlib.contextmanager
def unanswered(master: BrokerProcess) -> Iterator[None]:
    """Put a message that not all slaves confirm. The block kills the master, which has not answered by then."""
    with WireClient(master.port) as client:
        client.send(Put("orders", 0, 0, None, None, 1, UNACKNOWLEDGED))
        yield
        with pytest.raises(ConnectionError):
            client.receive()


def is_written(broker: BrokerProcess) -> bool:
    """Return whether its files have the unacknowledged message."""
    return any(UNACKNOWLEDGED in path.read_bytes() for path in broker.data.glob("*.journal"))


def put_unacknowledged(pair: Replicas) -> None:
    """The slave is killed, one more message is put, which nobody but the master has, and the master is killed."""
    pair.slaves[0].kill()
    with unanswered(pair.master):
        wait_until(lambda: is_written(pair.master), "the master has it")
        pair.master.kill()


def start_both_and_see_all(pair: Replicas) -> None:
    pair.master.start()
    pair.slaves[0].start()
    wait_until(lambda: seen(pair.master) == [*FIRST, UNACKNOWLEDGED], "the slave has it, and everybody sees it")


def test_what_was_acknowledged_is_shown_after_a_crash_without_any_slave_and_nothing_else(pair: Replicas) -> None:
    put_unacknowledged(pair)
    for _ in range(2):  # the second start finds the records of the first one
        pair.master.start()
        assert seen(pair.master) == FIRST
        pair.master.kill()
    start_both_and_see_all(pair)


def test_a_checkpoint_of_a_stopped_master_shows_no_more_than_was_acknowledged(pair: Replicas) -> None:
    put_unacknowledged(pair)
    for _ in range(4):  # as many as are kept, and one
        done = run_metaq("checkpoint", str(pair.master.data))
        assert done.returncode == 0, done.stderr
        pair.master.start()
        assert seen(pair.master) == FIRST
        pair.master.kill()
    start_both_and_see_all(pair)


def test_a_promoted_slave_shows_what_its_master_had_acknowledged_before_it_has_a_slave_itself(pair: Replicas) -> None:
    put_unacknowledged(pair)
    slave = pair.slaves[0]
    former = pair.promote(slave)
    assert seen(slave) == FIRST
    slave.kill()
    slave.start()
    assert seen(slave) == FIRST
    former.start()  # it becomes a slave, and cuts what nobody was told of
    put_acknowledged(slave, [b"later"])
    assert seen(slave) == [*FIRST, b"later"]


def test_after_a_clean_stop_everything_is_shown_at_once(pair: Replicas) -> None:
    assert pair.master.stop() == 0
    pair.slaves[0].kill()
    pair.master.start()
    assert seen(pair.master) == FIRST


def test_a_directory_that_was_copied_while_its_master_ran_shows_nothing_that_was_not_acknowledged(
    pair: Replicas,
) -> None:
    """The file may be older or newer than the segments beside it."""
    put_unacknowledged(pair)
    storage = DirectoryStorage.open_for_reading(pair.master.data)
    watermark = written_down(pair.master.data)
    write_watermark(storage, watermark._replace(lsn=Lsn(1 << 40)))
    pair.master.start()
    assert seen(pair.master) == [*FIRST, UNACKNOWLEDGED]  # it says that this was acknowledged, and more
    pair.master.kill()
    lowered = written_down(pair.master.data)
    assert watermark.lsn < lowered.lsn < 1 << 40
    assert not lowered.is_whole
    (pair.master.data / WATERMARK).write_bytes(b"damaged")
    pair.master.start()
    assert seen(pair.master) == []
    pair.slaves[0].start()
    wait_until(lambda: seen(pair.master) == [*FIRST, UNACKNOWLEDGED], "the slave has it, and everybody sees it")


def test_what_mode_async_had_not_checkpointed_waits_for_slaves_in_mode_sync(tmp_path: Path) -> None:
    with running_broker(tmp_path / "broker", None, config=NO_CHECKPOINTS) as broker:
        with WireClient(broker.port) as client:
            client.put("orders", 0, b"one")
        assert broker.stop() == 0  # with a checkpoint
        broker.start()
        with WireClient(broker.port) as client:
            client.put("orders", 0, b"two")
            client.put("orders", 1, b"three")
        broker.kill()
        broker.config_path.write_text(SYNC)
        broker.start()
        assert seen(broker, 0) == [b"one"]
        assert seen(broker, 1) == []
        assert broker.stop() == 0  # without one: nobody has what is here
        broker.start()
        assert seen(broker, 0) == [b"one"]
        broker.kill()
        broker.config_path.write_text(SYNC + 'without_slaves = "degrade"\n')
        broker.start()
        assert (seen(broker, 0), seen(broker, 1)) == ([b"one", b"two"], [b"three"])
        wait_until(lambda: written_down(broker.data).lsn >= high_watermark(broker), "it is written down")
        broker.kill()
        broker.config_path.write_text(NO_CHECKPOINTS)
        broker.start()
        assert not (broker.data / WATERMARK).exists(), "nobody keeps it up to date"


def test_a_disk_that_takes_no_watermark_costs_what_a_restart_shows_and_nothing_else(pair: Replicas) -> None:
    (pair.master.data / f"{WATERMARK}.tmp").mkdir()  # not even root writes there
    put_acknowledged(pair.master, [b"later"])
    wait_until(lambda: "watermark not written" in pair.master.log, "it says so")
    put_acknowledged(pair.master, [b"last"])
    assert seen(pair.master) == [*FIRST, b"later", b"last"]
    (pair.master.data / f"{WATERMARK}.tmp").rmdir()
    reached = high_watermark(pair.master)
    wait_until(lambda: written_down(pair.master.data).lsn >= reached, "it is written down")


def test_it_is_written_down_again_and_again_while_puts_go_on(pair: Replicas) -> None:
    written: set[int] = set()
    with WireClient(pair.master.port) as client:

        def has_grown() -> bool:
            client.put("orders", 1, b"x" * 1000)
            written.add(written_down(pair.master.data).lsn)
            return len(written) > 2

        wait_until(has_grown, "it is written twice")
