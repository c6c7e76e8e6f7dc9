"""Exceptions of a signal's handler anywhere in a block, COMMIT included: as task queues end what takes too long."""

import contextlib
import functools
import gc
import itertools
import random
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pymysql
import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from meta_client.coordinator.errors import CoordinatorError
from meta_client.transactions.mysql import parameters
from meta_client.transactions.transaction import Transaction
from tests.fixtures.broker_pool import BrokerPool
from tests.fixtures.forked import IS_MEASURED
from tests.fixtures.interrupts import interrupted
from tests.fixtures.replicas import wait_until
from tests.fixtures.tcp_proxy import TcpProxy
from tests.meta_client.transactions.conftest import World, do, make, running_world
from tests.meta_client.transactions.crashing import engine_of

pytestmark = pytest.mark.skipif(IS_MEASURED, reason="an exception in coverage itself would leave its lock locked")

REQUESTS = 150
AT_ITS_ENTRY = 1  # that of __exit__ itself, before anything can guard the block's end


class SoftTimeLimit(Exception):
    pass


# A driver that was interrupted may trip over itself afterwards.
INTERRUPTED = SoftTimeLimit, psycopg.Error, pymysql.Error, sqlite3.Error, SQLAlchemyError, CoordinatorError


class Alarm:
    """Raises SoftTimeLimit in the main thread, once, a while after it was set."""

    def __init__(self) -> None:
        self._is_set = False

    def ring(self, number: int, frame: object) -> None:
        if self._is_set:
            self._is_set = False
            raise SoftTimeLimit

    @contextlib.contextmanager
    def after(self, seconds: float) -> Iterator[None]:
        ident = threading.main_thread().ident
        assert ident is not None
        timer = threading.Timer(seconds, signal.pthread_kill, (ident, signal.SIGUSR1))
        self._is_set = True
        gc.disable()  # it would close what earlier blocks have left, and be interrupted when it tells of that
        timer.start()
        try:
            yield
        finally:
            self._is_set = False
            gc.enable()
            timer.join()


@pytest.fixture
def alarm() -> Iterator[Alarm]:
    alarm = Alarm()
    before = signal.signal(signal.SIGUSR1, alarm.ring)
    yield alarm
    signal.signal(signal.SIGUSR1, before)


@pytest.fixture(params=["postgres", "sqlite", "mariadb"])
def any_world(request: pytest.FixtureRequest, broker_pool: BrokerPool) -> Iterator[World]:
    with running_world(make(request.param, request), broker_pool) as world:
        yield world


@pytest.fixture
def collected() -> Iterator[None]:
    """Have the collector close what the test leaves to it: else it warns of that in a later test."""
    yield
    gc.collect()


# What was about to connect leaves its socket to the collector.
@pytest.mark.usefixtures("collected")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("way", ["driver", "sqlalchemy"])
def test_at_any_moment(any_world: World, alarm: Alarm, way: str) -> None:
    """Connections may break: rows and messages agree, and the next request works on another one."""
    world, chance = any_world, random.Random(seed := time.time_ns())
    print(f"seed {seed}")
    engine = engine_of(world.deciding.url)
    interrupted, took_s = 0, 0.02
    deadline = time.monotonic() + 240
    for number in itertools.count():
        if number >= REQUESTS and (interrupted > REQUESTS / 10 or time.monotonic() > deadline):
            break
        try:
            with closing(Session(engine) if way == "sqlalchemy" else world.deciding.connect()) as connection:
                began = time.monotonic()
                with alarm.after(chance.uniform(0, 1.2 * took_s)):
                    work(world, connection, number)
                took_s = 0.8 * took_s + 0.2 * (time.monotonic() - began)
        except INTERRUPTED:
            interrupted += 1
        except AssertionError as error:  # SQLAlchemy's own, once its COMMIT was interrupted
            if not isinstance(error.__context__, SoftTimeLimit):
                raise
            interrupted += 1
    engine.dispose()
    assert interrupted > REQUESTS / 10
    wait_until(lambda: not world.prepared(), "nothing is prepared")  # rows of what resolvers ended stay for a minute
    world.check(world.deciding.numbers())


def work(world: World, connection: Any, number: int) -> None:
    insert = f"INSERT INTO numbers VALUES ({number})"
    with world.client.transaction(connection) as transaction:
        if isinstance(connection, Session):
            connection.execute(text(insert))
        else:
            do(connection, insert)
        transaction.send("orders", str(number).encode())


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("way", ["driver", "sqlalchemy"])
def test_at_every_call_of_the_end(lite_world: World, way: str, raises: bool) -> None:
    """Its caller goes on with the connection, and commits: rows are rolled back already, or have their message."""
    world, engine = lite_world, engine_of(lite_world.deciding.url)
    for number in itertools.count(AT_ITS_ENTRY):
        with closing(Session(engine) if way == "sqlalchemy" else world.deciding.connect()) as connection:
            transaction = world.client.transaction(connection).__enter__()
            insert = f"INSERT INTO numbers VALUES ({number})"
            if isinstance(connection, Session):
                connection.execute(text(insert))
            else:
                do(connection, insert)
            transaction.send("orders", str(number).encode())
            error = ZeroDivisionError() if raises else None
            end = functools.partial(transaction.__exit__, type(error) if error else None, error, None)
            if not interrupted(number, end, SoftTimeLimit, "meta_client/transactions/"):
                break
            del transaction, end  # else it holds the connection, which the pool lends again
            connection.commit()
    engine.dispose()
    assert number > AT_ITS_ENTRY + (8 if raises else 20)
    wait_until(lambda: not world.prepared(), "nothing is prepared")
    world.check(world.deciding.numbers())


def test_right_after_the_commit_of_sqlalchemy(any_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, remove = engine_of(any_world.deciding.url), event.remove

    def interrupted(*listener: Any) -> None:
        remove(*listener)
        raise SoftTimeLimit

    monkeypatch.setattr("meta_client.transactions.sqlalchemy.event.remove", interrupted)
    with Session(engine) as session, pytest.raises(SoftTimeLimit):
        work(any_world, session, 1)
    engine.dispose()
    wait_until(lambda: not any_world.prepared(), "nothing is prepared")
    any_world.check([1])


def test_right_after_the_connection_is_claimed(any_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool may give out the connection again."""
    claim = Transaction._claim

    def interrupted(transaction: Transaction, connection: object) -> None:
        claim(transaction, connection)
        raise SoftTimeLimit

    with closing(any_world.deciding.connect()) as connection:
        monkeypatch.setattr(Transaction, "_claim", interrupted)
        with pytest.raises(SoftTimeLimit):
            work(any_world, connection, 1)
        monkeypatch.undo()
        work(any_world, connection, 2)
    any_world.wait_quiet()
    any_world.check([2])


class InterruptedPostgres(psycopg.Connection[Any]):
    commits: bool

    def commit(self) -> None:
        if self.commits:
            super().commit()
        raise SoftTimeLimit


class InterruptedSqlite(sqlite3.Connection):
    commits: bool

    def commit(self) -> None:
        if self.commits:
            super().commit()
        raise SoftTimeLimit


class InterruptedMariadb(pymysql.Connection):
    commits: bool

    def commit(self) -> None:
        if self.commits:
            super().commit()
        raise SoftTimeLimit


@pytest.mark.parametrize("commits", [True, False])
def test_at_commit(any_world: World, commits: bool) -> None:
    """Before the database has heard of it, or behind its answer: the row tells which, and the exception comes out."""
    deciding = any_world.deciding
    connection: Any
    match deciding.kind:
        case "postgres":
            connection = InterruptedPostgres.connect(deciding.url)
        case "sqlite":
            connection = sqlite3.connect(deciding.url.removeprefix("sqlite:///"), factory=InterruptedSqlite)
        case _:
            connection = InterruptedMariadb(**parameters(deciding.url))
    connection.commits = commits
    with closing(connection):
        do(connection, "SELECT 1")
        with pytest.raises(SoftTimeLimit):
            work(any_world, connection, 1)
    any_world.wait_quiet()
    any_world.check([1] if commits else [])


def test_while_it_is_entered(world: World, alarm: Alarm) -> None:
    """The connection is closed, rather than left in a transaction that neither commit() nor rollback() ends."""
    where: Any = psycopg.conninfo.conninfo_to_dict(world.deciding.url)
    with TcpProxy(int(where["port"])) as proxy:
        connection = psycopg.connect(world.deciding.url, port=proxy.port)
        world.work(1, connection=connection, connect=world.deciding.connect)
        proxy.swallow()
        with (
            alarm.after(0.2),
            pytest.raises(SoftTimeLimit),
            world.client.transaction(connection, connect=world.deciding.connect),
        ):
            pytest.fail("the block must not be entered")
        assert connection.closed
        proxy.heal()
    world.wait_quiet()
    world.check([1])
