"""Slaves that cannot resume: automatic truncation and resync, and the cases left to an operator."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from journal.records.record import PartitionName
from journal.repair.offline import opened_store
from journal.state.checkpoint import checkpoint_numbers, decode_checkpoint
from journal.wal.segments import segment_base
from journal.wal.storage import DirectoryStorage
from meta_client.protocol.messages import Message
from tests.fixtures.broker import CONFIG
from tests.fixtures.replicas import ProxyLink, ReplicaProcess, Replicas, copied_bytes, wait_until
from tests.fixtures.wire import WireClient
from zk.embedded.chroot import Chroot

SMALL = CONFIG.replace(
    "segment_bytes = 4194304\ncheckpoint_bytes = 1048576",
    "segment_bytes = 262144\nmessage_bytes_max = 65536\ncheckpoint_bytes = 131072",
)
FORGETFUL = SMALL + "\n[retention]\nbytes = 300000\nwhen = 0.1\n"
PATIENT = SMALL + "\n[replication]\nsilence_ms = 600000\n"


@pytest.fixture
def pair(tmp_path: Path, zookeeper: Chroot) -> Iterator[Replicas]:
    with Replicas(tmp_path / "pair", zookeeper.connect, CONFIG) as running:
        yield running


def put_all(port: int, count: int, size: int = 20) -> None:
    with WireClient(port) as wire:
        for _ in range(count):
            wire.put("orders", 0, bytes(size))


def end_of(port: int) -> int:
    with WireClient(port) as wire:
        lines = [line.split() for line in wire.stats("offsets")]
        return next((int(line[-1]) for line in lines if line[0] == "orders"), 0)


def wait_same(master: ReplicaProcess, slave: ReplicaProcess) -> None:
    def is_same() -> bool:
        try:
            return end_of(slave.port) == end_of(master.port)
        except ConnectionError:
            return False  # it is closed, while it is rebuilt

    wait_until(is_same, "the slave has everything")


def check_copy(master: ReplicaProcess, slave: ReplicaProcess) -> None:
    """Stop both and compare: the slave's segments equal the master's, except for the record of its last checkpoint."""
    master.stop()
    slave.stop()
    ours, theirs = copied_bytes(slave.data), copied_bytes(master.data)
    shared = ours.keys() & theirs.keys()
    assert max(ours) == max(theirs) == max(shared)
    assert all(theirs[name].startswith(ours[name]) for name in shared)


def test_what_the_master_never_had_is_cut_and_kept_and_the_slave_goes_on_by_itself(pair: Replicas) -> None:
    (slave,) = pair.slaves
    put_all(pair.master.port, 20)
    wait_same(pair.master, slave)
    slave.stop()
    with opened_store(
        slave.data, "test", epoch=lambda recovered: recovered.state.epoch
    ) as store:  # as a master would that was alone
        for _ in range(3):
            store.put(PartitionName("orders", 0), [bytes(100)], 100, 1)
    before = slave.port
    slave.start()
    put_all(pair.master.port, 5)
    wait_until(lambda: "tail truncated from=" in slave.log, "it cuts")
    wait_same(pair.master, slave)
    assert slave.port == before
    assert end_of(slave.port) == 25 * 40
    (cut,) = slave.data.glob("cut.*")
    assert f"saved={cut.name}" in slave.log
    check_copy(pair.master, slave)


def test_another_journal_of_the_same_name_is_refused_and_stays_as_it_is(tmp_path: Path, zookeeper: Chroot) -> None:
    other = ReplicaProcess(tmp_path / "other", None, None, CONFIG)
    other.start()
    put_all(other.port, 10)
    assert other.stop() == 0
    before = copied_bytes(other.data)
    with Replicas(tmp_path / "pair", zookeeper.connect, CONFIG, slaves=0) as running:
        put_all(running.master.port, 20)
        slave = ReplicaProcess(other.data, zookeeper.connect, 1, CONFIG)
        try:
            slave.start()
            wait_until(lambda: "not following" in slave.log, "it is refused")
            assert "another journal, or damage" in slave.log
            with WireClient(slave.port) as wire:
                assert getattr(wire.get("orders", 0, 0), "status", 200) == 503  # what it has is nobody's to read
            assert slave.stop() == 0
        finally:
            slave.kill()
    assert copied_bytes(other.data) == before


@pytest.mark.scenario("H09")
def test_a_slave_that_fell_behind_retention_gives_up_what_it_has_only_when_told_to(
    tmp_path: Path, zookeeper: Chroot
) -> None:
    with Replicas(tmp_path / "pair", zookeeper.connect, FORGETFUL) as running:
        master, (slave,) = running.master, running.slaves
        put_all(master.port, 20)
        wait_same(master, slave)
        slave.stop()
        fill_until_the_beginning_is_gone(master)
        before = copied_bytes(slave.data)
        slave.launch()
        assert slave.wait() == 2
        assert "set full_resync = true in [slave]" in slave.log
        assert copied_bytes(slave.data) == before
        slave.config_path.write_text(FORGETFUL + "\n[slave]\nfull_resync = true\n")
        slave.start()
        wait_until(lambda: "full resync" in slave.log, "it starts over")
        put_all(master.port, 5)
        wait_same(master, slave)
        with WireClient(master.port) as one, WireClient(slave.port) as two:
            assert read_both(one, two) != []
        check_copy(master, slave)


def read_both(one: WireClient, two: WireClient) -> list[tuple[int, Message]]:
    """Return the content of orders/0, which must be the same on both. Reads again if retention moved in between."""

    def start() -> int:
        return max(int(wire.stats("offsets")[1].split()[4]) for wire in (one, two))

    while (begin := start()) > 0:
        try:
            read, other = (wire.read_all("orders", 0, begin) for wire in (one, two))
        except AssertionError:
            if start() == begin:
                raise
        else:
            assert read == other
            return read
    raise AssertionError("retention has deleted nothing")


@pytest.mark.parametrize("has_more", [False, True], ids=["less than the promoted", "more than the promoted"])
def test_an_incomplete_copy_starts_over_by_itself_once_its_master_was_replaced(
    tmp_path: Path, zookeeper: Chroot, has_more: bool
) -> None:
    """The master dies in the middle of it; the slave that is promoted never had all that its checkpoint holds."""
    running = Replicas(tmp_path / "three", zookeeper.connect, PATIENT, slaves=0)
    master = running.master
    master.config_path.write_text(FORGETFUL)
    with running:
        fill_until_the_beginning_is_gone(master)
        assert master.stop() == 0
        master.config_path.write_text(PATIENT)  # where its journal begins now stays
        master.start()
        first, cut_link = add_slave(running)
        wait_same(master, first)
        promoted_end = copied_up_to(first)
        cut_link.refuse()
        put_all(master.port, 8, 30_000)
        wait_until(lambda: newest_checkpoint(master)[0] > promoted_end + 100_000, "it holds what the slave lacks")
        begin = min(base for path in master.data.iterdir() if (base := segment_base(path.name)) is not None)
        streamed = promoted_end - begin + 70_000 if has_more else 40_000
        second, link = add_slave(running, newest_checkpoint(master)[1] + streamed)
        wait_until(lambda: link.has_clogged and any(second.data.glob("*.journal")), "it is in the middle of its copy")
        wait_until(lambda: (copied_up_to(second) > promoted_end) is has_more, "what it has is stored")
        assert [path.name for path in second.data.glob("bootstrap.*")] == [f"bootstrap.{begin:020d}"]
        before = len(second.log)
        master.kill()
        first.stop()
        running.promote(first, accept_loss=True)  # from here on the link leads there
        link.heal()
        wait_until(lambda: "full resync start=" in second.log[before:], "it starts over")
        told = second.log[before:]
        assert "tail truncated from=" in told if has_more else "written later than the checkpoint" in told
        put_all(first.port, 5)
        wait_same(first, second)
        with WireClient(first.port) as one, WireClient(second.port) as two:
            start = max(int(wire.stats("offsets")[1].split()[4]) for wire in (one, two))
            assert one.read_all("orders", 0, start) == two.read_all("orders", 0, start) != []
        assert not any(second.data.glob("bootstrap.*"))
        check_copy(first, second)


def test_a_copy_that_is_whole_has_a_checkpoint_that_vouches_for_its_indexes(tmp_path: Path, zookeeper: Chroot) -> None:
    """The one that it began with is the master's: a kill before the next one would have every index rebuilt."""
    seldom = PATIENT.replace("checkpoint_bytes = 131072\ncheckpoint_seconds = 2.0", "checkpoint_seconds = 3600.0")
    assert seldom != PATIENT
    running = Replicas(tmp_path / "two", zookeeper.connect, seldom, slaves=0)
    master = running.master
    master.config_path.write_text(FORGETFUL)
    with running:
        fill_until_the_beginning_is_gone(master)
        assert master.stop() == 0
        master.config_path.write_text(seldom)
        master.start()
        slave, _ = add_slave(running)
        wait_same(master, slave)
        wait_until(lambda: "copy whole" in slave.log, "it has all of the copy")
        wait_until(lambda: "checkpoint written" in slave.log, "it takes a checkpoint of its own")
        slave.kill()
        before = len(slave.log)
        slave.start()
        wait_same(master, slave)
        assert "rebuilt" not in slave.log[before:]
        check_copy(master, slave)


def add_slave(running: Replicas, ration: int | None = None) -> tuple[ReplicaProcess, ProxyLink]:
    """Another slave, whose link clogs after *ration* bytes."""
    slave = running.add_process(len(running.slaves) + 1)
    running.slaves.append(slave)
    slave.link = link = running.new_link(slave)
    assert isinstance(link, ProxyLink)
    if ration is not None:
        link.ration(ration)
    slave.start()
    return slave, link


def fill_until_the_beginning_is_gone(master: ReplicaProcess) -> None:
    deadline = time.monotonic() + 60
    while (master.data / f"{0:020d}.journal").exists():
        put_all(master.port, 10, 30_000)
        assert time.monotonic() < deadline


def copied_up_to(slave: ReplicaProcess) -> int:
    """Return the end of its copy; 0 before it has begun."""
    with WireClient(slave.port) as wire:
        words = wire.stats("replication")[1].split()
        return int(words[words.index("end") + 1])


def newest_checkpoint(master: ReplicaProcess) -> tuple[int, int]:
    """Return the newest checkpoint's LSN and the size of its file."""
    storage = DirectoryStorage.open_for_reading(master.data)
    raw = storage.read(f"checkpoint.{checkpoint_numbers(storage)[-1]}")
    checkpoint = decode_checkpoint(raw)
    return checkpoint.lsn, len(raw)
