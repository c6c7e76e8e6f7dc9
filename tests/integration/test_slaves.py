"""Slaves beside their masters, as clients, operators and ZooKeeper see them (spec 6.4, 9.4, 10.3, 13.6)."""

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.sql.datasource import InputPartition

from journal.records.xid import XaKey, Xid
from meta_broker.replication.replica.slave_file import SlaveFile
from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.consumer import Consumer
from meta_client.protocol.requests import (
    Fetch,
    Put,
    Stats,
    TopicCommand,
    TopicVerb,
    TransactionCommand,
    TransactionVerb,
)
from meta_client.protocol.responses import Behind, Data, Result
from spark_jobs.formats import MetaqReader
from spark_jobs.messages import fetching as replicas
from spark_jobs.messages.options import read_options
from tests.fixtures.broker import CONFIG
from tests.fixtures.replicas import ReplicaProcess, Replicas, copied_bytes, wait_until
from tests.fixtures.wire import Refused, WireClient
from tests.fixtures.zookeeper_tree import snapshot
from tests.integration.conftest import Inbox, OpenClient
from zk.brokers.replication import read_replication
from zk.embedded.chroot import Chroot
from zk.session.session import ZooKeeperSession

STEADY = CONFIG.replace("session_timeout_ms = 4000", "session_timeout_ms = 8000")
PATIENT = ConsumerConfig(backoff_s_max=0.1)


@pytest.fixture
def pair(tmp_path: Path, zookeeper: Chroot) -> Iterator[Replicas]:
    """Master 0 and its slave 1."""
    with Replicas(tmp_path / "pair", zookeeper.connect, STEADY) as running:
        yield running


@pytest.fixture
def session(zookeeper: Chroot) -> Iterator[ZooKeeperSession]:
    with ZooKeeperSession(zookeeper.connect) as session:
        yield session


def topics_of(session: ZooKeeperSession, name: str) -> dict[str, tuple[bytes, bool]]:
    """Return ZooKeeper's topics of one broker, under its name there."""
    return {path: found for path, found in snapshot(session).items() if path.endswith(f"/{name}")}


def wait_registered(session: ZooKeeperSession, slave_id: int = 1, *, is_there: bool = True) -> None:
    path = f"/meta/brokers/ids/0/slave{slave_id}"
    wait_until(lambda: (session.read(path) is not None) == is_there, f"{path} is there: {is_there}")


def wait_in_sync(session: ZooKeeperSession, master: ReplicaProcess) -> None:
    def is_in_sync() -> bool:
        node = read_replication(session, 0).node
        if node is None or (node.in_sync, node.master) != ((1,), master.url):
            return False
        with master.client() as wire:  # whom ZooKeeper's answer may reach later than us
            return any(line.startswith("slave 1 ") and " in_sync true" in line for line in wire.stats("replication"))

    wait_until(is_in_sync, "slave 1 is in sync")


def put_all(port: int, first: int, count: int, topic: str = "orders") -> None:
    with WireClient(port) as wire:
        for number in range(first, first + count):
            wire.put(topic, number % 2, b"%04d" % number)


def payloads(first: int, count: int) -> dict[bytes, int]:
    return {b"%04d" % number: 1 for number in range(first, first + count)}


@contextlib.contextmanager
def reading(open_client: OpenClient, inbox: Inbox, group: str = "group") -> Iterator[Consumer]:
    with open_client().consumer(group, config=PATIENT) as consumer:
        consumer.subscribe("orders", inbox)
        consumer.start()
        yield consumer


def wait_for(inbox: Inbox, count: int) -> None:
    """Each of the messages, once."""
    wait_until(lambda: inbox.payloads == payloads(0, count), f"{count} messages: {sum(inbox.payloads.values())}")


def spark_reader(zookeeper: Chroot) -> tuple[MetaqReader, list[InputPartition]]:
    """Plan a query of Spark over all of topic orders, without a Spark."""
    options = read_options({"zookeeper": zookeeper.connect, "subscribe": "orders"}, is_stream=False)
    reader = MetaqReader(options, ("payload",))
    return reader, reader.partitions()


def rows(planned: tuple[MetaqReader, list[InputPartition]]) -> list[bytes]:
    """Run the tasks; returns the payloads, sorted."""
    reader, tasks = planned
    return sorted(row["payload"] for task in tasks for batch in reader.read(task) for row in batch.to_pylist())


def stats(wire: WireClient) -> dict[str, str]:
    lines = [line.split(" ", 1) for line in wire.stats()]
    return {line[0]: line[1] for line in lines if len(line) == 2}


@pytest.mark.scenario("H07")
def test_a_slave_is_registered_beside_its_master_and_serves_what_that_has_acknowledged(
    pair: Replicas, session: ZooKeeperSession
) -> None:
    (slave,) = pair.slaves
    put_all(pair.master.port, 0, 100)
    wait_registered(session)
    with WireClient(pair.master.port) as master, WireClient(slave.port) as copy:
        wait_until(lambda: len(copy.read_all("orders", 0)) == 50, "everything is there")
        for partition in range(2):
            assert copy.read_all("orders", partition) == master.read_all("orders", partition)
        answer = copy.ask(Fetch("orders", "g", 0, 0, 1000, 1, 0, 7))
        assert isinstance(answer, Data)
        assert answer.read_from == "m"
        assert answer.behind is not None
        assert answer.behind.bytes == 0
        assert answer.behind.silent_ms < 60_000
        told = stats(copy)
        assert (told["slave"], told["slave_id"], told["master"]) == ("true", "1", pair.master.url)
        assert told["lag_bytes"] == "0"
        assert stats(master)["slave"] == "false"
        # A fetch that waits at a slave is answered when the master's message has come.
        copy.send(Fetch("orders", "g", 0, int(answer.log_end), 1000, 1, 10_000, 8))
        master.put("orders", 0, b"news")
        news = copy.receive()
        assert isinstance(news, Data)
        assert b"news" in news.body
    masters = topics_of(session, "0-m")
    json = {path: (data.replace(b"0-m", b"0-s1"), is_ephemeral) for path, (data, is_ephemeral) in masters.items()}
    copied = {path.replace("0-m", "0-s1"): found for path, found in json.items()}
    wait_until(lambda: topics_of(session, "0-s1") == copied, "the slave offers the same topics")
    assert snapshot(session)["/meta/brokers/ids/0/slave1"] == (slave.url.encode(), True)
    assert slave.stop() == 0
    wait_registered(session, is_there=False)
    assert topics_of(session, "0-s1") == {}
    assert topics_of(session, "0-m") == masters
    slave.start()
    wait_registered(session)
    pair.master.stop()  # leaves its slaves alone
    assert session.read("/meta/brokers/ids/0/master") is None
    assert snapshot(session)["/meta/brokers/ids/0/slave1"] == (slave.url.encode(), True)
    assert slave.stop() == 0
    ours, theirs = copied_bytes(slave.data), copied_bytes(pair.master.data)
    assert ours.keys() == theirs.keys()
    assert all(theirs[name].startswith(data) for name, data in ours.items())  # the note of its last checkpoint is more


def test_what_is_decided_about_topics_reaches_the_slave_and_zookeeper_in_its_name(
    pair: Replicas, session: ZooKeeperSession
) -> None:
    (slave,) = pair.slaves
    wait_registered(session)
    with WireClient(pair.master.port) as master, WireClient(slave.port) as copy:

        def decide(verb: TopicVerb, topic: str, *settings: tuple[str, str]) -> None:
            assert master.result(TopicCommand(verb, topic, settings, master.opaque())).is_success

        decide(TopicVerb.CREATE, "late", ("partitions", "3"))
        path = "/meta/brokers/topics-sub/late/0-s1"
        wait_until(lambda: session.read(path) is not None, "the slave offers it")
        master.put("dynamic-1", 0, b"first")
        wait_until(lambda: session.read("/meta/brokers/topics/dynamic-1/0-s1") is not None, "and a topic that is used")
        master.put("late", 2, b"x")
        wait_until(lambda: len(copy.read_all("late", 2)) == 1, "its message")
        decide(TopicVerb.CLOSE, "late", ("partitions", "2"))
        wait_until(lambda: isinstance(a := copy.get("late", 2, 0), Result) and a.status == 403, "it is closed")
        decide(TopicVerb.DELETE, "late")
        wait_until(lambda: session.read(path) is None, "it is gone")
        wait_until(lambda: isinstance(a := copy.get("late", 2, 0), Result) and a.status == 404, "so are its messages")


def test_a_slave_takes_no_writes_and_names_its_master(pair: Replicas, session: ZooKeeperSession) -> None:
    (slave,) = pair.slaves
    wait_registered(session)
    why = f"this is slave 1 of broker 0, which takes no writes: its master is {pair.master.url}"
    with WireClient(slave.port) as copy:
        put = copy.result(Put("orders", 0, 0, None, None, 1, b"x"))
        assert (put.status, put.text) == (503, why)
        show = copy.result(TopicCommand(TopicVerb.SHOW, "orders", (), 2))
        assert (show.status, show.text) == (503, why)
        for verb in (TransactionVerb.BEGIN, TransactionVerb.COMMIT_TWO_PHASE, TransactionVerb.RECOVER):
            answer = copy.result(TransactionCommand(XaKey(Xid.of("x", "mq"), "q"), "s", verb, None, "q", 3))
            assert (answer.status, answer.text) == (500, f"XAException:code=-7,msg={why}")
        copy.send(
            TransactionCommand(XaKey(Xid.of("x", "mq"), "q"), "s", TransactionVerb.END, None, None, 4), Stats("", 5)
        )
        assert copy.receive().opaque == 5  # END has no answer, as ever
        assert stats(copy)["put_failed"] == "1"


@pytest.mark.scenario("H10")
def test_a_slave_waits_for_its_first_master_and_shows_nothing_until_it_has_reached_one(
    tmp_path: Path, zookeeper: Chroot, session: ZooKeeperSession
) -> None:
    retention = "\n[retention]\nhours = 1.0\nbytes = 4194304\nwhen = 0.1\n"  # that has nothing to look at yet
    slave = ReplicaProcess(tmp_path / "slave", zookeeper.connect, 3, STEADY + retention)
    master = ReplicaProcess(tmp_path / "master", zookeeper.connect, None, STEADY)
    try:
        slave.start()
        time.sleep(0.7)  # a tick
        assert snapshot(session) == {}
        with WireClient(slave.port) as copy:
            answer = copy.get("orders", 0, 0)
            assert isinstance(answer, Result)
            assert (answer.status, answer.text[:44]) == (503, "this slave has not heard from its master sin")
            with pytest.raises(Refused, match="it has not heard from its master yet"):
                copy.put("orders", 0, b"x")
        master.start()
        wait_registered(session, 3)
        put_all(master.port, 0, 10)
        with WireClient(slave.port) as copy:
            wait_until(lambda: len(copy.read_all("orders", 0)) == 5, "what it has")
        facts = SlaveFile(slave.data).read()
        assert facts is not None
        assert (facts.broker_id, facts.slave_id) == (0, 3)
    finally:
        slave.kill()
        master.kill()


def test_a_slave_that_was_killed_shows_what_was_acknowledged_while_its_master_is_away(
    pair: Replicas, session: ZooKeeperSession
) -> None:
    (slave,) = pair.slaves
    wait_registered(session)
    put_all(pair.master.port, 0, 100)
    with WireClient(slave.port) as copy:
        wait_until(lambda: len(copy.read_all("orders", 1)) == 50, "everything is there")

    def is_written() -> bool:
        facts = SlaveFile(slave.data).read()
        return facts is not None and facts.high_watermark == facts.end > 4_000 and facts.master == pair.master.url

    wait_until(is_written, "slave.json is up to date")
    pair.master.kill()
    slave.kill()
    slave.start()
    wait_registered(session)
    with WireClient(slave.port) as copy:
        assert [len(copy.read_all("orders", partition)) for partition in range(2)] == [50, 50]
        answer = copy.ask(Fetch("orders", "g", 0, 0, 1000, 1, 0, 7))
        assert isinstance(answer, Data)
        assert isinstance(answer.behind, Behind)
        assert answer.behind.silent_ms > 0


@pytest.mark.scenario("H01", "H02")
def test_consumers_go_on_while_a_slave_comes_and_goes_and_while_the_master_does(
    pair: Replicas, session: ZooKeeperSession, open_client: OpenClient
) -> None:
    """Every message arrives once, whichever replicas are up (H01, H02)."""
    (slave,), inbox = pair.slaves, Inbox()
    wait_registered(session)
    with reading(open_client, inbox) as consumer:
        put_all(pair.master.port, 0, 100)
        wait_for(inbox, 100)
        slave.stop()
        put_all(pair.master.port, 100, 100)
        wait_for(inbox, 200)
        slave.start()
        wait_registered(session)
        put_all(pair.master.port, 200, 100)
        wait_for(inbox, 300)
        pair.master.stop()
        late = Inbox()
        with reading(open_client, late, "late"):
            wait_for(late, 300)  # all of it from the slave
            with WireClient(slave.port) as copy:
                assert int(stats(copy)["cmd_get"]) > 0
            pair.master.start()
            put_all(pair.master.port, 300, 100)
            for box in (inbox, late):
                wait_for(box, 400)
        wait_until(consumer.is_caught_up, "the end")
    assert inbox.overlaps == late.overlaps == 0


@pytest.mark.scenario("H03", "H08")
def test_two_masters_and_three_slaves_one_of_which_starts_again(
    tmp_path: Path, zookeeper: Chroot, session: ZooKeeperSession, open_client: OpenClient
) -> None:
    """H03, H08: totals are right, and each slave follows its own master alone."""
    inbox = Inbox()
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(Replicas(tmp_path / "first", zookeeper.connect, STEADY, slaves=2))
        (tmp_path / "other").mkdir()
        other = [ReplicaProcess(tmp_path / "other" / name, zookeeper.connect, None, STEADY) for name in "ms"]
        other[1].slave_id = 1
        for process in other:
            process.broker_id = 1
            stack.callback(process.kill)
            process.start()
        stack.enter_context(reading(open_client, inbox))
        for number in range(3):
            put_all(first.master.port, 200 * number, 100)
            put_all(other[0].port, 200 * number + 100, 100)
            wait_for(inbox, 200 * (number + 1))
            if number == 0:
                first.slaves[0].stop()
            elif number == 1:
                first.slaves[0].start()
                wait_registered(session, 1)
        with WireClient(other[1].port) as copy:
            wait_until(lambda copy=copy: len(copy.read_all("orders", 0)) == 150, "what its own master has")  # type: ignore[misc]  # a lambda's default has no annotation
            other[0].stop()  # no concern of the first one's slaves
            assert len(copy.read_all("orders", 0)) == 150
        for slave in first.slaves:
            with WireClient(slave.port) as copy:
                wait_until(lambda copy=copy: len(copy.read_all("orders", 0)) == 150, "what its own master has")  # type: ignore[misc]  # a lambda's default has no annotation
                assert stats(copy)["master"] == first.master.url


def test_a_reader_far_behind_is_sent_to_the_slave_and_comes_back_at_the_end(
    tmp_path: Path,
    zookeeper: Chroot,
    session: ZooKeeperSession,
    open_client: OpenClient,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With no memory to speak of, whatever is not the newest message is out of it."""
    config = STEADY.replace("[broker]\n", "[broker]\nhot_read_memory_ratio = 0\n")
    inbox = Inbox()
    with Replicas(tmp_path / "pair", zookeeper.connect, config) as running:
        (slave,) = running.slaves
        wait_registered(session)
        put_all(running.master.port, 0, 400)
        with WireClient(slave.port) as copy:
            wait_until(lambda: len(copy.read_all("orders", 1)) == 200, "everything is there")
            before = int(stats(copy)["cmd_get"])
        with open_client().consumer("far", config=PATIENT) as consumer:
            consumer.subscribe("orders", inbox, max_bytes=500)
            consumer.start()
            wait_for(inbox, 400)
            wait_until(consumer.is_caught_up, "the end")
            with WireClient(slave.port) as copy:
                assert int(stats(copy)["cmd_get"]) - before > 10
            put_all(running.master.port, 400, 2)
            wait_for(inbox, 402)
            with WireClient(running.master.port) as wire:
                assert int(stats(wire)["cmd_get"]) >= 4  # where it began, where it waits

        # So is a task of Spark, which goes back to the master when the slave is gone, and does without one, too.
        monkeypatch.setattr(replicas, "FETCH_BYTES", 500)
        wanted = sorted(payloads(0, 402))
        with WireClient(slave.port) as copy:
            wait_until(lambda: len(copy.read_all("orders", 1)) == 201, "everything is there")
            planned = spark_reader(zookeeper)
            before = int(stats(copy)["cmd_get"])
            assert rows(planned) == wanted
            assert int(stats(copy)["cmd_get"]) - before > 10
        slave.kill()
        assert rows(planned) == wanted
        slave.start()
        wait_registered(session)
        with WireClient(slave.port) as copy:
            wait_until(lambda: len(copy.read_all("orders", 1)) == 201, "everything is there")
        running.master.stop()
        assert rows(spark_reader(zookeeper)) == wanted


@pytest.mark.scenario("H04", "H05")
def test_synchronously_ten_producers_reach_ten_groups_and_go_on_where_the_slave_is_promoted(
    tmp_path: Path, zookeeper: Chroot, session: ZooKeeperSession, open_client: OpenClient
) -> None:
    """H04, H05: they swap roles."""
    config = STEADY + '\n[replication]\nmode = "sync"\n[slave]\nregister = true\n'
    inboxes = [Inbox() for _ in range(10)]
    with Replicas(tmp_path / "pair", zookeeper.connect, config) as running, contextlib.ExitStack() as stack:
        (slave,) = running.slaves
        wait_in_sync(session, running.master)
        client = open_client()
        for number, inbox in enumerate(inboxes):
            consumer = stack.enter_context(client.consumer(f"group-{number}", config=PATIENT))
            consumer.subscribe("orders", inbox)
            consumer.start()

        def produce(first: int) -> None:
            producer = client.producer()
            for number in range(first, first + 100):
                producer.send("orders", b"%04d" % number, timeout_s=60)

        with ThreadPoolExecutor(10) as pool:
            list(pool.map(produce, range(0, 1000, 100)))
        for inbox in inboxes:
            wait_for(inbox, 1000)
        running.master.stop()
        slave.stop()
        former = running.promote(slave)
        stack.callback(former.kill)
        former.slave_id = former.number
        former.start()
        wait_in_sync(session, running.master)  # before, writes are refused
        produce(1000)
        for inbox in inboxes:
            wait_for(inbox, 1100)
            assert inbox.overlaps == 0
