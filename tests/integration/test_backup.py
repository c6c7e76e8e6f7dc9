"""`metaq backup` and `metaq restore` on real brokers: under load, and what a copy by hand is told."""

import json
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from journal.errors import DirectoryIsBackup
from journal.records.xid import XaKey, Xid
from journal.repair.offline import read_state
from journal.state.copy_marks import MANIFEST, UNFINISHED_BACKUP, UNFINISHED_RESTORE
from meta_client.client import Client
from meta_client.protocol.answers import PutPlace, parse_keys
from meta_client.protocol.messages import Message, iter_frames
from meta_client.protocol.requests import TransactionVerb
from meta_client.protocol.responses import Result
from spark_jobs.source.directory import plan_directory
from tests.fixtures.broker import CONFIG, BrokerProcess, running_broker
from tests.fixtures.forked import run_metaq, start_metaq
from tests.fixtures.wire import WireClient
from tests.fixtures.zookeeper_tree import wait_until
from zk.brokers.journal_position import JournalPosition, read_position, write_position
from zk.brokers.replication import ReplicationNode, read_replication, write_replication
from zk.embedded.chroot import Chroot
from zk.groups.offsets import ZooKeeperOffsets
from zk.session.session import ZooKeeperSession
from zk.tree.nodes import OffsetNode, Partition

SMALL = CONFIG.replace(
    "segment_bytes = 4194304\ncheckpoint_bytes = 1048576\ncheckpoint_seconds = 2.0",
    "segment_bytes = 262144\nmessage_bytes_max = 65536\ncheckpoint_bytes = 131072\ncheckpoint_seconds = 0.5",
)
FORGETFUL = SMALL + "\n[retention]\nbytes = 600000\nwhen = 0.1\n"
IN_DOUBT = XaKey(Xid.of("in", "doubt"), "uq")
V = TransactionVerb
TIB = 1 << 40


def metaq(*words: object, status: int = 0) -> "subprocess.CompletedProcess[str]":
    done = run_metaq(*map(str, words))
    assert done.returncode == status, done.stdout + done.stderr
    return done


@pytest.fixture
def session(zookeeper: Chroot) -> Iterator[ZooKeeperSession]:
    with ZooKeeperSession(zookeeper.connect) as session:
        yield session


def wait_gone(session: ZooKeeperSession) -> None:
    """Wait until the session of a killed broker is over."""
    wait_until(lambda: session.read("/meta/brokers/ids/0/master") is None)


def offset_of(place: PutPlace) -> int:
    assert place.offset is not None
    return place.offset


class Load:
    """Puts to orders-0 until it is ended or its broker is gone; `acknowledged` grows."""

    def __init__(self, port: int) -> None:
        self.acknowledged: list[tuple[int, bytes]] = []  # offset and payload
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(port,))
        self._thread.start()

    def _run(self, port: int) -> None:
        try:
            with WireClient(port) as client:
                while not self._ends.is_set():
                    payload = b"%d." % len(self.acknowledged) * 200
                    self.acknowledged.append((offset_of(client.put("orders", 0, payload)), payload))
        except OSError:
            pass  # its broker was killed

    def end(self) -> None:
        self._ends.set()
        self._thread.join()


def messages(port: int, topic: str = "orders", begin: int = 0) -> list[tuple[int, Message]]:
    """Every message from offset *begin* on; a reader inside the unused offsets is sent on."""
    found: list[tuple[int, Message]] = []
    with WireClient(port) as client:
        offset = begin
        while not isinstance(value := client.get(topic, 0, offset), Result) or value.status != 404:
            if isinstance(value, Result):
                assert value.status == 301, value
                offset = int(value.message)
                continue
            frames = list(iter_frames(value.body, offset))
            found += [(at, message) for at, _, message in frames]
            offset = frames[-1][1]
    return found


def stored(port: int, topic: str = "orders", begin: int = 0) -> list[tuple[int, bytes]]:
    return [(offset, message.payload) for offset, message in messages(port, topic, begin)]


def test_what_was_there_is_restored_and_no_offset_is_given_out_twice(
    tmp_path: Path, zookeeper: Chroot, session: ZooKeeperSession
) -> None:
    """The broker is killed after the back-up; retention deletes segments and checkpoints are taken meanwhile."""
    backup, fresh = tmp_path / "backup", tmp_path / "fresh"
    with running_broker(tmp_path / "broker", zookeeper.connect, config=SMALL) as broker:
        with WireClient(broker.port) as client:
            client.verb(V.BEGIN, IN_DOUBT)
            client.put("invoices", 0, b"promised", IN_DOUBT)
            client.verb(V.PREPARE, IN_DOUBT)
        load = Load(broker.port)
        wait_until(lambda: len(load.acknowledged) > 1000)
        before = len(load.acknowledged)
        told = json.loads(metaq("backup", broker.data, backup, "--json").stdout)
        wait_until(lambda: len(load.acknowledged) > before + 1000)
        broker.kill()
        load.end()
    given_out = dict(load.acknowledged)
    consumed = load.acknowledged[-1][0]
    ZooKeeperOffsets(session, "billing").commit({("orders", Partition(0, 0)): OffsetNode(consumed)})
    wait_gone(session)
    assert (told["in_doubt"], told["epoch"]) == (1, 1)

    dry = metaq("restore", backup, fresh, "--zk", zookeeper.connect, "--config", broker.config_path, "--dry-run")
    assert "what was written after the back-up is lost" in dry.stdout
    assert str(IN_DOUBT) in dry.stdout
    assert f"group billing has consumed orders-0 up to {consumed}, and the back-up ends at " in dry.stdout
    assert not fresh.exists()
    done = metaq("restore", backup, fresh, "--zk", zookeeper.connect, "--config", broker.config_path, "--yes")
    assert "epoch=2 in_doubt=1" in done.stderr
    node = read_replication(session, 0).node
    assert node is not None
    assert (node.epoch, node.in_sync) == (2, ())

    with running_broker(fresh, zookeeper.connect, config=SMALL) as successor:
        kept = stored(successor.port)
        assert kept == load.acknowledged[: len(kept)]
        assert len(kept) >= before
        with WireClient(successor.port) as client:
            assert parse_keys(client.verb(V.RECOVER, None)) == [IN_DOUBT]
            client.verb(V.COMMIT_TWO_PHASE, IN_DOUBT)
            new = client.put("orders", 0, b"new")
            other = client.put("invoices", 1, b"of a partition that began after the back-up")
        assert offset_of(new) > max(given_out) + TIB // 2
        assert offset_of(other) >= TIB
        end = kept[-1][0] + 20 + len(kept[-1][1])
        # A reader beyond what was restored, as a consumer was, goes on with the first new message.
        assert stored(successor.port, begin=end) == [(new.offset, b"new")]
        assert [payload for _, payload in stored(successor.port, "invoices", TIB)] == [b"promised"]
        ids = [message.id for _, message in messages(successor.port)]
        assert ids[-1] == new.message_id > max(ids[:-1])
        with Client(zookeeper.connect) as consuming, consuming.consumer("billing") as consumer:
            consumer.subscribe("orders")
            consumer.start()
            assert [message.payload for message in consumer.fetch(10, timeout_s=60)] == [b"new"]
        ledger = metaq("txn", "ledger", "--zk", zookeeper.connect, "--json").stdout
        assert "it may have ended after the back-up" in ledger
        assert metaq("journal", "check", fresh).stdout

    # The former master learns of it.
    former = BrokerProcess(broker.data, zookeeper.connect, config=SMALL + "\n[slave]\nrejoin = false\n")
    former.launch()
    assert former.wait() == 2
    assert "has epoch 2 in ZooKeeper, and this one's journal has epoch 1" in former.log


def test_of_two_restorations_of_one_back_up_the_second_goes_on_beyond_the_first(
    tmp_path: Path, zookeeper: Chroot, session: ZooKeeperSession
) -> None:
    """The first one goes on beyond what ZooKeeper knew of the lost broker; the second knows of the first one alone."""
    backup, given_out = tmp_path / "backup", set[int]()
    with running_broker(tmp_path / "broker", zookeeper.connect, config=SMALL) as broker:
        with WireClient(broker.port) as client:
            client.put("orders", 0, b"one")
        metaq("backup", broker.data, backup)
        load = Load(broker.port)
        wait_until(lambda: len(load.acknowledged) > 500)
        load.end()
        given_out |= dict(load.acknowledged).keys()
        assert broker.stop() == 0
    for name in ("first", "second", "third"):
        metaq("restore", backup, tmp_path / name, "--zk", zookeeper.connect, "--config", broker.config_path, "--yes")
        with running_broker(tmp_path / name, zookeeper.connect, config=SMALL) as successor:
            with WireClient(successor.port) as client:
                offset = offset_of(client.put("orders", 0, name.encode()))
            assert offset > max(given_out), name
            given_out.add(offset)
            successor.kill()  # what it has given out within two seconds, ZooKeeper does not know
        wait_gone(session)


def test_a_branch_in_doubt_names_a_topic_of_a_pattern(tmp_path: Path) -> None:
    """It may have been committed since the back-up, and offsets of that topic given out."""
    with running_broker(tmp_path / "broker", None) as broker, WireClient(broker.port) as client:
        client.verb(V.BEGIN, IN_DOUBT)
        client.put("dynamic-one", 0, b"x", IN_DOUBT)
        client.verb(V.PREPARE, IN_DOUBT)
        metaq("backup", broker.data, tmp_path / "backup")
    metaq("restore", tmp_path / "backup", tmp_path / "fresh", "--accept-loss", "--yes")
    with running_broker(tmp_path / "fresh", None) as restored, WireClient(restored.port) as client:
        client.verb(V.COMMIT_TWO_PHASE, IN_DOUBT)
        ((offset, _),) = messages(restored.port, "dynamic-one")
        assert offset >= TIB


def refused(directory: Path, zookeeper: str | None, config: str = SMALL) -> str:
    """The error of a broker that does not start on *directory*, of which nothing changes."""
    before = {path.name: path.read_bytes() for path in directory.glob("*") if path.is_file()}
    broker = BrokerProcess(directory, zookeeper, config=config)
    began = broker.launch()
    assert broker.wait() == 2
    assert {path.name: path.read_bytes() for path in directory.glob("*") if path.is_file()} == before
    return broker.log_from(began).splitlines()[-1]


def test_an_older_copy_or_an_empty_directory_does_not_start(
    tmp_path: Path, zookeeper: Chroot, session: ZooKeeperSession
) -> None:
    older, same_run, empty = tmp_path / "older", tmp_path / "same-run", tmp_path / "empty"
    with running_broker(tmp_path / "broker", zookeeper.connect) as broker:
        with WireClient(broker.port) as client:
            client.put("orders", 0, b"one")
        assert broker.stop() == 0
        shutil.copytree(broker.data, older)
        broker.start()
        with WireClient(broker.port) as client:
            client.put("orders", 0, b"two")
        shutil.copytree(broker.data, same_run)
        with read_state(same_run) as (state, _):
            copied = state.lsn
        with WireClient(broker.port) as client:
            client.put("orders", 0, b"three")
        end = stored(broker.port)[-1][0]

        def reached() -> JournalPosition:
            return read_position(session, 0).node or JournalPosition(epoch=0, incarnation=0, end=0)

        wait_until(lambda: reached().incarnation == 2 and reached().end > copied)
        broker.kill()
        wait_gone(session)
        empty.mkdir()
        for directory, holds in ((older, "epoch 1, open 1"), (same_run, "epoch 1, open 2"), (empty, "no journal")):
            error = refused(directory, zookeeper.connect)
            assert error.startswith(f"error: {directory} holds {holds}")
            assert "`metaq restore`" in error
            assert error.endswith("delete /meta/metaq/journals/0 in ZooKeeper")
        broker.port = 0  # another process may have taken it meanwhile
        broker.start()  # the newest one
        assert stored(broker.port)[-1] == (end, b"three")
        broker.kill()
        wait_gone(session)

    assert session.delete("/meta/metaq/journals/0", read_position(session, 0).version or 0)
    with running_broker(older, zookeeper.connect) as given_up:
        assert [payload for _, payload in stored(given_up.port)] == [b"one"]


def test_a_copy_that_was_started_beside_its_original_never_takes_its_place(
    tmp_path: Path, zookeeper: Chroot, session: ZooKeeperSession
) -> None:
    """It is as new as its original then: opening it would make it look newer for good."""
    copy = tmp_path / "copy"
    with running_broker(tmp_path / "broker", zookeeper.connect) as broker:
        with WireClient(broker.port) as client:
            client.put("orders", 0, b"one")
        shutil.copytree(broker.data, copy)
        assert f"broker id 0 is registered by '{broker.url}'" in refused(copy, zookeeper.connect)
        with read_state(copy) as (state, _):
            copied = state.lsn
        with WireClient(broker.port) as client:
            client.put("orders", 0, b"two")
        wait_until(lambda: (node := read_position(session, 0).node) is not None and node.end > copied)
        broker.kill()
        wait_gone(session)
        assert "is an older copy" in refused(copy, zookeeper.connect)
        broker.port = 0  # another process may have taken it meanwhile
        broker.start()
        assert [payload for _, payload in stored(broker.port)] == [b"one", b"two"]


def test_a_back_up_and_what_an_interruption_leaves_are_no_brokers_directory(tmp_path: Path) -> None:
    with running_broker(tmp_path / "broker", None) as broker:
        with WireClient(broker.port) as client:
            client.put("orders", 0, b"one")
        metaq("backup", broker.data, tmp_path / "backup")
        assert "it is a back-up" in refused(tmp_path / "backup", None)
        assert "it is a back-up" in metaq("checkpoint", tmp_path / "backup", status=2).stderr
        assert "it is a back-up" in metaq("journal", "repair", tmp_path / "backup", "--yes", status=2).stderr
        metaq("journal", "check", tmp_path / "backup")
        assert "not empty" in metaq("backup", broker.data, tmp_path / "backup", status=2).stderr
        for inside in (broker.data, broker.data / "backup"):
            assert "name a directory elsewhere" in metaq("backup", broker.data, inside, status=2).stderr
        assert not (broker.data / "backup").exists()
        for mark, word in ((UNFINISHED_BACKUP, "metaq backup"), (UNFINISHED_RESTORE, "metaq restore")):
            shutil.copytree(tmp_path / "backup", tmp_path / mark)
            (tmp_path / mark / MANIFEST).unlink()
            (tmp_path / mark / mark).touch()
            assert f"interrupted `{word}`" in refused(tmp_path / mark, None)
            # What it has reads back: that it is not all, nobody may call whole.
            assert f"interrupted `{word}`" in metaq("journal", "check", tmp_path / mark, status=2).stderr
            with pytest.raises(DirectoryIsBackup, match=f"interrupted `{word}`"):
                plan_directory(tmp_path / mark)


def test_killed_at_any_moment_the_source_is_unharmed_and_the_target_absent_refused_or_whole(tmp_path: Path) -> None:
    with running_broker(tmp_path / "broker", None, config=FORGETFUL) as broker:
        load = Load(broker.port)
        wait_until(lambda: len(load.acknowledged) > 2000)
        backup, whole = tmp_path / "backup", 0
        for round_ in range(10):
            kill_after(0.02 * round_, "backup", broker.data, backup)
            assert not any(backup.glob("*.journal")) or any(
                (backup / name).exists() for name in (MANIFEST, UNFINISHED_BACKUP)
            )
            whole += (backup / MANIFEST).exists() and not (backup / UNFINISHED_BACKUP).exists()
            if not whole and (backup / UNFINISHED_BACKUP).exists():
                assert "`metaq backup`" in metaq("checkpoint", backup, status=2).stderr
            if whole:
                break
        if not whole:
            metaq("backup", broker.data, backup)
        load.end()
        metaq("journal", "check", broker.data)
    fresh = tmp_path / "fresh"
    options = ("--accept-loss", "--yes")
    for round_ in range(10):
        kill_after(0.02 * round_, "restore", backup, fresh, *options)
        if any(fresh.glob("*.journal")) and not (fresh / UNFINISHED_RESTORE).exists():
            break  # done before it was killed
        if (fresh / UNFINISHED_RESTORE).exists():
            assert "interrupted `metaq restore`" in refused(fresh, None)
    else:
        metaq("restore", backup, fresh, *options)
    with running_broker(fresh, None, config=FORGETFUL) as successor:
        assert {*stored(successor.port)} <= {*load.acknowledged}


def kill_after(seconds: float, *words: object) -> None:
    """Run a command and kill it after *seconds*, if it still runs."""
    with Path("/dev/null").open("r+b") as nothing:
        process = start_metaq([str(word) for word in words], stdin=nothing, stdout=nothing, stderr=nothing)
    time.sleep(seconds)
    process.send_signal(signal.SIGKILL)
    process.wait()


def test_what_a_restoration_refuses(tmp_path: Path, zookeeper: Chroot, session: ZooKeeperSession) -> None:
    backup, fresh = tmp_path / "backup", tmp_path / "fresh"
    with running_broker(tmp_path / "broker", zookeeper.connect) as broker:
        with WireClient(broker.port) as client:
            client.put("orders", 0, b"one")
        metaq("backup", broker.data, backup)
        words: tuple[Any, ...] = ("restore", backup, fresh, "--zk", zookeeper.connect, "--yes")
        assert "stop: a master of broker 0 is registered" in metaq(*words, status=1).stdout
        assert broker.stop() == 0
        assert "not empty" in metaq("restore", backup, broker.data, "--yes", status=2).stderr
    assert "risk: without ZooKeeper" in metaq("restore", backup, fresh, "--yes", status=1).stdout
    node = ReplicationNode(epoch=1, mode="sync", in_sync=(1,), in_sync_min=1, master="meta://127.0.0.1:1")
    assert write_replication(session, 0, node, None) is not None
    assert "risk: slave 1 may have more than this back-up" in metaq(*words, status=1).stdout
    segment = next(backup.glob("*.journal"))
    with segment.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"x")
    assert "this back-up is damaged" in metaq(*words, "--accept-loss", status=2).stderr
    assert "interrupted `metaq restore`" in refused(fresh, zookeeper.connect)
    with segment.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\0")
    position = JournalPosition(epoch=1, incarnation=1, end=1 << 50)
    assert write_position(session, 0, position, read_position(session, 0).version) is not None
    done = metaq(*words, "--accept-loss", "--json")
    assert json.loads(done.stdout)["skipped_bytes"] > 1 << 50
    after = read_replication(session, 0).node
    assert after is not None
    assert (after.epoch, after.in_sync, after.master) == (2, (), "")
    with running_broker(fresh, zookeeper.connect) as successor:
        assert [payload for _, payload in stored(successor.port)] == [b"one"]
