"""A broker process in a real ZooKeeper: what stands there from its first moment to its last (spec 6.4, C.5, V09)."""

import contextlib
import os
import queue
import re
import shutil
import signal
import subprocess
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kazoo.security import OPEN_ACL_UNSAFE, make_acl

from journal.records.xid import LocalKey, XaKey, Xid
from journal.wal.storage import DirectoryStorage
from meta_broker.cluster.former_session import FILE_NAME, SessionFile
from meta_broker.cluster.membership import Membership
from meta_broker.config.broker_config import BrokerConfig
from meta_broker.config.sections import ZooKeeperSection
from meta_client.protocol.requests import TransactionVerb
from tests.fixtures.broker import CONFIG, READY, BrokerProcess, running_broker
from tests.fixtures.expiry import empty
from tests.fixtures.replicas import Replicas
from tests.fixtures.tcp_proxy import TcpProxy
from tests.fixtures.wire import WireClient
from tests.fixtures.zookeeper_tree import snapshot, wait_until
from zk.brokers.journal_position import JournalPosition, read_position
from zk.brokers.registration import TopicRegistration
from zk.brokers.replication import ReplicationNode, read_replication
from zk.embedded.chroot import Chroot
from zk.embedded.server import EmbeddedZooKeeper
from zk.errors import ZooKeeperUnavailable
from zk.session.former_session import end_session
from zk.session.session import ZooKeeperSession
from zk.tree.broker_url import BrokerUrl
from zk.tree.nodes import Node
from zk.tree.paths import BrokerKey, BrokerNode

MASTER = "/meta/brokers/ids/0/master"
QUICK = CONFIG.replace("session_timeout_ms = 4000", "session_timeout_ms = 2000")
PATIENT = CONFIG.replace("session_timeout_ms = 4000", "session_timeout_ms = 30000")
LONG = CONFIG.replace("session_timeout_ms = 4000", "session_timeout_ms = 120000")

Tree = dict[str, tuple[bytes, bool]]


@pytest.fixture
def session(zookeeper: Chroot) -> Iterator[ZooKeeperSession]:
    with ZooKeeperSession(zookeeper.connect) as session:
        yield session


@pytest.fixture
def broker(tmp_path: Path, zookeeper: Chroot) -> Iterator[BrokerProcess]:
    """A broker with a session that no stall ends."""
    with running_broker(tmp_path / "broker", zookeeper.connect, config=PATIENT) as process:
        yield process


def topic_nodes(topic: str, partitions: int) -> Tree:
    json = b'{"numParts":%d,"broker":"0-m"}' % partitions
    return {
        f"/meta/brokers/topics/{topic}/0-m": (b"%d" % partitions, True),
        f"/meta/brokers/topics-pub/{topic}/0-m": (json, True),
        f"/meta/brokers/topics-sub/{topic}/0-m": (json, True),
    }


def tree_of(broker: BrokerProcess, config: str = PATIENT) -> Tree:
    """Exactly what spec 6.4 and C.5 say of this broker; True: ephemeral."""
    url = broker.url.encode()
    return {
        "/meta/brokers/ids/0": (url, False),
        MASTER: (url, True),
        "/meta/brokers/ids/0/master_config_checksum": (b"%d" % zlib.crc32(config.encode()), True),
        **topic_nodes("orders", 4),
        **topic_nodes("invoices", 2),
        **topic_nodes("meta-test", 1),
        **topic_nodes("dynamic-*", 2),
    }


def master_node(session: ZooKeeperSession) -> Node:
    node = session.read(MASTER)
    assert node is not None
    return node


@contextlib.contextmanager
def second_broker(directory: Path, zookeeper: str, config: str = QUICK) -> Iterator["subprocess.Popen[str]"]:
    """Another broker of id 0 on another directory, which may never get to serve; killed at the end."""
    command = BrokerProcess(directory, zookeeper, config=config).command()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_a_broker_is_registered_once_it_serves_and_gone_once_it_stops(
    broker: BrokerProcess, session: ZooKeeperSession
) -> None:
    assert snapshot(session) == tree_of(broker)
    with WireClient(broker.port) as client:
        client.put("dynamic-one", 0, b"x")
        client.put("orders", 0, b"x")
        client.verb(TransactionVerb.BEGIN, LocalKey("s", 1))
        client.put("dynamic-two", 1, b"x", LocalKey("s", 1))
    with_dynamic = tree_of(broker) | topic_nodes("dynamic-one", 2) | topic_nodes("dynamic-two", 2)
    wait_until(lambda: snapshot(session) == with_dynamic)
    assert broker.stop() == 0
    assert snapshot(session, "/").keys() == {"//meta/metaq/cluster"}
    assert session.children("/meta/brokers/ids") == []
    assert not (broker.data / FILE_NAME).exists()


def test_stored_topics_are_registered_after_recovery(broker: BrokerProcess, session: ZooKeeperSession) -> None:
    with WireClient(broker.port) as client:
        client.put("dynamic-kept", 0, b"x")
        client.put("orders", 0, b"x")
    assert broker.stop() == 0
    broker.start()
    assert snapshot(session) == tree_of(broker) | topic_nodes("dynamic-kept", 2)


@pytest.mark.parametrize("is_restarted", [True, False], ids=["restart", "reload"])
def test_what_a_branch_in_doubt_will_publish_can_be_read(
    zookeeper: Chroot, session: ZooKeeperSession, tmp_path: Path, *, is_restarted: bool
) -> None:
    """Its COMMIT comes without a put, which would announce the topic."""
    with running_broker(tmp_path / "broker", zookeeper.connect) as broker:
        branch = XaKey(Xid.of("order", "b"), "uq")
        with WireClient(broker.port) as client:
            client.verb(TransactionVerb.BEGIN, branch)
            client.put("dynamic-one", 0, b"x", branch)
            client.put("orders", 3, b"x", branch)
            client.verb(TransactionVerb.PREPARE, branch)
        broker.config_path.write_text(CONFIG.replace("[topics.orders]\npartitions = 4\n", ""))
        if is_restarted:
            assert broker.stop() == 0
            broker.start()
        else:
            broker.hang_up()
            wait_until(lambda: "reloaded file=" in broker.log)
        with WireClient(broker.port) as client:
            client.verb(TransactionVerb.COMMIT_TWO_PHASE, branch)
        tree = snapshot(session)
        assert tree["/meta/brokers/topics-sub/dynamic-one/0-m"] == (b'{"numParts":2,"broker":"0-m"}', True)
        assert tree["/meta/brokers/topics-sub/orders/0-m"] == (b'{"numParts":4,"broker":"0-m"}', True)


def test_a_topic_that_is_no_longer_configured_can_be_read(
    zookeeper: Chroot, session: ZooKeeperSession, tmp_path: Path
) -> None:
    with running_broker(tmp_path / "broker", zookeeper.connect) as broker:
        with WireClient(broker.port) as client:
            client.put("orders", 2, b"x")
        assert broker.stop() == 0
    config = CONFIG.replace("[topics.orders]\npartitions = 4\n", "").replace(
        "partitions = 2\n", "accept_publish = false\n"
    )
    with running_broker(tmp_path / "broker", zookeeper.connect, config=config) as broker:
        tree = snapshot(session)
        assert tree["/meta/brokers/topics-sub/orders/0-m"] == (b'{"numParts":3,"broker":"0-m"}', True)
        assert "/meta/brokers/topics-pub/orders/0-m" not in tree
        assert tree["/meta/brokers/topics-sub/invoices/0-m"] == (b'{"numParts":1,"broker":"0-m"}', True)
        assert "/meta/brokers/topics-pub/invoices/0-m" not in tree
        with WireClient(broker.port) as client:
            assert [message.payload for _, message in client.read_all("orders", 2)] == [b"x"]


@pytest.mark.parametrize("directory", ["its own", "a copy of the first's"])
def test_a_second_broker_of_an_id_fails_and_leaves_the_first_alone(
    directory: str, broker: BrokerProcess, zookeeper: Chroot, session: ZooKeeperSession, tmp_path: Path
) -> None:
    wait_until(lambda: read_position(session, 0).node is not None)
    before, tree = master_node(session), snapshot(session)
    begins, ends = (
        f"error: broker 0 is registered at {broker.url}, and ",
        "stop that broker, or give this one another id",
    )
    if directory != "its own":
        shutil.copytree(broker.data, tmp_path / "second")
        assert (tmp_path / "second" / FILE_NAME).exists()
        begins = f"error: broker id 0 is registered by '{broker.url}' at {MASTER} (session 0x"
    with second_broker(tmp_path / "second", zookeeper.connect) as second:
        stdout, stderr = second.communicate(timeout=60)
    assert second.returncode == 2
    assert stdout == ""
    error = [line for line in stderr.splitlines() if line.startswith("error: ")]
    assert len(error) == 1
    assert error[0].startswith(begins)
    assert error[0].endswith(ends)
    assert stderr.splitlines()[-1] == error[0]
    assert "Traceback" not in stderr
    assert (master_node(session), snapshot(session)) == (before, tree)


def test_a_broker_that_waits_for_an_id_can_be_stopped(broker: BrokerProcess, zookeeper: Chroot, tmp_path: Path) -> None:
    shutil.copytree(broker.data, tmp_path / "second")
    with second_broker(tmp_path / "second", zookeeper.connect, LONG) as second:
        assert second.stderr is not None
        for line in second.stderr:
            if "waiting up to" in line:
                break
        started = time.monotonic()
        second.terminate()
        stdout, stderr = second.communicate(timeout=60)
    assert time.monotonic() - started < 60  # and not the two minutes that it would wait
    assert (second.returncode, stdout) == (0, "")
    assert "Traceback" not in stderr


def test_a_lost_session_is_replaced(broker: BrokerProcess, zookeeper: Chroot, session: ZooKeeperSession) -> None:
    with WireClient(broker.port) as client:
        client.put("dynamic-one", 0, b"x")
    wait_until(lambda: session.read("/meta/brokers/topics-sub/dynamic-one/0-m") is not None)
    before, tree = master_node(session), snapshot(session)
    credentials = SessionFile(broker.data).read()
    assert credentials is not None
    assert credentials.session_id == before.session_id
    assert end_session(zookeeper.connect, credentials)  # as its expiry would
    wait_until(lambda: snapshot(session) == tree)
    after = master_node(session)
    assert after.session_id != before.session_id
    remembered = SessionFile(broker.data).read()
    assert remembered is not None
    assert remembered.session_id == after.session_id
    with WireClient(broker.port) as client:
        client.put("dynamic-two", 0, b"x")
    wait_until(lambda: snapshot(session) == tree | topic_nodes("dynamic-two", 2))


def test_a_node_that_somebody_deleted_is_back(broker: BrokerProcess, session: ZooKeeperSession) -> None:
    for _ in range(2):
        for path in snapshot(session):
            session.delete(path)
        wait_until(lambda: snapshot(session) == tree_of(broker))
    assert "though its session lives" in broker.log


def test_a_killed_broker_is_back_at_once(zookeeper: Chroot, session: ZooKeeperSession, tmp_path: Path) -> None:
    with running_broker(tmp_path / "broker", zookeeper.connect, config=LONG) as broker:
        for _ in range(2):
            before = master_node(session)
            broker.kill()
            started = time.monotonic()
            broker.start()
            assert time.monotonic() - started < 60  # and not the two minutes of its session
            assert snapshot(session) == tree_of(broker, LONG)
            assert master_node(session).session_id != before.session_id


def test_a_broker_whose_id_was_taken_while_it_was_away_stops(
    zookeeper: Chroot, session: ZooKeeperSession, tmp_path: Path
) -> None:
    with running_broker(tmp_path / "first", zookeeper.connect, config=QUICK) as first:
        first.pause()
        # On a busy machine it has told how far its journal is: another directory would be refused for that.
        session.delete(session.paths.of(BrokerKey(BrokerNode.JOURNAL, 0)))
        with running_broker(tmp_path / "second", zookeeper.connect, config=PATIENT) as second:
            first.resume()
            assert first.wait() == 2
            last = first.log.splitlines()[-1]
            assert last.startswith(f"error: broker id 0 is registered by '{second.url}' at {MASTER} (session 0x")
            assert "Traceback" not in first.log
            assert snapshot(session) == tree_of(second)


def test_zookeeper_goes_away_and_comes_back(tmp_path: Path) -> None:
    with (
        EmbeddedZooKeeper(tmp_path / "zookeeper") as server,
        running_broker(tmp_path / "broker", server.connect, config=LONG) as broker,
    ):
        assert server._process is not None
        os.kill(server._process.pid, signal.SIGSTOP)  # so that requests are on their way when it dies
        with WireClient(broker.port) as client:
            for number in range(3):  # used while nobody can be told; every one must be told later
                client.put(f"dynamic-{number}", 0, b"x")
            time.sleep(0.2)
            server.kill()
            wait_until(lambda: "zookeeper request failed, trying again" in broker.log)
            client.put("dynamic-3", 0, b"x")
        server.restart()
        expected = tree_of(broker, LONG)
        for number in range(4):
            expected |= topic_nodes(f"dynamic-{number}", 2)
        with ZooKeeperSession(server.connect) as session:
            wait_until(lambda: snapshot(session) == expected)
        server.kill()
        wait_until(lambda: re.search(r"session state=SUSPENDED(?!.*SUSPENDED)", broker.log, re.DOTALL) is not None)
        time.sleep(0.5)
        assert broker.stop() == 0  # which fails after a minute, and not after the two of its session
        assert "Traceback" not in broker.log


def test_a_zookeeper_that_was_emptied_is_told_all_again(tmp_path: Path) -> None:
    """Else no slave would be known to be in sync, and an older copy of the journal would start."""
    with (
        EmbeddedZooKeeper(tmp_path / "zookeeper") as server,
        Replicas(tmp_path / "pair", server.connect, QUICK + '\n[replication]\nmode = "sync"\n') as pair,
    ):

        def known() -> tuple[ReplicationNode | None, JournalPosition | None]:
            with ZooKeeperSession(server.connect) as session:
                return read_replication(session, 0).node, read_position(session, 0).node

        wait_until(lambda: pair.is_in_sync(pair.slaves[0]))
        wait_until(lambda: None not in known())
        node, position = known()
        empty(server)
        server.start()
        wait_until(lambda: "registered again" in pair.master.log)
        node_again, position_again = known()
        assert node_again == node
        assert position is not None
        assert position_again is not None
        assert position_again.order >= position.order
        tree = tree_of(pair.master, pair.master.config_path.read_text())
        with ZooKeeperSession(server.connect) as session:
            wait_until(lambda: snapshot(session) == tree)


@contextlib.contextmanager
def waiting_for_its_id(
    directory: Path, connect: str, holder: ZooKeeperSession, *, outlives_its_session: bool = False
) -> Iterator[BrokerProcess]:
    """A broker that is about to register, held up there: *holder* has its id, until somebody deletes MASTER."""
    assert holder.create(MASTER, b"meta://10.0.0.9:8123", ephemeral=not outlives_its_session)
    broker = BrokerProcess(directory, connect, config=PATIENT)
    try:
        broker.launch()
        wait_until(lambda: "waiting up to" in broker.log)
        yield broker
    finally:
        broker.kill()
    broker.audit()


TRYING = "zookeeper request failed, trying again event=registration"


def test_a_start_outlives_zookeeper_going_away_while_it_registers(tmp_path: Path) -> None:
    with (
        EmbeddedZooKeeper(tmp_path / "zookeeper") as server,
        ZooKeeperSession(server.connect) as session,
        # On a busy machine the session of the test may expire with the server's restart, and its node with it.
        waiting_for_its_id(tmp_path / "broker", server.connect, session, outlives_its_session=True) as broker,
    ):
        server.kill()
        wait_until(lambda: TRYING in broker.log)
        server.restart()
        wait_until(lambda: broker.log.count("waiting up to") == 2)  # it asks again
        assert READY.search(broker.log) is None
        with ZooKeeperSession(server.connect) as fresh:
            fresh.delete(MASTER)
            broker.wait_ready()
            assert snapshot(fresh) == tree_of(broker)
        assert broker.stop() == 0
        assert "Traceback" not in broker.log


@pytest.fixture
def cut(zookeeper: Chroot) -> Iterator[tuple[TcpProxy, str]]:
    """A way to the test's chroot of ZooKeeper that can be cut, and its connect string."""
    server, _, chroot = zookeeper.connect.partition("/")
    with TcpProxy(int(server.rpartition(":")[2])) as link:
        yield link, f"{link.connect}/{chroot}"


def test_a_session_that_expires_while_a_start_registers_is_replaced(
    tmp_path: Path, cut: tuple[TcpProxy, str], zookeeper: Chroot, session: ZooKeeperSession
) -> None:
    link, connect = cut
    with waiting_for_its_id(tmp_path / "broker", connect, session) as broker:
        link.refuse()
        wait_until(lambda: TRYING in broker.log)
        credentials = SessionFile(broker.data).read()
        assert credentials is not None
        assert end_session(zookeeper.connect, credentials)
        session.delete(MASTER)
        link.heal()
        broker.wait_ready()
        assert snapshot(session) == tree_of(broker)
        assert master_node(session).session_id != credentials.session_id
        assert broker.stop() == 0


def test_a_start_whose_zookeeper_went_away_can_be_told_to_stop(
    tmp_path: Path, cut: tuple[TcpProxy, str], session: ZooKeeperSession
) -> None:
    link, connect = cut
    with waiting_for_its_id(tmp_path / "broker", connect, session) as broker:
        link.refuse()
        wait_until(lambda: TRYING in broker.log)
        assert broker.stop() == 0
        assert READY.search(broker.log) is None
        assert "Traceback" not in broker.log


def test_what_a_start_reads_first_is_waited_for_until_it_is_told_to_stop(
    tmp_path: Path, cut: tuple[TcpProxy, str], caplog: pytest.LogCaptureFixture
) -> None:
    link, connect = cut
    section = ZooKeeperSection(session_timeout_ms=4000)  # as long as an answer is waited for
    config = BrokerConfig(data=tmp_path, broker_id=0, port=0, zookeeper=connect, zookeeper_section=section)
    membership = Membership(config, connect, lambda error: None)
    membership.connect()
    with contextlib.closing(membership), ThreadPoolExecutor(1) as worker:
        link.refuse()
        asked = worker.submit(membership.replication)
        wait_until(lambda: "trying again event=reading the replication node" in caplog.text)
        link.heal()
        assert asked.result(60) is None
        link.refuse()
        asked = worker.submit(membership.replication)
        wait_until(lambda: caplog.text.count("trying again") >= 2)
        membership.cancel()
        with pytest.raises(ZooKeeperUnavailable):
            asked.result(60)


def test_a_change_of_the_in_sync_set_waits_for_no_topics(
    tmp_path: Path, zookeeper: Chroot, session: ZooKeeperSession
) -> None:
    config = BrokerConfig(data=tmp_path, broker_id=0, port=0, zookeeper=zookeeper.connect)
    membership = Membership(config, zookeeper.connect, lambda error: None)
    membership.connect()
    with contextlib.closing(membership), ThreadPoolExecutor(1) as worker:
        membership.cluster.check()
        with contextlib.closing(DirectoryStorage.open_for_writing(tmp_path)) as storage:
            membership.cluster.join(storage)
        membership.register(BrokerUrl("127.0.0.1", 1), {}, 1)
        before: queue.SimpleQueue[int] = queue.SimpleQueue()
        announced = threading.Event()
        wanted = ReplicationNode(epoch=1)
        # Holds the membership thread until all is announced, however slowly.
        membership.in_sync_changed(wanted, lambda node: announced.wait(60))
        for number in range(400):
            membership.topic_used(f"used-{number}", TopicRegistration(1))
        membership.in_sync_changed(wanted, lambda node: before.put(len(session.children("/meta/brokers/topics"))))
        announced.set()
        assert before.get(timeout=60) == 0
        assert membership.replication() == wanted
        wait_until(lambda: len(session.children("/meta/brokers/topics")) == 400)
        worker.submit(membership.unregister).result(60)
        assert session.children("/meta/brokers/topics-sub/used-0") == []


def under_an_ephemeral_node(session: ZooKeeperSession, topic: str) -> Callable[[], object]:
    path = f"/meta/brokers/topics-pub/{topic}"
    assert session.create(path, ephemeral=True)
    return lambda: session.delete(path)


def over_somebodys_children(session: ZooKeeperSession, topic: str) -> Callable[[], object]:
    path = f"/meta/brokers/topics-sub/{topic}/0-m/below"
    assert session.create(path)
    return lambda: session.delete(path)


def without_the_right_to(session: ZooKeeperSession, topic: str) -> Callable[[], object]:
    path = f"/meta/brokers/topics/{topic}"
    assert session.create(path)
    client = session._client
    client.set_acls(path, [make_acl("world", "anyone", read=True, admin=True)])
    return lambda: client.set_acls(path, OPEN_ACL_UNSAFE)


@pytest.mark.parametrize("obstacle", [under_an_ephemeral_node, over_somebodys_children, without_the_right_to])
def test_a_topic_that_cannot_be_registered_is_named_and_holds_up_nothing(
    obstacle: Callable[[ZooKeeperSession, str], Callable[[], object]],
    zookeeper: Chroot,
    session: ZooKeeperSession,
    tmp_path: Path,
) -> None:
    at_start, in_use = obstacle(session, "orders"), obstacle(session, "dynamic-bad")
    with running_broker(tmp_path / "broker", zookeeper.connect, config=PATIENT) as broker:
        assert "1 topic not registered yet: orders" in broker.log
        with WireClient(broker.port) as client:
            client.put("dynamic-bad", 0, b"x")
            client.put("dynamic-good", 0, b"x")
        good = topic_nodes("dynamic-good", 2)
        wait_until(lambda: good.items() <= snapshot(session).items())
        wait_until(lambda: "trying again count=1 topics=dynamic-bad" in broker.log)
        assert topic_nodes("invoices", 2).items() <= snapshot(session).items()
        at_start()
        in_use()
        expected = tree_of(broker) | good | topic_nodes("dynamic-bad", 2)
        wait_until(lambda: snapshot(session) == expected)
        assert broker.stop() == 0
        assert "Traceback" not in broker.log
    assert snapshot(session) == {}


def test_a_mistake_of_its_thread_ends_the_broker(zookeeper: Chroot, tmp_path: Path) -> None:
    ended: queue.SimpleQueue[Exception] = queue.SimpleQueue()
    config = BrokerConfig(data=tmp_path, broker_id=0, port=0, zookeeper=zookeeper.connect)
    membership = Membership(config, zookeeper.connect, ended.put)
    membership.connect()
    try:
        membership.cluster.check()
        with contextlib.closing(DirectoryStorage.open_for_writing(tmp_path)) as storage:
            membership.cluster.join(storage)
        membership.register(BrokerUrl("127.0.0.1", 8123), {}, 1)
        unspeakable = os.fsdecode(b"\xff")
        membership.position_changed(JournalPosition(epoch=1, incarnation=1, end=1, directory=unspeakable, host="h"))
        assert isinstance(ended.get(timeout=60), UnicodeEncodeError)
    finally:
        membership.unregister()
        membership.close()
