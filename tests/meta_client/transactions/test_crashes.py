"""Service, database or broker die at each step: rows and messages are the same in the end, nothing stays prepared."""

import contextlib
import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pymysql
import pytest

from meta_broker.testing.postgres import EmbeddedPostgres
from meta_client.coordinator import DecisionUnknown, PrepareFailed
from meta_client.transactions import CommitStep, commit_sequence
from meta_client.transactions.mysql import parameters
from meta_client.transactions.postgres_block import ThreadBlock
from tests.fixtures.broker_pool import BrokerPool
from tests.fixtures.forked import run_metaq, start_module
from tests.fixtures.mariadb import EmbeddedMariaDb, made_in, need_mariadb
from tests.fixtures.postgres import Database
from tests.meta_client.transactions.conftest import (
    Deciding,
    World,
    do,
    make,
    make_mariadb,
    make_postgres,
    running_world,
)

CRASHING = "tests.meta_client.transactions.crashing"
KILLED = ("BODY", "PREPARED", "RECORDED", "DECIDED", "COMMIT_SENT")
WRITE = b"INSERT INTO numbers"
COMMIT = re.compile(rb"(?<![\w'])(COMMIT|commit)")  # a statement, neither AUTOCOMMIT nor what a row says
# Of resolvers: more than a live transaction takes from PREPARE to its row.
QUICK: dict[str, Any] = {"age_s": 1.5, "interval_s": 0.1}


DRIVERS = {"psycopg": "postgres", "sqlite3": "sqlite", "pymysql": "mariadb"}
TASKS = ["psycopg+tasks", "asyncpg+tasks", "asyncpg session+tasks"]


@pytest.fixture(
    params=[*(driver + framework for driver in DRIVERS for framework in ("", "+sqlalchemy", "+django")), *TASKS]
)
def crashing(request: pytest.FixtureRequest, broker_pool: BrokerPool) -> Iterator[tuple[str, World]]:
    deciding = make(DRIVERS.get(request.param.partition("+")[0], "postgres"), request)
    with running_world(deciding, broker_pool) as world:
        yield request.param, world


def test_the_service_is_killed_at_each_step(crashing: tuple[str, World]) -> None:
    driver, world = crashing
    place = world.deciding.url.removeprefix("sqlite:///")
    children = [start_module(CRASHING, driver, place, world.zookeeper, str(n), step) for n, step in enumerate(KILLED)]
    assert [child.wait() for child in children] == [-9] * len(KILLED)
    decided = [n for n, step in enumerate(KILLED) if step in ("DECIDED", "COMMIT_SENT")]
    assert world.deciding.numbers() == decided
    with world.open_client(**QUICK) as client:
        client.resolve(world.deciding.url)
        client.resolve(world.deciding.url)  # no second thread
        deadline = time.monotonic() + 60
        while world.prepared() or world.messages() != decided:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        world.deciding.execute("UPDATE metaq_decision SET decided_at = " + _an_hour_ago(world))
        world.wait_quiet()
        (counts,) = client.transaction_counts().values()
    assert (counts.hazards, counts.errors, counts.resolved_rolled_back) == (0, 0, 2)
    assert 1 <= counts.resolved_committed <= 2  # what was told was committed perhaps by the broker alone
    assert sorted(world.deciding.rows().values()) == ["rollback", "rollback"]
    world.check(decided)


def _an_hour_ago(world: World) -> str:
    return "decided_at - 3600" if world.deciding.kind == "sqlite" else "now() - interval '1' hour"


def test_a_fleet_s_resolver(world: World) -> None:
    """The command, beside services that do not resolve."""
    with world.open_client(resolves=False, observer=_raise_at(CommitStep.RECORDED)) as client:
        with (  # noqa: PT012 - the block is what is tested
            closing(world.deciding.connect()) as connection,
            pytest.raises(_Died),
            client.transaction(connection) as transaction,
        ):
            connection.execute("INSERT INTO numbers VALUES (1)")
            transaction.send("orders", b"1")
        assert not world.prepared()  # it could say so itself
    place = ("txn", "resolver", "--database", world.deciding.url, "--zk", world.zookeeper, "--once", "--age", "0.2")
    start_module(CRASHING, "psycopg", world.deciding.url, world.zookeeper, "2", "PREPARED").wait()
    assert world.prepared()
    listed = run_metaq("txn", "list", "--json", "--zk", world.zookeeper).stdout
    assert "SELECT outcome FROM metaq_decision" in listed
    shown = run_metaq("txn", "show", json.loads(listed)["xid"], "--zk", world.zookeeper).stdout
    assert f"decision table {world.deciding.identity.name.table_id} decides" in shown
    done = run_metaq(*place)
    assert done.returncode == 0, done.stderr
    assert "resolved_rolled_back=1" in done.stdout
    assert not world.prepared()
    world.check([])


class _Died(Exception):
    pass


def _raise_at(at: CommitStep) -> Callable[[CommitStep, str], None]:
    def observe(step: CommitStep, gtrid: str) -> None:
        if step is at:
            raise _Died

    return observe


@pytest.mark.parametrize("at", [CommitStep.PREPARED, CommitStep.RECORDED, CommitStep.DECIDED])
def test_a_broker_that_is_away_for_a_while(world: World, at: CommitStep) -> None:
    (broker,) = world.brokers
    returning = threading.Timer(0.3, broker.start)

    def kill(step: CommitStep, gtrid: str) -> None:
        if step is at:
            broker.kill()
            returning.start()

    with world.open_client(observer=kill, **QUICK) as client, closing(world.deciding.connect()) as connection:
        with client.transaction(connection) as transaction:
            connection.execute("INSERT INTO numbers VALUES (1)")
            transaction.send("orders", b"1")
        assert world.deciding.numbers() == [1]  # nobody waits for a broker that has promised
        returning.join()
        world.deciding.execute("UPDATE metaq_decision SET decided_at = now() - interval '1 hour'")
        world.wait_quiet()
    world.check([1])


class Cut:
    """A way to a database that is cut once, at the COMMIT of the caller who wrote a number and not at a resolver's:
    before it arrives, or before its answer does.
    """

    def __init__(self, port: int, *, loses_answer: bool) -> None:
        self._target = port
        self._loses_answer = loses_answer
        self._is_done = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Let nobody else through. Idempotent."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # who accepts at the moment would accept one more
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(("127.0.0.1", self._target))
            threading.Thread(target=self._pump, args=(client, server, True), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, False), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, is_client: bool) -> None:
        has_written = False
        try:
            while data := source.recv(65536):
                has_written = has_written or WRITE in data
                if is_client and has_written and COMMIT.search(data) and not self._is_done:
                    self._is_done = True
                    if self._loses_answer:
                        source.shutdown(socket.SHUT_RDWR)  # the client's end alone
                        sink.sendall(data)
                        time.sleep(0.5)
                    break
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            with closing(end):
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue


@pytest.fixture(params=["postgres", "mariadb"])
def server_world(request: pytest.FixtureRequest, broker_pool: BrokerPool) -> Iterator[World]:
    with running_world(make(request.param, request), broker_pool) as world:
        yield world


@pytest.mark.parametrize("loses_answer", [True, False])
def test_the_connection_is_lost_inside_commit(server_world: World, loses_answer: bool) -> None:
    world, is_mariadb = server_world, server_world.deciding.kind == "mariadb"
    where: Any = parameters(world.deciding.url) if is_mariadb else psycopg.conninfo.conninfo_to_dict(world.deciding.url)
    with closing(Cut(int(where["port"]), loses_answer=loses_answer)) as cut:
        where["port"] = cut.port
        connection: Any = pymysql.connect(**where, ssl_disabled=True) if is_mariadb else psycopg.connect(**where)
        with world.open_client(**QUICK) as client:
            outcome = contextlib.nullcontext() if loses_answer else pytest.raises(PrepareFailed, match="turned out")
            with outcome, client.transaction(connection) as transaction:
                do(connection, "INSERT INTO numbers VALUES (1)")
                transaction.send("orders", b"1")
            assert not connection.open if is_mariadb else connection.closed
            world.wait_quiet()
    world.check([1] if loses_answer else [])


def test_the_connection_is_lost_between_the_last_look_and_commit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """psycopg's block raises nothing then."""
    leave = ThreadBlock.__exit__

    def lost(block: ThreadBlock, *how: Any) -> bool:
        block.connection.close()
        return leave(block, *how)

    monkeypatch.setattr(ThreadBlock, "__exit__", lost)
    with (  # noqa: PT012 - the block is what is tested
        closing(world.deciding.connect()) as connection,
        pytest.raises(PrepareFailed, match="turned out to be rolled back: the connection was lost"),
        world.client.transaction(connection) as transaction,
    ):
        do(connection, "INSERT INTO numbers VALUES (1)")
        transaction.send("orders", b"1")
    world.wait_quiet()
    world.check([])


@contextlib.contextmanager
def killable(kind: str) -> Iterator[tuple[Any, Deciding]]:
    """A server of the test's own, and a database in it."""
    if kind == "mariadb":
        need_mariadb()
        with EmbeddedMariaDb() as maria:
            yield maria, make_mariadb(made_in(maria))
    else:
        with EmbeddedPostgres() as server:
            yield server, make_postgres(Database(server.dsn, lambda: psycopg.connect(server.dsn)))


@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_a_database_that_dies_inside_commit(broker_pool: BrokerPool, kind: str) -> None:
    """The caller gets an unknown outcome; once the database is back the resolver ends it."""
    with killable(kind) as (server, deciding), running_world(deciding, broker_pool) as world:

        def kill(step: CommitStep, gtrid: str) -> None:
            if step is CommitStep.RECORDED:
                server.kill()

        with pytest.MonkeyPatch.context() as patch, world.open_client(observer=kill, **QUICK) as client:
            patch.setattr(commit_sequence, "UNKNOWN_S", 0.5)
            with (  # noqa: PT012 - the block is what is tested
                closing(world.deciding.connect()) as connection,
                pytest.raises(DecisionUnknown, match="can't be asked"),
                client.transaction(connection) as transaction,
            ):
                do(connection, "INSERT INTO numbers VALUES (1)")
                transaction.send("orders", b"1")
            server.restart()
            world.wait_quiet()
        world.check([])
        assert list(world.deciding.rows().values()) == ["rollback"]


def test_a_forked_child_has_none_of_it(world: World) -> None:
    with closing(world.deciding.connect()) as connection, world.client.transaction(connection) as transaction:
        connection.execute("INSERT INTO numbers VALUES (1)")
        transaction.send("orders", b"1")
        if not (child := os.fork()):
            status = 1
            try:
                transaction.send("orders", b"2")
            except RuntimeError as error:
                status = 0 if "made before fork" in str(error) else 2
            os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
    world.wait_quiet()
    world.check([1])


def test_a_copy_of_a_database_is_refused_and_says_what_to_do(world: World, postgres_server: EmbeddedPostgres) -> None:
    world.work(1)
    copy = "copied_shop"
    with psycopg.connect(postgres_server.dsn, autocommit=True) as admin:
        source = world.deciding.query("SELECT current_database()")[0][0]
        world.client.close()  # its resolver's connection is in the way
        admin.execute(f"CREATE DATABASE {copy} TEMPLATE {source}".encode())
        dsn = psycopg.conninfo.make_conninfo(world.deciding.url, dbname=copy)
        try:
            resolving = ("txn", "resolver", "--database", dsn, "--zk", world.zookeeper, "--once")
            done = run_metaq(*resolving)
            assert done.returncode == 2
            assert "metaq txn init --copied" in done.stderr
            before = world.deciding.identity.name.table_id
            assert run_metaq("txn", "init", "--database", dsn, "--moved", "--yes").stdout.split()[-1] == before
            assert run_metaq(*resolving, "--age", "0").returncode == 0
            made = run_metaq("txn", "init", "--database", dsn, "--copied", "--yes").stdout.split()[-1]
            assert made != before
            assert run_metaq("txn", "init", "--database", dsn).stdout.split()[-1] == made
            assert "CREATE TABLE" in run_metaq("txn", "init", "--database", dsn, "--sql").stdout
        finally:
            admin.execute(f"DROP DATABASE {copy} WITH (FORCE)".encode())
