"""A consumer group under random faults that overlap: its promise, message by message, against the brokers' journals.

A world has two brokers behind links that can be cut, and five members that consume in different ways, threads and
tasks, with offsets in ZooKeeper or in a database behind a link of its own. They reject messages, raise, are slow, seek,
pause and resume. Each round does four things at once: members join, leave, are killed, suspended or lose their session,
the links of one of them, of a broker or of the database are cut or slow, ZooKeeper and brokers are killed, stopped and
come back, a topic grows, retention deletes what is not consumed yet. After each round every partition is read, by its
owner alone; `groups/promise.py` says what else must hold. The journals, kept whole, tell what was stored.

METAQ_CRASH_ROUNDS rounds a store (default 1), in worlds of four; METAQ_CRASH_SEED repeats the choices of a world that
failed, not its timing.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import psycopg
import pytest

from meta_client.client import Client
from meta_client.consumer.dead_letters.reading import read_dead_letters
from meta_client.consumer.offset_stores.row_key import TABLE
from meta_client.operations.group_ends import ask_ends, with_all_partitions
from meta_client.operations.group_lag import Ends, lag_of
from meta_client.protocol.errors import MetaError
from tests.crash.groups.feed import Feed
from tests.crash.groups.fleet import GROUP, TOPIC, Fleet
from tests.crash.groups.journal_copy import JournalCopies
from tests.crash.groups.ledger import COMMIT_SLACK_S, Incident, check
from tests.crash.groups.promise import Evidence, Promise, Sample, ToldLag
from tests.crash.groups.stage import SESSION_S, SETTLE_S, Stage, wait_settled
from tests.crash.groups.styles import LATE, STYLES, TASK_STYLES
from tests.crash.groups.watch import Watch
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.postgres import Database
from tests.fixtures.tcp_proxy import TcpProxy
from zk.embedded.server import EmbeddedZooKeeper
from zk.errors import ZooKeeperError
from zk.groups.listing import GroupListing, list_group
from zk.session.lease import now
from zk.session.session import ZooKeeperSession
from zk.tree.nodes import Partition, TopicPartition

ROUNDS = int(os.environ.get("METAQ_CRASH_ROUNDS", "1"))
ROUNDS_PER_WORLD = 4
ACTS_PER_ROUND = 4
MEMBERS = 5
READ_S = 30.0
GRACE_S = 1.0  # for what was handed over before its partition went to another member
ASK_S = 0.5
PARTITIONS = [Partition(broker_id, number) for broker_id in (0, 1) for number in range(5)]
CONFIG = """
[broker]
advertised_host = "{address}"
segment_bytes = 524288
message_bytes_max = 65536
checkpoint_seconds = 1.0

[retention]
bytes = 1048576
when = 0.2

[zookeeper]
session_timeout_ms = 2000
sync_ms = 200
connect_timeout_ms = 60000

[topics.work]
partitions = 5
"""


@dataclass(eq=False)
class Observer:
    """Takes down what the store has and what an operator is told, again and again. Use as a context manager."""

    client: Client
    dsn: str | None  # of the store; None: ZooKeeper
    samples: list[Sample] = field(default_factory=list)
    told: list[ToldLag] = field(default_factory=list)
    ends: Ends | None = None
    _stop: threading.Event = field(default_factory=threading.Event)

    def on_look(self, began: float, ended: float, listing: GroupListing) -> None:
        """Keep the offsets of *listing*, or those in the database."""
        if self.dsn is None:
            offsets = {str(it.partition): it.stored.offset for it in listing.progress if it.stored is not None}
        else:
            began, offsets = now(), self._read_rows(self.dsn)
            ended = now()
        self.samples.append(Sample(began, ended, offsets))

    @staticmethod
    def _read_rows(dsn: str) -> dict[str, int]:
        with psycopg.connect(dsn) as connection, contextlib.suppress(psycopg.errors.UndefinedTable):
            query = f"SELECT partition, \"offset\" FROM {TABLE} WHERE topic = '{TOPIC}'"
            return dict(connection.execute(query.encode()).fetchall())
        return {}

    def _ask(self) -> None:
        while not self._stop.wait(ASK_S):
            with contextlib.suppress(MetaError, ZooKeeperError):
                began = now()
                (listing,) = with_all_partitions(self.client, [list_group(self.client.session, GROUP)])
                self.ends = ends = ask_ends(self.client, [listing], lambda line: None)
                if self.dsn is None:
                    told = {str(it.partition): lag_of(it, ends).bytes for it in listing.progress}
                    self.told.append(ToldLag(began, now(), told))

    def behind(self) -> dict[str, tuple[int, int]]:
        """Return the stored offsets and the ends of partitions that are not consumed."""
        if self.ends is None or not self.samples:
            return {"": (0, 0)}
        offsets = self.samples[-1].offsets
        ends = {str(partition): it.end for (_, partition), it in self.ends.ranges.items()}
        return {name: (offsets.get(name, 0), end) for name, end in ends.items() if offsets.get(name, 0) != end}

    @contextlib.contextmanager
    def observing(self) -> Iterator[None]:
        thread = threading.Thread(target=self._ask)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()


def wait_for(condition: Callable[[], bool], what: Callable[[], str], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.1)


def check_readers(fleet: Fleet, watch: Watch) -> None:
    """Every partition is read, and by nobody but its owner."""
    began, owners = now(), dict(watch.owners)

    def unread() -> set[str]:
        return owners.keys() - {it.partition for it in fleet.deliveries() if it.began > began}

    wait_for(lambda: not unread(), lambda: f"nobody reads {sorted(unread())}", READ_S)
    time.sleep(GRACE_S)
    others = [
        it
        for it in fleet.deliveries()
        if it.began > began + GRACE_S and owners.get(it.partition) not in (None, f"{GROUP}_{it.member}")
    ]
    kept = [it for it in others if watch.owners.get(it.partition) == owners[it.partition]]
    assert not kept, f"not of the owner: {kept[:3]}"


def play(stage: Stage, watch: Watch, rounds: int) -> None:
    members = [
        *(stage.join_and_leave, stage.kill, stage.stop, stage.stop_shortly),
        *(stage.cut, stage.refuse, stage.expire),
    ]
    servers = [stage.restart_zookeeper, stage.restart_broker, stage.stop_broker, stage.cut_broker]
    others = [stage.add_partition, stage.flood, *([stage.cut_database] if stage.database else [])]
    for number in range(rounds):
        acts = stage.random.sample([*members, *servers, *others], ACTS_PER_ROUND)
        print(f"round {number}: {', '.join(act.__name__ for act in acts)}", flush=True)
        stage.play(acts)
        stage.fleet.check_alive()
        settled_s = wait_settled(stage.fleet, watch)
        check_readers(stage.fleet, watch)
        print(f"round {number}: settled after {settled_s:.1f} s")
    time.sleep(COMMIT_SLACK_S)
    stage.play([stage.join_and_leave])  # and nothing else: what is delivered again now has no excuse
    wait_settled(stage.fleet, watch)


def live(
    stage: Stage, zookeeper: str, dsn: str | None, rounds: int
) -> tuple[Feed, Observer, dict[TopicPartition, int]]:
    """All of a world's rounds, until everything is consumed. Returns the starts of partitions, too."""
    with (
        ZooKeeperSession(zookeeper, session_timeout_ms=10_000) as session,
        Client(zookeeper, session_timeout_ms=10_000) as client,
    ):
        for _ in range(MEMBERS):
            stage.fleet.join()
        observer = Observer(client, dsn)
        watch = Watch(session, GROUP, TOPIC, stage.fleet.is_well, observer.on_look)
        feed = stage.feed = Feed(client.producer(), TOPIC, PARTITIONS)
        watch.start()
        with observer.observing():
            try:
                wait_settled(stage.fleet, watch)
                feed.start()
                play(stage, watch, rounds)
                feed.stop()
                observer.ends = None
                wait_for(lambda: not observer.behind(), lambda: f"not consumed: {observer.behind()}", SETTLE_S)
            finally:
                feed.cancel()
                watch.stop()
        assert observer.ends is not None
        return feed, observer, {key: it.start for key, it in observer.ends.ranges.items()}


def judge(
    stage: Stage, feed: Feed, observer: Observer, starts: dict[TopicPartition, int], copies: JournalCopies
) -> None:
    fleet, logs = stage.fleet, stage.fleet.logs()
    late = {member.name for member in fleet.everybody if member.style in LATE}
    incidents = [
        *fleet.incidents,
        *(Incident(0.0, now(), name, "consumed some time later") for name in late),
        *(Incident(it.at, it.at, log.member, it.reason, it.partition) for log in logs for it in log.failures),
        *(Incident(it.at, it.at, None, "sought", it.partition) for log in logs for it in log.seeks),
        *(Incident(at, at, log.member, "session lost") for log in logs for at in log.sessions_lost),
    ]
    dead = {
        (str(entry.address.partition), entry.address.offset)
        for member in fleet.everybody
        if (directory := member.log.with_suffix(".dead")).exists() and any(directory.iterdir())
        for entry, _ in read_dead_letters(directory)
    }
    evidence = Evidence(
        stored=copies.stored(),
        starts={str(partition): start for (_, partition), start in starts.items()},
        acknowledged=feed.places,
        logs=logs,
        dead=dead,
        samples=observer.samples,
        told=observer.told,
        incidents=incidents,
        buffering=late,
    )
    deliveries = [delivery for log in logs for delivery in (*log.deliveries, *log.moves, *log.filtered)]
    findings = check(deliveries, {}, incidents)
    problems = Promise(evidence).check() + findings.problems
    skipped = sum(len(log.moves) for log in logs)
    print(
        f"{sum(map(len, evidence.stored.values()))} stored, {len(dead)} dead letters, {skipped} moves by retention, "
        f"{sum(len(log.seeks) for log in logs)} seeks, {len(observer.samples)} looks at offsets; delivered "
        f"again because of: {findings.again()}"
    )
    assert not problems, "\n".join([f"{len(problems)} problems", *problems[:40]])


@contextlib.contextmanager
def world(path: Path, seed: int, database: Database | None) -> Iterator[tuple[Stage, str, JournalCopies]]:
    random = Random(seed)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(EmbeddedZooKeeper(path / "zookeeper"))
        brokers, links = [], []
        for number in (0, 1):
            address = f"127.0.0.{2 + number}"
            broker = BrokerProcess(
                path / f"broker-{number}", server.connect, broker_id=number, config=CONFIG.format(address=address)
            )
            stack.callback(broker.audit)
            stack.callback(broker.end)
            brokers.append(broker.start())
            links.append(stack.enter_context(TcpProxy(broker.port, address, broker.port)))
        link = None if database is None else stack.enter_context(TcpProxy(database.port))
        url = "" if database is None or link is None else database.url(link.port)
        styles = [*STYLES, *TASK_STYLES]
        random.shuffle(styles)
        port = int(server.connect.rpartition(":")[2])
        copies = stack.enter_context(JournalCopies(brokers, path / "copies"))
        fleet = stack.enter_context(Fleet(path, port, "", int(SESSION_S * 1000), styles, str(seed), url))
        yield Stage(server, brokers, fleet, random, links=links, database=link), server.connect, copies


@pytest.mark.parametrize("store", ["zookeeper", "database"])
@pytest.mark.timeout(300 + 60 * ROUNDS)
def test_a_group_keeps_its_promise(tmp_path: Path, request: pytest.FixtureRequest, store: str) -> None:
    first = int(os.environ.get("METAQ_CRASH_SEED") or time.time_ns() % 2**32)
    for number, done in enumerate(range(0, ROUNDS, ROUNDS_PER_WORLD)):
        seed = first + number
        print(f"METAQ_CRASH_SEED={seed}", flush=True)
        database = request.getfixturevalue("database") if store == "database" else None
        if database is not None:
            with psycopg.connect(database.dsn) as connection:  # of the world before
                connection.execute(f"DROP TABLE IF EXISTS {TABLE}".encode())
        path = tmp_path / str(seed)
        path.mkdir()
        try:
            with world(path, seed, database) as (stage, connect, copies):
                rounds = min(ROUNDS_PER_WORLD, ROUNDS - done)
                observed = live(stage, connect, None if database is None else database.dsn, rounds)
                stage.fleet.check_alive()
                for member in stage.fleet.members:
                    stage.fleet.leave(member)
                for broker in stage.brokers:
                    broker.end()
                judge(stage, *observed, copies)
        except BaseException as error:
            error.add_note(f"METAQ_CRASH_SEED={seed} repeats the choices")
            raise
