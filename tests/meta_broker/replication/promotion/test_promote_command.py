"""`metaq promote` on a copy of a real broker's directory, and what becomes of the broker that was copied."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from journal.errors import StorageFailed
from journal.records.header import RecordType
from journal.records.xid import XaKey, Xid
from journal.repair.offline import opened_segments, read_state
from journal.state.truncation import truncate
from journal.wal.marks import read_watermark
from journal.wal.scan import Scanner
from journal.wal.storage import DirectoryStorage
from meta_broker.cli.promote import promote_command
from meta_broker.replication.promotion.promotion import promote, read_cluster, read_replica
from meta_broker.replication.replica.slave_file import SlaveFacts, SlaveFile
from meta_client.protocol.answers import parse_keys
from meta_client.protocol.requests import BranchCommand, BranchVerb, TransactionVerb
from tests.fixtures.broker import CONFIG, BrokerProcess
from tests.fixtures.forked import run_metaq
from tests.fixtures.replicas import ReplicaProcess
from tests.fixtures.wire import WireClient
from zk.brokers.journal_position import JournalPosition, read_position, write_position
from zk.brokers.replication import ReplicationNode, read_replication, write_replication
from zk.embedded.chroot import Chroot
from zk.session.session import ZooKeeperSession

IN_DOUBT = XaKey(Xid.of("in", "doubt"), "uq")
ACTIVE = XaKey(Xid.of("in", "use"), "uq")
QUICK = CONFIG.replace("session_timeout_ms = 4000", "session_timeout_ms = 5000") + "\n[slave]\nrejoin = false\n"
V = TransactionVerb
REFUSED = 1


@pytest.fixture
def session(zookeeper: Chroot) -> Iterator[ZooKeeperSession]:
    with ZooKeeperSession(zookeeper.connect) as session:
        yield session


@pytest.fixture
def master(tmp_path: Path, zookeeper: Chroot) -> Iterator[BrokerProcess]:
    """Broker 0, killed, with three messages, a branch in doubt and one in use; not registered any more."""
    broker = BrokerProcess(tmp_path / "master", zookeeper.connect, config=QUICK)
    try:
        broker.start()
        with WireClient(broker.port) as client:
            for body in (b"one", b"two", b"three"):
                client.put("orders", 0, body)
            for key in (IN_DOUBT, ACTIVE):
                client.verb(V.BEGIN, key)
                client.put("orders", 1, b"later", key)
            client.verb(V.PREPARE, IN_DOUBT)
        broker.stop()
        yield broker
    finally:
        broker.kill()
    broker.audit()


@pytest.fixture
def slave(master: BrokerProcess, tmp_path: Path) -> Path:
    """Directory of a slave that has everything."""
    directory = tmp_path / "slave"
    shutil.copytree(master.data, directory)
    end = 0
    with read_state(directory) as (state, _):
        end = state.lsn
    facts = SlaveFacts(
        cluster="metaq", broker_id=0, slave_id=1, master=master.url, epoch=1, end=end, high_watermark=end, heard_ms=1
    )
    SlaveFile(directory).write(facts)
    return directory


def metaq(*words: object, status: int = 0) -> subprocess.CompletedProcess[str]:
    done = run_metaq("promote", *map(str, words))
    assert done.returncode == status, done.stdout + done.stderr
    return done


def decide(client: WireClient, verb: BranchVerb, key: XaKey) -> None:
    answer = client.result(BranchCommand(verb, key, "ann@db1", "no row", client.opaque()))
    assert answer.is_success, answer.text


def in_sync(session: ZooKeeperSession, *slaves: int) -> None:
    found = read_replication(session, 0)
    node = ReplicationNode(epoch=1, mode="sync", in_sync=slaves, in_sync_min=1, master="meta://127.0.0.1:1")
    assert write_replication(session, 0, node, found.version) is not None


def test_the_copy_serves_what_its_master_had_and_the_master_does_not_any_more(
    master: BrokerProcess, slave: Path, zookeeper: Chroot, session: ZooKeeperSession, tmp_path: Path
) -> None:
    in_sync(session, 1)
    told: dict[str, Any] = json.loads(metaq(slave, "--zk", zookeeper.connect, "--dry-run", "--json").stdout)
    assert (told["can_lose"], told["in_doubt"], told["epoch"]) == (False, [str(IN_DOUBT)], 1)
    done = metaq(slave, "--zk", zookeeper.connect, "--yes", "--no-start")
    assert "note        in sync: everything that was ever acknowledged is here" in done.stdout
    assert "promoted" in done.stderr
    node = read_replication(session, 0).node
    assert node is not None
    assert (node.epoch, node.claimed_by, node.in_sync) == (2, "slave 1", ())
    successor = BrokerProcess(slave, zookeeper.connect, config=QUICK)
    try:
        successor.start()
        with WireClient(successor.port) as client:
            assert [message.payload for _, message in client.read_all("orders", 0)] == [b"one", b"two", b"three"]
            assert parse_keys(client.verb(V.RECOVER, None)) == [IN_DOUBT]
            client.verb(V.COMMIT_TWO_PHASE, IN_DOUBT)
            assert [message.payload for _, message in client.read_all("orders", 1)] == [b"later"]
        before = (master.data / "00000000000000000000.journal").read_bytes()
        master.launch()
        assert master.wait() == 2
        assert "has epoch 2 in ZooKeeper, and this one's journal has epoch 1" in master.log
        assert (master.data / "00000000000000000000.journal").read_bytes() == before
        assert metaq(slave, "--zk", zookeeper.connect, status=2).stderr.startswith(f"error: {slave} has no slave.json")
    finally:
        successor.kill()


@pytest.mark.parametrize("is_removed", [False, True])
def test_an_interrupt_says_what_it_leaves(
    slave: Path, zookeeper: Chroot, session: ZooKeeperSession, monkeypatch: pytest.MonkeyPatch, is_removed: bool
) -> None:
    in_sync(session, 1)
    remove = SlaveFile.remove

    def interrupted(file: SlaveFile) -> None:
        if is_removed:
            remove(file)
        raise KeyboardInterrupt

    words = [str(slave), "--zk", zookeeper.connect, "--yes", "--no-start"]
    with monkeypatch.context() as patched:
        patched.setattr(SlaveFile, "remove", interrupted)
        told = CliRunner().invoke(promote_command, words).output
    if is_removed:
        assert f"interrupted: {slave} is a master's now, start it with `metaq broker`" in told
    else:
        assert f"interrupted: {slave} is still a slave's, and its epoch may be claimed" in told
        metaq(*words)


@pytest.mark.parametrize(
    ("slaves", "reason"), [((2,), "risk        not in sync, and slave 2 is"), ((), "risk        no slave was in sync")]
)
def test_what_may_lose_something_must_be_accepted(
    slave: Path, zookeeper: Chroot, session: ZooKeeperSession, slaves: tuple[int, ...], reason: str
) -> None:
    in_sync(session, *slaves)
    before = {path.name: path.read_bytes() for path in slave.iterdir() if path.is_file()}
    done = metaq(slave, "--zk", zookeeper.connect, "--yes", "--no-start", status=REFUSED)
    assert reason in done.stdout
    assert "not promoted: needs --accept-loss" in done.stderr
    assert {path.name: path.read_bytes() for path in slave.iterdir() if path.is_file()} == before
    metaq(slave, "--zk", zookeeper.connect, "--yes", "--no-start", "--accept-loss")


def test_what_the_former_masters_directory_has_is_told_exactly(
    master: BrokerProcess, slave: Path, zookeeper: Chroot, session: ZooKeeperSession
) -> None:
    """The in-sync set is unknown; the two directories are compared instead."""
    done = metaq(slave, "--zk", zookeeper.connect, "--former-dir", master.data, "--dry-run")
    assert "note        everything in the former master's journal is here" in done.stdout
    later = XaKey(Xid.of("came", "later"), "uq")
    master.start()
    with WireClient(master.port) as client:
        offset = client.put("orders", 0, b"four").offset
        assert offset is not None
        client.verb(V.COMMIT_TWO_PHASE, IN_DOUBT)
        client.verb(V.BEGIN, later)
        client.put("orders", 2, b"never", later)
        client.verb(V.PREPARE, later)
    done = metaq(slave, "--zk", zookeeper.connect, "--former-dir", master.data, "--dry-run", status=2)
    assert f"{master.data} is in use by another process: stop that broker first" in done.stderr
    master.stop()
    told = json.loads(
        metaq(
            slave, "--zk", zookeeper.connect, "--former-dir", master.data, "--dry-run", "--json", status=REFUSED
        ).stdout
    )
    lost, bytes_of_four = told["lost"], 20 + len(b"four")
    assert lost["ranges"]["orders-0"] == [offset, offset + bytes_of_four, 1]
    assert lost["ranges"]["orders-1"] == [0, 20 + len(b"later"), 1]
    assert (lost["committed"]["keys"], lost["prepared"]["keys"]) == ([str(IN_DOUBT)], [str(later)])
    metaq(slave, "--zk", zookeeper.connect, "--former-dir", master.data, "--yes", "--no-start", status=REFUSED)
    done = metaq(slave, "--zk", zookeeper.connect, "--former-dir", master.data, "--yes", "--no-start", "--accept-loss")
    assert "risk        the former master's journal goes on here" in done.stdout
    assert f"in doubt there: {later}" in done.stdout
    assert f"orders-0: offsets {offset} to {offset + bytes_of_four}, 1 messages" in done.stdout


def test_an_older_copy_of_the_former_masters_directory_proves_nothing(
    master: BrokerProcess, slave: Path, zookeeper: Chroot, session: ZooKeeperSession, tmp_path: Path
) -> None:
    """Only ZooKeeper knows of what came later: it is in neither directory."""
    older = tmp_path / "older"
    shutil.copytree(master.data, older)
    with read_state(master.data) as (state, _):
        later = JournalPosition(epoch=1, incarnation=1, end=state.lsn + 1000)
    assert write_position(session, 0, later, read_position(session, 0).version) is not None
    done = metaq(slave, "--zk", zookeeper.connect, "--former-dir", older, "--dry-run", status=REFUSED)
    assert "note        everything in the former master's journal is here" in done.stdout
    assert "had acknowledged everything up to LSN" in done.stdout
    assert "an older copy" in done.stdout
    in_sync(session, 1)  # nor does the set
    assert (
        "bytes of that are not here"
        in metaq(slave, "--zk", zookeeper.connect, "--former-dir", older, "--dry-run", status=REFUSED).stdout
    )


def test_branches_in_doubt_that_the_former_master_ended_are_named_with_what_became_of_them(
    master: BrokerProcess, slave: Path, zookeeper: Chroot
) -> None:
    """One is committed, and its key begun again; then an operator decides about another one, and forgets it."""
    by_hand = XaKey(Xid.of("by", "hand"), "uq")
    master.start()
    with WireClient(master.port) as client:
        client.verb(V.COMMIT_TWO_PHASE, IN_DOUBT)
        for key in (IN_DOUBT, by_hand):
            client.verb(V.BEGIN, key)
            client.put("orders", 1, b"again", key)
            client.verb(V.PREPARE, key)
        decide(client, BranchVerb.ROLLBACK, by_hand)
        client.verb(V.FORGET, by_hand)
    master.stop()
    options = (slave, "--zk", zookeeper.connect, "--former-dir", master.data, "--dry-run")
    lost = json.loads(metaq(*options, "--json", status=REFUSED).stdout)["lost"]
    assert (lost["committed"]["keys"], lost["prepared"]["keys"]) == ([str(IN_DOUBT)], [str(IN_DOUBT)])
    assert lost["again"] == {"committed": {"count": 1, "keys": [str(IN_DOUBT)]}}
    assert lost["decided"] == {"count": 1, "first": [[str(by_hand), "rollback", "ann@db1", "no row"]]}
    said = metaq(*options, status=REFUSED).stdout
    assert f"in doubt again here, committed there: {IN_DOUBT}" in said
    assert f"decided there: {by_hand}, rollback, by ann@db1: no row" in said
    assert f"forgotten there: {by_hand}" in said
    assert "1 decisions of operators, 1 forgotten" in said
    assert "1 branches that were ended there are in doubt again here" in said


def test_a_commit_that_the_slave_makes_itself_because_it_has_the_decision_is_not_lost(
    master: BrokerProcess, zookeeper: Chroot, session: ZooKeeperSession, tmp_path: Path
) -> None:
    """The slave's journal ends between an operator's decision and the COMMIT that followed at once."""
    master.start()
    with WireClient(master.port) as client:
        decide(client, BranchVerb.COMMIT, IN_DOUBT)
    master.stop()
    directory = tmp_path / "slave"
    shutil.copytree(master.data, directory)
    storage = DirectoryStorage.open_for_writing(directory)
    with opened_segments(storage) as segments:
        end = next(
            one.header.end
            for one in Scanner(segments, segments.start)
            if one.header.record_type == RecordType.HEURISTIC
        )
        identity = segments.identity
    assert truncate(storage, identity, end, 1) is not None
    storage.close()
    facts = SlaveFacts(cluster="metaq", broker_id=0, slave_id=1, epoch=1, end=end, high_watermark=end, heard_ms=1)
    SlaveFile(directory).write(facts)
    options = (directory, "--zk", zookeeper.connect, "--former-dir", master.data)
    told = json.loads(metaq(*options, "--dry-run", "--json").stdout)
    assert (told["can_lose"], told["in_doubt"], told["lost"]["committed"]["count"]) == (False, [], 0)
    assert told["lost"]["redone"] == {"count": 1, "keys": [str(IN_DOUBT)]}
    done = metaq(*options, "--yes", "--no-start")  # nothing to accept
    assert "1 branches are ended once more, as an operator's decision that is here says" in done.stdout
    with read_state(directory) as (ours, _), read_state(master.data) as (theirs, _):
        assert {name: offset_range.end for name, offset_range in ours.offset_ranges.items()} == {
            name: offset_range.end for name, offset_range in theirs.offset_ranges.items()
        }
        assert not ours.branches


def test_nobody_is_promoted_while_the_master_serves(
    master: BrokerProcess, slave: Path, zookeeper: Chroot, session: ZooKeeperSession
) -> None:
    in_sync(session, 1)
    master.start()
    done = metaq(slave, "--zk", zookeeper.connect, "--yes", "--no-start", "--accept-loss", status=REFUSED)
    assert f"stop        a master of broker 0 is registered at {master.url}" in done.stdout
    master.pause()  # it takes connections, and answers nobody
    try:
        # It replicates asynchronously, and has said so in ZooKeeper.
        done = metaq(
            *(slave, "--zk", zookeeper.connect, "--yes", "--no-start", "--accept-loss", "--config", master.config_path)
        )
    finally:
        master.resume()
    assert "promoted" in done.stderr  # once the session was over
    assert master.wait() == 2
    assert "has epoch 2 in ZooKeeper, and this one's journal has epoch 1" in master.log


def test_a_promotion_that_was_cut_short_is_done_again(
    slave: Path, session: ZooKeeperSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_sync(session, 1)

    def fails(file: SlaveFile) -> None:
        raise StorageFailed(f"{file.path}: the power went")

    with monkeypatch.context() as patched:
        patched.setattr(SlaveFile, "remove", fails)
        with pytest.raises(StorageFailed, match="the power went"):
            promote(slave, read_replica(slave).facts, session, read_cluster(session, 0)[1])
    status = read_replica(slave)
    assert (status.epoch, status.in_doubt, status.active) == (2, [str(IN_DOUBT)], 0)
    assert promote(slave, status.facts, session, read_cluster(session, 0)[1]) == 3
    with read_state(slave) as (state, _):
        assert state.epoch == 3
    assert SlaveFile(slave).read() is None


@pytest.mark.parametrize("step", ["_leave_slaves", "audit_offline"])
def test_a_promoted_directory_that_was_started_as_a_slave_is_promoted_again_without_a_loss(
    master: BrokerProcess,
    slave: Path,
    zookeeper: Chroot,
    session: ZooKeeperSession,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
) -> None:
    in_sync(session, 1)
    words = [str(slave), "--zk", zookeeper.connect, "--yes", "--no-start"]
    with monkeypatch.context() as patched:  # killed there; slave.json is gone, and no master serves

        def killed(*arguments: object, **options: object) -> None:
            raise SystemExit(9)

        module = "meta_broker.cli.promote" if step == "audit_offline" else promote.__module__
        patched.setattr(f"{module}.{step}", killed)
        assert CliRunner().invoke(promote_command, words).exit_code == 9
    as_slave = ReplicaProcess(slave, zookeeper.connect, 1, QUICK)
    try:
        as_slave.start()
        assert as_slave.stop() == 0
    finally:
        as_slave.kill()
    facts = SlaveFile(slave).read()
    assert facts is not None
    assert facts.heard_ms == 0, "it has forgotten what its master said"
    done = metaq(*words)
    assert "risk" not in done.stdout
    watermark = read_watermark(DirectoryStorage.open_for_reading(slave))
    with read_state(master.data) as (state, _):
        assert watermark == (state.lsn, True), "what its master had acknowledged is shown at once"
    node = read_replication(session, 0).node
    assert node is not None
    assert (node.epoch, node.in_sync) == (3, ())


def test_a_directory_of_no_stopped_slave_is_refused(master: BrokerProcess, slave: Path, tmp_path: Path) -> None:
    assert "has no slave.json: it is no slave's" in metaq(master.data, status=2).stderr
    other = tmp_path / "other"
    other.mkdir()
    SlaveFile(other).write(SlaveFacts(cluster="metaq", broker_id=0, slave_id=1))
    assert "no journal" in metaq(other, status=2).stderr
    config = tmp_path / "config.toml"
    config.write_text('[broker]\ncluster = "elsewhere"\n[topics."*"]\n')
    assert "give --config the file that the master has" in metaq(slave, "--config", config, status=2).stderr
    (slave / "slave.json").write_text('{"cluster":"metaq","broker_id":4,"slave_id":1}')
    assert "name the directory of one slave" in metaq(slave, status=2).stderr
