"""A certificate of XA transactions: a real coordinator, PostgreSQL and two brokers, and outcomes that people forced."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner
from pyspark.sql import SparkSession

from journal.errors import StorageFailed
from journal.records.xid import Xid
from meta_client.client import Client
from meta_client.coordinator import Coordinator, HeuristicOutcome, TwoPhaseStep
from meta_client.coordinator.decision_log import DecisionLog
from meta_client.coordinator.errors import ForeignLog
from meta_client.coordinator.names import BROKER, DATABASE, branch, new_nonce
from meta_client.coordinator.postgres import PostgresParticipant
from meta_client.producer.producer import Producer
from spark_jobs.certificate.coordinator_side import CoordinatorLogs, decision_table
from spark_jobs.certificate.database import Marker
from spark_jobs.certificate.join import JoinRequest
from spark_jobs.certificate.page import page
from spark_jobs.certificate.statement import agrees, make_certificate
from spark_jobs.cli.certify import certify
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.broker_pool import BrokerPool
from tests.fixtures.forked import run_metaq
from tests.fixtures.postgres import Database
from tests.meta_client.coordinator.conftest import STEADY
from tests.meta_client.transactions.conftest import BILLS

SOLD = Marker.parse("sold.gtrid")
TOPICS = ("orders", "bills")  # of broker 0, and of broker 1
OF_OTHERS = "no decision in what is left of the coordinator's log, and other databases may use it"
STATUS = "pg_xact_status, for the id in the coordinator's log"
SEGMENT_BYTES = 4096


class Killed(BaseException):
    """The service ends here."""


@dataclass
class World:
    """One number is one transaction: a row in `sold`, and a message in one of the topics."""

    database: Database
    brokers: list[BrokerProcess]
    client: Client
    directory: Path
    coordinator: Coordinator = field(init=False)

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> None:
        self.coordinator = Coordinator(DecisionLog.open(self.directory, "shop", segment_bytes=SEGMENT_BYTES), self.see)
        self.forced: Callable[[Xid], None] | None = None

    def see(self, step: TwoPhaseStep, xid: Xid) -> None:
        if step is TwoPhaseStep.DECIDED and self.forced is not None:
            self.forced(xid)

    def producer(self) -> Producer:
        return self.client.producer("shop")

    def sell(self, number: int, forced: Callable[[Xid], None] | None = None, *, fails: bool = False) -> str:
        """Sell, and return the transaction's name; *forced* is what people do once it is decided."""
        self.forced, topic, producer = forced, TOPICS[number % 2], self.producer()
        with (
            psycopg.connect(self.database.dsn) as connection,
            suppress(Killed, InterruptedError, HeuristicOutcome),
            self.coordinator.transaction(connection, producer, topics=(topic,)) as transaction,
        ):
            connection.execute("INSERT INTO sold VALUES (%s, %s)", (number, transaction.name))
            producer.send(topic, str(number).encode())
            if fails:
                raise InterruptedError
        return transaction.name

    def leave_prepared(self, number: int) -> str:
        """Leave both branches prepared, as a coordinator that is killed before it has decided."""
        topic, producer = TOPICS[number % 2], self.producer()
        whole = Xid(1, f"{self.coordinator.name}{new_nonce()}".encode(), b"")
        producer.tpc_begin(branch(whole, BROKER), (topic,))
        producer.send(topic, str(number).encode())
        producer.tpc_prepare()
        connection = self.database.connect()
        connection.tpc_begin(str(branch(whole, DATABASE)))
        connection.execute("INSERT INTO sold VALUES (%s, %s)", (number, whole.gtrid.decode()))
        connection.tpc_prepare()
        connection.close()
        return whole.gtrid.decode()

    def kill(self, _: Xid) -> None:
        self.coordinator.stop_waiting()
        raise Killed

    def roll_row_back(self, xid: Xid) -> None:
        with self.database.connect() as connection:
            connection.tpc_rollback(str(branch(xid, DATABASE)))
        self.producer().tpc_commit(branch(xid, BROKER))  # which nobody may do now

    def roll_message_back(self, xid: Xid) -> None:
        self.producer().tpc_rollback(branch(xid, BROKER))

    def recover(self) -> None:
        self.coordinator.close()
        self.open()
        with self.database.connect() as connection:
            for report in self.coordinator.recover([connection], [self.producer()]):
                if report.is_hazard:
                    self.coordinator.forget(report.xid)


@pytest.fixture
def world(broker_pool: BrokerPool, database: Database, tmp_path: Path) -> Iterator[World]:
    with broker_pool.lend(STEADY, BILLS) as lent, Client(lent.connect) as client:
        world = World(database, lent.brokers, client, tmp_path / "decisions")
        with psycopg.connect(database.dsn) as connection:
            connection.execute("CREATE TABLE sold (number int, gtrid text)")
        yield world
        world.coordinator.close()


def certified(
    spark: SparkSession, world: World, *, markers: tuple[Marker, ...] = (), logs: tuple[Path, ...] | None = None
) -> dict[str, Any]:
    directories = tuple(broker.data for broker in world.brokers)
    logs = (world.directory,) if logs is None else logs
    body = make_certificate(spark, JoinRequest(directories, world.database.dsn, markers, 0, coordinators=logs))
    assert body["refused"] == [], body
    printed: dict[str, Any] = json.loads(json.dumps(body))
    return printed


def counts(body: dict[str, Any]) -> dict[str, int]:
    return {name: one["transactions"] for name, one in body["classes"].items() if one["transactions"]}


def sources(body: dict[str, Any]) -> set[tuple[str, str, int]]:
    return {(one["class"], one["database"], one["transactions"]) for one in body["sources"]}


def named(body: dict[str, Any], kind: str) -> set[str]:
    return {one["transaction"] for one in body["examples"][kind]}


def test_every_outcome_and_on_whose_word(world: World, spark: SparkSession, tmp_path: Path) -> None:
    for number in range(4):
        world.sell(number)
    world.sell(4, fails=True)
    forced = {world.sell(6, world.roll_row_back), world.sell(7, world.roll_message_back)}
    world.coordinator.close()  # or its recovery, which the forced ones began, could take the next one, too
    world.open()
    decided = world.sell(8, world.kill)
    undecided = world.leave_prepared(5)
    published = world.leave_prepared(9)
    world.producer().tpc_commit(branch(Xid(1, published.encode(), b""), BROKER))  # by hand, and nobody decided it

    body = certified(spark, world)
    apart = {"mixed": 2, "orphan": 1}
    assert counts(body) == {"committed": 4, "rolled back": 1, "in doubt": 2, **apart}, json.dumps(body, indent=1)
    assert named(body, "mixed") == forced
    assert named(body, "orphan") == {published}
    assert named(body, "in doubt") == {undecided, decided}
    no_decision = "no decision in the coordinator's log, which is whole"
    assert sources(body) == {
        ("committed", STATUS, 4),
        ("rolled back", no_decision, 1),
        ("in doubt", "pg_prepared_xacts", 1),
        ("in doubt", STATUS, 1),
        ("mixed", STATUS, 2),
        ("orphan", "pg_prepared_xacts", 1),
    }
    (log,) = body["coordinators"]
    assert (log["directory"], log["decided"], log["unfinished"]) == (str(world.directory), 7, 3)
    assert (log["first_lsn"], log["copy"], log["in_use"]) == (0, False, True)
    text = page({"certificate": body, "signature": None})
    assert STATUS.replace("'", "&#x27;") in text
    assert str(world.directory) in text
    assert log["coordinator"] in text

    marked = certified(spark, world, markers=(SOLD,))
    assert counts(marked) == counts(body)
    assert ("committed", "marked rows", 4) in sources(marked)
    assert ("rolled back", f"{no_decision}, no marked row", 1) in sources(marked)

    other = tmp_path / "other"
    Coordinator.open(other, "other").close()
    # Without the log nothing vouches for any of them, and that is said.
    alone = certified(spark, world, markers=(SOLD,), logs=(other,))
    assert counts(alone) == {}
    lines = [line for line in alone["not_proven"] if f"coordinator {log['coordinator']} decides" in line]
    assert [line.partition(" ")[0] for line in lines] == ["10"]
    assert lines[0].endswith("which was not read: name its log with --coordinator")

    world.recover()
    after = certified(spark, world)
    assert counts(after) == {"committed": 5, "rolled back": 2, **apart}, "what was prepared in the database is undone"
    assert ("orphan", no_decision, 1) in sources(after)
    assert named(after, "mixed") == forced, "forgetting a decision by hand mends nothing"


def test_what_a_log_has_dropped_is_unknown(world: World, spark: SparkSession, tmp_path: Path) -> None:
    for number in range(40):
        world.sell(number)
    world.sell(40, fails=True)
    body = certified(spark, world)
    (log,) = body["coordinators"]
    kept = log["decided"]
    assert 0 < kept < 40
    assert log["first_lsn"] > 0
    assert counts(body) == {"committed": kept, "unknown": 40 - kept + 1}
    assert ("unknown", OF_OTHERS, 41 - kept) in sources(body)
    assert any("its log has dropped finished decisions below LSN" in line for line in body["not_proven"])
    assert not agrees(body)
    marked = certified(spark, world, markers=(SOLD,))
    assert counts(marked) == {"committed": 40, "rolled back": 1}
    assert agrees(marked)
    dropped = world.database.connect()
    dropped.execute("DELETE FROM sold WHERE number = 0")
    dropped.commit()
    copied = shutil.copytree(world.directory, tmp_path / "copied")
    body = certified(spark, world, markers=(SOLD,), logs=(copied,))
    (unknown,) = body["examples"]["unknown"]
    assert unknown["database"] == f"{OF_OTHERS}, no marked row"
    assert any("copied is a copy" in line for line in body["not_proven"])
    with pytest.raises(StorageFailed, match="two directories are of one coordinator's log"):
        certified(spark, world, logs=(world.directory, copied))
    with pytest.raises(ForeignLog, match="no coordinator's decisions"):
        certified(spark, world, logs=(world.brokers[0].data,))


@pytest.mark.parametrize("broker", ["9" * 11, "9" * 5000, "-1", "\u00b2", ""])
def test_a_decision_that_names_no_broker_names_what_cannot_be_read(
    database: Database, tmp_path: Path, broker: str
) -> None:
    with psycopg.connect(database.dsn) as connection:
        resource = PostgresParticipant(connection).resource_id()
    log = DecisionLog.open(tmp_path, "shop")
    log.decide(Xid(1, log.name.prefix + b"1", b""), f"database={resource}@3.00000001 broker={broker}/1")
    log.close()
    found = CoordinatorLogs((tmp_path,)).read(database.dsn)
    assert decision_table([], found.decisions).column("named").to_pylist() == [None]


def test_what_commits_while_the_journals_are_read_is_no_mistake(
    world: World, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by the command, on the worker's Spark; docs/operations/certificate.md runs it as a program."""
    world.sell(0)
    during: list[str] = []

    def sells(line: str) -> None:
        if "segments" in line:
            during.append(world.sell(len(during) + 1))

    directories = tuple(broker.data for broker in world.brokers)
    request = JoinRequest(directories, world.database.dsn, (SOLD,), 0, coordinators=(world.directory,))
    body = make_certificate(spark, request, sells)
    assert len(during) >= 2
    assert set(counts(body)) == {"committed"}, json.dumps(body, indent=1)
    assert (body["apart"], body["refused"]) == ({}, [])

    words = ["certify", "--database", world.database.dsn, "--since", "2020-01-01", "--marker", "sold.gtrid"]
    words += [word for directory in directories for word in ("--dir", str(directory))]
    with monkeypatch.context() as patch:
        patch.setattr("spark_jobs.cli.running.spark_session", lambda *_, **__: nullcontext(spark))
        done = CliRunner().invoke(certify, [*words[1:], "--coordinator", str(world.directory)])
    assert (done.exit_code, "not signed: no --key was given" in done.stderr) == (1, True), done.stderr
    made = json.loads(done.stdout)["certificate"]
    assert counts(made) == {"committed": len(during) + 1}
    assert made["coordinators"][0]["directory"] == str(world.directory)
    wrong = run_metaq(*words, "--coordinator", str(directories[0]))
    assert wrong.returncode == 2
    assert "no coordinator's decisions: name another directory" in wrong.stderr
