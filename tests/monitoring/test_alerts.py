"""Each alert of docs/monitoring fires when its situation is brought about with real processes, and not before."""

import contextlib
import os
import re
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import psycopg
import pytest
from prometheus_client import CollectorRegistry, start_http_server

from journal.errors import StorageFailed
from journal.records.xid import XaKey, Xid
from meta_client import Batch, Client
from meta_client.cli.consumer_admin import serve_consumer_admin
from meta_client.consumer.config import ConsumerConfig
from meta_client.coordinator import Coordinator, DecisionUnknown, HeuristicOutcome, TwoPhaseStep
from meta_client.coordinator.metrics import CoordinatorCollector
from meta_client.outbox import Outbox
from meta_client.outbox.engines import engine_at
from meta_client.outbox.tables import create
from meta_client.protocol.requests import OFFSET_END, Put, TopicVerb, TransactionVerb
from meta_client.protocol.responses import Result
from tests.fixtures.broker import BrokerProcess, running_broker
from tests.fixtures.certificates import Certificates
from tests.fixtures.forked import Forked, run_metaq, start_metaq, start_module
from tests.fixtures.postgres import Database
from tests.fixtures.promtool import ALERT, RULES, Story
from tests.fixtures.replicas import Replicas, wait_until
from tests.fixtures.scrape import ADMIN, SERVED, Scrape, admin_url, wait_for
from tests.fixtures.small_disk import fill_up, small_disk
from tests.fixtures.strace import injected
from tests.fixtures.topic_commands import done
from tests.fixtures.wire import WireClient
from tests.meta_client.cli.test_group_exporter import consume_one
from tests.meta_client.cli.test_group_exporter import exporting as exporting_groups
from tests.meta_client.transactions.conftest import make_postgres
from zk.embedded.chroot import Chroot

V = TransactionVerb
MINUTE: Final = 60
SMALL: Final = """
[broker]
segment_bytes = 524288
message_bytes_max = 65536
checkpoint_bytes = 65536
checkpoint_seconds = 1.0
connections_max = 10

[topics.orders]
partitions = 1

[admin]
port = 0
"""
SYNC: Final = '[replication]\nmode = "sync"\nheartbeat_ms = 100\nlag_ms = 2000\nsilence_ms = 2000\n'
CHECKPOINTS: Final = ("checkpoint_bytes = 1048576", "checkpoint_bytes = 65536")
CRASHING: Final = "tests.meta_client.transactions.crashing"
# Those whose situation no test here brings about would be named with the reason. There are none.
UNTRIED: Final[frozenset[str]] = frozenset()


@pytest.fixture
def small_broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A lone broker on a disk of its own, with little of everything."""
    with small_disk(tmp_path / "disk", "8m"):
        broker = BrokerProcess(tmp_path / "disk", None, config=SMALL)
        try:
            yield broker.start()
        finally:
            broker.kill()


def scrape(broker: BrokerProcess) -> Scrape:
    return Scrape(admin_url(broker))


def branch(number: int) -> XaKey:
    return XaKey(Xid.of(f"order-{number}", "b"), "uq")


def test_connections_and_a_branch_in_doubt(small_broker: BrokerProcess, tmp_path: Path) -> None:
    story = Story(tmp_path, {"broker": admin_url(small_broker)})
    with small_broker.client() as client, contextlib.ExitStack() as others:
        client.verb(V.BEGIN, branch(1))
        client.put("orders", 0, b"message", branch(1))
        client.verb(V.PREPARE, branch(1))
        story.check(after_s=5 * MINUTE)
        story.check("MetaqBranchInDoubt", after_s=12 * MINUTE, not_fires=["MetaqConnectionsNearLimit"])
        for _ in range(8):
            others.enter_context(small_broker.client())
        wait_for(lambda: scrape(small_broker).get("metaq_connections"), lambda count: count == 9)
        story.check("MetaqConnectionsNearLimit", after_s=3 * MINUTE, not_fires=["MetaqConnectionsRefused"])
        for _ in range(3):
            others.enter_context(small_broker.client())
        wait_for(lambda: scrape(small_broker).get("metaq_connections_refused_total"), lambda count: count == 2)
        story.check("MetaqConnectionsRefused", after_s=MINUTE)


def test_a_peer_at_its_quota(tmp_path: Path) -> None:
    config = ADMIN + "\n[address_quota]\nrequests_per_second = 5\n"
    with running_broker(tmp_path / "broker", None, config=config) as broker, contextlib.ExitStack() as opened:
        clients = [opened.enter_context(broker.client()) for _ in range(4)]
        story = Story(tmp_path, {"broker": admin_url(broker)})

        def ask_on() -> None:  # several at once wait for so long together that a busy machine's pauses don't matter
            with ThreadPoolExecutor(len(clients)) as asking:
                list(asking.map(lambda client: [client.put("orders", 0, b"message") for _ in range(3)], clients))

        ask_on()
        story.check(after_s=4 * MINUTE, meanwhile=ask_on)
        story.check("MetaqQuotaReached", after_s=12 * MINUTE, meanwhile=ask_on)


def test_a_full_disk(small_broker: BrokerProcess, tmp_path: Path) -> None:
    with small_broker.client() as client:
        story = Story(tmp_path, {"broker": admin_url(small_broker)})
        fill_up(tmp_path / "disk")
        while client.result(Put("orders", 0, 0, None, None, 1, bytes(10_000))).is_success:
            pass  # into the rest of the segment
        wait_for(lambda: scrape(small_broker).get("metaq_disk_full"), lambda full: full == 1)
        story.check("MetaqDiskFull", "MetaqLogErrors", after_s=MINUTE, not_fires=["MetaqDiskNearlyFull"])
        story.check("MetaqDiskNearlyFull", "MetaqNotReady", after_s=6 * MINUTE)
        seen = run_metaq("brokers", "--broker", small_broker.url)
        assert seen.returncode == 1
        assert " full " in seen.stdout


def test_a_log_whose_disk_is_full(tmp_path: Path) -> None:
    """The broker serves on, and its audit log lacks lines."""
    with small_disk(tmp_path / "logs", "64k"):
        (tmp_path / "data").mkdir(mode=0o700)
        (tmp_path / "logs" / "broker").symlink_to(tmp_path / "data")  # its log goes beside it
        with running_broker(tmp_path / "logs" / "broker", None, config=ADMIN) as broker, broker.client() as client:
            story = Story(tmp_path, {"broker": admin_url(broker)})
            stranger = fill_up(tmp_path / "logs")
            for number in range(100):  # the file's last page has room
                done(client, TopicVerb.CREATE, f"made-{number}")
            lost = wait_for(lambda: scrape(broker).get("metaq_log_records_lost_total", log="audit"), bool)
            story.check("MetaqAuditLogLost", after_s=MINUTE)
            stranger.unlink()
            done(client, TopicVerb.CREATE, "late")
            assert re.search(rf"records lost, .* audit={lost:.0f} other=\d+\n", broker.log)
            assert re.search("audit action=topic-create .* topic=late", broker.log)
            written = len(re.findall("action=topic-create.* topic=made-", broker.log))
            assert written + (lost or 0) in (100, 101), "one that is lost may be cut off behind its topic"


def test_a_certificate_that_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told while it serves, and over once a new one is in place."""
    certificates = Certificates(tmp_path / "ca")
    config = ADMIN + certificates.tls()
    monkeypatch.setenv("SSL_CERT_FILE", str(certificates.ca))  # for scrapes
    with running_broker(tmp_path / "broker", None, config=config) as broker:
        remaining = "metaq_certificate_remaining_seconds"
        assert (scrape(broker).get(remaining) or 0) > 900 * 365 * 86_400
        assert "certificate ends soon" not in broker.log
        story = Story(tmp_path, {"broker": admin_url(broker)})
        certificates.server(ends=datetime.now(UTC) + timedelta(days=13))
        broker.hang_up()
        wait_for(lambda: scrape(broker).get(remaining), lambda left: 12 < (left or 0) / 86_400 <= 13)
        story.check("MetaqCertificateEnds", after_s=MINUTE)
        assert re.search(r"certificate ends soon, or has ended certificate=\S+ days=13\.0", broker.log)


def grow(broker: BrokerProcess, name: str, by: float) -> None:
    """Wait until that count has grown."""
    before = scrape(broker).get(name) or 0
    wait_for(lambda: scrape(broker).get(name), lambda now: (now or 0) >= before + by)


def test_a_slow_disk_and_a_slow_loop(tmp_path: Path) -> None:
    with running_broker(tmp_path / "broker", None, config=ADMIN) as broker, broker.client() as client:
        client.put("orders", 0, b"quick")
        story = Story(tmp_path, {"broker": admin_url(broker)})
        stopping = threading.Event()

        def put_on() -> None:
            while not stopping.is_set():
                client.put("orders", 0, b"slow")

        segment = next(broker.data.glob("*.journal"))
        sender = threading.Thread(target=put_on)
        with injected(broker.pid, segment, "fdatasync", "delay_enter=200000"):
            sender.start()
            try:
                grow(broker, "metaq_journal_fsync_duration_seconds_count", by=3)
                story.check(
                    "MetaqFsyncSlow",
                    after_s=12 * MINUTE,
                    meanwhile=lambda: grow(broker, "metaq_journal_fsync_duration_seconds_count", by=3),
                )
            finally:
                stopping.set()
                sender.join()
    with running_broker(tmp_path / "other", None, config=ADMIN) as broker:
        story, stopping = Story(tmp_path, {"broker": admin_url(broker)}), threading.Event()

        def hold_up() -> None:
            while not stopping.is_set():  # as a machine without a processor to spare does
                broker.pause()
                stopping.wait(0.15)
                broker.resume()
                stopping.wait(0.1)

        holder = threading.Thread(target=hold_up)
        holder.start()
        try:
            story.check(
                "MetaqLoopSlow",
                after_s=12 * MINUTE,
                meanwhile=lambda: grow(broker, "metaq_event_loop_delay_seconds_sum", by=0.2),
            )
        finally:
            stopping.set()
            holder.join()


def test_a_slave_that_dies_in_mode_sync(tmp_path: Path, zookeeper: Chroot) -> None:
    config = (ADMIN + SYNC).replace(*CHECKPOINTS)
    with Replicas(tmp_path / "replicas", zookeeper.connect, config) as replicas:
        master, slave = replicas.master, replicas.slaves[0]
        wait_until(lambda: replicas.is_in_sync(slave), "in sync")
        wait_for(lambda: scrape(slave).get("metaq_broker_ready"), lambda ready: ready == 1)
        with master.client() as client:
            for _ in range(7):
                client.put("orders", 0, bytes(10_000))
            wait_for(lambda: scrape(master).get("metaq_checkpoint_age_seconds"), lambda age: age is not None)
            story = Story(tmp_path, {"master": admin_url(master), "slave": admin_url(slave)})
            slave.kill()
            for opaque in range(40):  # acknowledged by nobody: no checkpoint may cover them
                client.send(Put("orders", 0, 0, None, None, opaque, bytes(10_000)))
            wait_for(lambda: scrape(master).get("metaq_replication_refusing"), lambda refuses: refuses == 1)
            wait_for(lambda: scrape(master).get("metaq_replica_connected", slave="1"), lambda linked: linked == 0)
            fires = ("MetaqDown", "MetaqNotReady", "MetaqInSyncBelowMin", "MetaqSlaveGone", "MetaqReplayLong")
            story.check(*fires, after_s=3 * MINUTE)
            story.check("MetaqReplicaLagSeconds", "MetaqCheckpointOld", after_s=9 * MINUTE)


def test_a_slave_that_falls_behind_and_a_master_that_dies(tmp_path: Path, zookeeper: Chroot) -> None:
    config = ADMIN + SYNC.replace('"sync"', '"async"')
    with Replicas(tmp_path / "replicas", zookeeper.connect, config) as replicas:
        master, slave = replicas.master, replicas.slaves[0]
        wait_for(lambda: scrape(master).get("metaq_in_sync_replicas"), lambda count: count == 1)
        wait_for(lambda: scrape(slave).get("metaq_broker_ready"), lambda ready: ready == 1)
        story = Story(tmp_path, {"master": admin_url(master), "slave": admin_url(slave)})
        slave.pause()
        del story.targets["slave"]  # a scrape would wait for it
        with master.client() as client:
            for _ in range(66):
                client.put("orders", 0, bytes(1_040_000))
        story.check("MetaqReplicaLagBytes", "MetaqReplicaLagSeconds", after_s=3 * MINUTE, not_fires=["MetaqNotReady"])
        slave.resume()
        master.kill()
        story.targets["slave"] = url = admin_url(slave)
        # What its master said last may still be on the way.
        wait_for(lambda: Scrape(url).get("metaq_slave_heartbeat_age_seconds"), lambda age: age is not None and age > 2)
        story.check("MetaqSlaveWithoutMaster", "MetaqDown", after_s=3 * MINUTE)


def started_resolver(log: Path, database: str, zookeeper: str) -> Forked:
    words = ["txn", "resolver", "--database", database, "--zk", zookeeper, "--admin-port", "0"]
    with log.open("wb") as out, Path(os.devnull).open("rb") as nothing:
        return start_metaq([*words, "--age", "0.2", "--interval", "0.1"], stdin=nothing, stdout=out, stderr=out)


def test_a_resolver_that_cannot_go_on_and_a_hazard(tmp_path: Path, zookeeper: Chroot, database: Database) -> None:
    """Its table is locked; a person decides against the row; its database hangs."""
    deciding, log = make_postgres(database), tmp_path / "resolver.log"
    config, place = ADMIN.replace("4000", "8000"), database.dsn
    with running_broker(tmp_path / "broker", zookeeper.connect, config=config) as broker:
        process = started_resolver(log, deciding.url, zookeeper.connect)
        try:
            url = wait_for(lambda: SERVED.search(log.read_text()), bool)[1]
            wait_for(lambda: Scrape(url).get("metaq_resolver_last_pass_age_seconds"), lambda age: age is not None)
            story = Story(tmp_path, {"broker": admin_url(broker), "resolver": url})
            with database.connect() as locking:
                assert start_module(CRASHING, "psycopg", place, zookeeper.connect, "1", "PREPARED").wait() == -9
                locking.execute("LOCK TABLE metaq_decision IN ACCESS EXCLUSIVE MODE")
                wait_for(lambda: Scrape(url).get("metaq_resolver_branches_waiting"), lambda count: count == 1)
                wait_for(lambda: Scrape(url).get("metaq_resolver_unreachable"), lambda count: count == 1)
                story.check("MetaqResolverCannotReach", "MetaqResolverBranchLeft", after_s=6 * MINUTE)
            wait_for(lambda: Scrape(url).get("metaq_resolver_branches_waiting"), lambda count: count == 0)
            process.send_signal(signal.SIGSTOP)
            assert start_module(CRASHING, "psycopg", place, zookeeper.connect, "2", "DECIDED").wait() == -9
            (key,) = re.findall(
                r'"key": "([^"]+)"', run_metaq("txn", "list", "--zk", zookeeper.connect, "--json").stdout
            )
            words = ("--zk", zookeeper.connect, "--why", "a test", "--yes")
            done = run_metaq("txn", "rollback", key, *words)
            assert done.returncode == 0, done.stderr
            process.send_signal(signal.SIGCONT)
            wait_for(lambda: scrape(broker).get("metaq_ledger_findings"), lambda count: count == 1)
            story.check("MetaqHazard", after_s=MINUTE, not_fires=["MetaqDecisionByHand", "MetaqResolverStuck"])
            story.check("MetaqDecisionByHand", after_s=65 * MINUTE)
            age = "metaq_resolver_last_pass_age_seconds"
            check_stuck(story, database, "metaq resolver", url, age, "MetaqResolverStuck")
        finally:
            process.kill()
            process.wait()


def check_stuck(story: Story, database: Database, program: str, url: str, age: str, alert: str) -> None:
    """Stop the server processes that serve *program*, as a database that hangs."""
    with psycopg.connect(database.dsn) as here:
        where = f"application_name = '{program}' AND datname = current_database()"
        pids = [pid for (pid,) in here.execute(f"SELECT pid FROM pg_stat_activity WHERE {where}".encode()).fetchall()]
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        wait_for(lambda: Scrape(url).get(age), lambda seconds: seconds is not None and seconds > 1)
        story.check(alert, after_s=2 * MINUTE)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def test_an_outbox_whose_messages_wait_or_are_refused(tmp_path: Path, zookeeper: Chroot, database: Database) -> None:
    """A topic without a broker; a partition that can't be; a database that hangs."""
    log, deciding, outbox = tmp_path / "relay.log", make_postgres(database), Outbox()
    engine = engine_at(deciding.url)
    with engine.connect() as connection:
        create(connection)
    engine.dispose()
    words = ["outbox", "relay", "--database", deciding.url, "--zk", zookeeper.connect, "--admin-port", "0"]
    with running_broker(tmp_path / "broker", zookeeper.connect, config=ADMIN):
        with log.open("wb") as out, Path(os.devnull).open("rb") as nothing:
            process = start_metaq(words, stdin=nothing, stdout=out, stderr=out)
        try:
            url = wait_for(lambda: SERVED.search(log.read_text()), bool)[1]
            wait_for(lambda: Scrape(url).get("metaq_outbox_messages_waiting"), lambda count: count == 0)
            story = Story(tmp_path, {"relay": url})
            with database.connect() as service:
                outbox.send(service, "nowhere", b"")
                service.commit()
                wait_for(lambda: Scrape(url).get("metaq_outbox_messages_waiting"), lambda count: count == 1)
                story.check("MetaqOutboxWaits", after_s=6 * MINUTE, not_fires=["MetaqOutboxStuck"])
                service.execute("UPDATE metaq_outbox SET topic = 'orders', partition = 'x'")
                service.commit()
            wait_for(lambda: Scrape(url).get("metaq_outbox_messages_set_aside"), lambda count: count == 1)
            story.check("MetaqOutboxSetAside", after_s=MINUTE, not_fires=["MetaqOutboxWaits"])
            check_stuck(story, database, "metaq-relay", url, "metaq_outbox_last_pass_age_seconds", "MetaqOutboxStuck")
        finally:
            process.kill()
            process.wait()


@contextlib.contextmanager
def exporting(coordinator: Coordinator) -> Iterator[str]:
    """Serve the metrics of *coordinator* as a service does; yields the URL."""
    registry = CollectorRegistry()
    registry.register(CoordinatorCollector(coordinator))
    server, thread = start_http_server(0, "127.0.0.1", registry)
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def no_file_grows() -> Iterator[None]:
    """Let the system refuse each write of this process to a file."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_coordinator_without_its_broker_with_a_hazard_and_with_a_log_that_cannot_be_written(
    tmp_path: Path, zookeeper: Chroot, database: Database
) -> None:
    """Its broker dies once it has decided; a person rolls back what it decided; a write to its log fails."""
    config = ADMIN.replace("4000", "8000")
    with (
        contextlib.closing(database.connect()) as connection,
        running_broker(tmp_path / "broker", zookeeper.connect, config=config) as broker,
        Client(zookeeper.connect) as client,
    ):
        decided = list[Callable[[], None]]()
        producer = client.producer("shop")

        def observe(step: TwoPhaseStep, xid: Xid) -> None:
            del xid
            if step is TwoPhaseStep.DECIDED and decided:
                decided.pop()()

        def work() -> None:
            with coordinator.transaction(connection, producer, topics=("orders",)):
                connection.execute("SELECT 1")
                producer.send("orders", b"message")

        def roll_back() -> None:
            with psycopg.connect(database.dsn, autocommit=True) as other:
                for prepared in other.tpc_recover():
                    other.tpc_rollback(prepared)

        coordinator = Coordinator.open(tmp_path / "decisions", "shop", observer=observe)
        with exporting(coordinator) as url:
            work()
            story = Story(tmp_path, {"service": url})
            decided.append(broker.kill)
            worker = threading.Thread(target=work)
            worker.start()
            age = "metaq_coordinator_decisions_unfinished_oldest_age_seconds"
            wait_for(lambda: Scrape(url).get(age, coordinator=coordinator.name), lambda seconds: seconds is not None)
            wait_for(lambda: not broker.is_running, bool)
            story.check(after_s=4 * MINUTE)
            story.check("MetaqCoordinatorUnfinished", after_s=6 * MINUTE)
            broker.start()
            worker.join()
            assert Scrape(url).get(age, coordinator=coordinator.name) is None

            wait_for(lambda: client.topology.view("orders", 60).available, bool)  # the client knows that it is back
            decided.append(roll_back)
            with pytest.raises(HeuristicOutcome):
                work()
            hazards = "metaq_coordinator_hazards"
            wait_for(lambda: Scrape(url).get(hazards, coordinator=coordinator.name), lambda count: count == 1)
            story.check("MetaqCoordinatorHazard", after_s=MINUTE, not_fires=["MetaqCoordinatorLogFailed"])

            with no_file_grows(), pytest.raises(DecisionUnknown):
                work()
            story.check("MetaqCoordinatorLogFailed", after_s=MINUTE)
        with pytest.raises(StorageFailed, match="File too large"):
            coordinator.close()
        roll_back()  # what was prepared, and whose decision is unknown


def test_a_group_that_falls_behind(tmp_path: Path, zookeeper: Chroot) -> None:
    """A member that shows messages to somebody who takes them too slowly."""
    with running_broker(tmp_path / "broker", zookeeper.connect, config=ADMIN) as broker, broker.client() as client:
        log, reading, writing = tmp_path / "consume.log", *os.pipe()
        words = ["consume", "orders", "--zk", zookeeper.connect, "--group", "billing", "--follow", "--admin-port", "0"]
        with log.open("wb") as err, Path(os.devnull).open("rb") as nothing, os.fdopen(writing, "wb") as out:
            process = start_metaq(words, stdin=nothing, stdout=out, stderr=err)
        try:
            url = wait_for(lambda: re.search(r"metrics and health: (\S+)", log.read_text()), bool)[1]
            labels = {"consumergroup": "billing", "topic": "orders"}
            lag = "metaq_consumergroup_lag_bytes"
            wait_for(lambda: Scrape(url).get(lag, **labels), lambda lag: lag == 0)
            story = Story(tmp_path, {"consumer": url, "broker": admin_url(broker)})
            take_some(client, reading, url, 1 << 20)
            story.check("MetaqGroupBehind", after_s=8 * MINUTE, not_fires=["MetaqGroupLagGrows"])
            behind = Scrape(url).get(lag, **labels) or 0
            story.check(
                "MetaqGroupLagGrows",
                after_s=25 * MINUTE,
                meanwhile=lambda: take_some(client, reading, url, behind),
            )
        finally:
            process.kill()
            process.wait()
            os.close(reading)


def test_a_group_whose_members_are_gone(tmp_path: Path, zookeeper: Chroot) -> None:
    """Nobody exports its lag but the exporter; then its broker is gone, too."""
    of_group = {"consumergroup": "billing"}
    members, lag = "metaq_consumergroup_members", "metaq_consumergroup_stored_lag_bytes"
    with (
        running_broker(tmp_path / "broker", zookeeper.connect, config=ADMIN) as broker,
        exporting_groups(tmp_path / "exporter.log", zookeeper.connect) as url,
    ):
        with Client(zookeeper.connect) as client:
            consume_one(client, broker)
        wait_for(lambda: Scrape(url).get(members, **of_group), lambda count: count == 0)
        wait_for(lambda: Scrape(url).get(lag, **of_group, topic="orders"), lambda lag: lag == 0)
        story = Story(tmp_path, {"exporter": url})
        story.check(after_s=8 * MINUTE)
        with broker.client() as sender:
            sender.put("orders", 0, b"one")
        wait_for(lambda: Scrape(url).get(lag, **of_group, topic="orders"), bool)
        story.check("MetaqGroupWithoutMembers", "MetaqGroupBehind", after_s=8 * MINUTE)
        broker.kill()
        wait_for(lambda: Scrape(url).get(lag, **of_group, topic="orders"), lambda lag: lag is None)
        story.check("MetaqGroupLagUnknown", "MetaqGroupsUnread", after_s=6 * MINUTE, not_fires=["MetaqGroupBehind"])


def put_megabytes(client: WireClient, count: int) -> None:
    for _ in range(count * 1024):
        client.send(Put("orders", 0, 0, None, None, 1, bytes(1000)))
    for _ in range(count * 1024):
        client.receive()


def take_some(client: WireClient, reading: int, url: str, behind: float) -> None:
    """Put more than is taken, until the member knows."""
    put_megabytes(client, 3)
    while (Scrape(url).get("metaq_consumergroup_lag_bytes", consumergroup="billing", topic="orders") or 0) <= behind:
        os.read(reading, 1 << 16)


def test_a_partition_that_stands_still(tmp_path: Path, zookeeper: Chroot) -> None:
    watchful = ConsumerConfig(fetch_wait_s=0.2, fetch_timeout_s=2.0, watchdog_s=0.8)
    release = threading.Event()

    def listen(batch: Batch) -> None:
        del batch
        release.wait(60)

    with (
        running_broker(tmp_path / "broker", zookeeper.connect, config=ADMIN) as broker,
        broker.client() as sender,
        Client(zookeeper.connect) as client,
        serve_consumer_admin(client, 0) as admin,
        client.consumer("billing", config=watchful) as consumer,
    ):
        consumer.subscribe("orders", listen)
        consumer.start()
        story = Story(tmp_path, {"consumer": admin.url})
        sender.put("orders", 0, b"one")
        wait_for(consumer.findings, bool)
        try:
            story.check("MetaqGroupStands", after_s=3 * MINUTE)
        finally:
            release.set()


def test_messages_that_retention_deletes_before_a_group_has_consumed_them(tmp_path: Path, zookeeper: Chroot) -> None:
    """By a member that was too slow, and by one that comes too late. Their lag is 0 afterwards."""
    config = SMALL + "\n[retention]\nbytes = 1048576\nwhen = 0.2\n"
    labels = {"consumergroup": "billing", "topic": "orders"}
    may_return = threading.Event()
    may_return.set()

    def listen(batch: Batch) -> None:
        del batch
        assert may_return.wait(60)

    with (
        running_broker(tmp_path / "broker", zookeeper.connect, config=config) as broker,
        broker.client() as sender,
        Client(zookeeper.connect) as client,
        serve_consumer_admin(client, 0) as admin,
    ):

        def have_deleted() -> None:
            end = moved_to(sender, OFFSET_END)
            while moved_to(sender, 0) <= end:
                put_megabytes(sender, 1)

        def skips() -> None:
            may_return.set()
            wait_for(lambda: Scrape(admin.url).get("metaq_consumergroup_bytes_skipped_total", **labels), bool)
            wait_for(lambda: Scrape(admin.url).get("metaq_consumergroup_lag_bytes", **labels), lambda lag: lag == 0)

        with client.consumer("billing") as consumer:
            consumer.subscribe("orders", listen, max_bytes=1024)
            consumer.start()
            sender.put("orders", 0, b"one")
            wait_for(lambda: Scrape(admin.url).get("metaq_consumergroup_lag_bytes", **labels), lambda lag: lag == 0)
            story = Story(tmp_path, {"consumer": admin.url})
            may_return.clear()
            have_deleted()
            story.check(after_s=MINUTE)
            story.check("MetaqGroupSkipped", after_s=MINUTE, not_fires=["MetaqGroupBehind"], meanwhile=skips)
        story = Story(tmp_path, {"consumer": admin.url})
        have_deleted()
        with client.consumer("billing") as consumer:
            consumer.subscribe("orders", listen)
            consumer.start()
            skips()
            story.check("MetaqGroupSkipped", after_s=MINUTE)
        with client.consumer("new") as consumer:  # at the beginning, wherever that is
            consumer.subscribe("orders", listen)
            consumer.start()
            new = labels | {"consumergroup": "new"}
            wait_for(lambda: Scrape(admin.url).get("metaq_consumergroup_lag_bytes", **new), lambda lag: lag == 0)
            assert Scrape(admin.url).get("metaq_consumergroup_bytes_skipped_total", **new) == 0


def moved_to(sender: WireClient, offset: int) -> int:
    """Return where a reader of orders/0-0 at *offset*, which is before its start or behind its end, goes on."""
    answer = sender.get("orders", 0, offset)
    return int(answer.message) if isinstance(answer, Result) and answer.status == 301 else 0


def test_every_alert_is_fired_by_a_test_here() -> None:
    fired = set(re.findall(r'"(Metaq\w+)"', re.sub(r"not_fires=\[.*?\]", "", Path(__file__).read_text())))
    assert fired == set(ALERT.findall(RULES.read_text())) - UNTRIED
