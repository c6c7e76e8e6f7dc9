"""The two stores in a database, on PostgreSQL and SQLite, through PEP 249 connections and SQLAlchemy."""

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pg8000.dbapi
import psycopg
import psycopg2
import pytest
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row
from sqlalchemy import Engine, create_engine, inspect
from sqlalchemy import text as sql_text
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from meta_client.client import Client
from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.messages.batch import Batch
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.consumer.offset_stores import SqlOffsetStore, TransactionOffsetStore
from meta_client.consumer.offset_stores.errors import OffsetsMalformed, TakenMeanwhile
from meta_client.consumer.offsets import OffsetEntry
from meta_client.errors import ConsumerMisuse, NoDatabase, NotInTransaction
from tests.fixtures.postgres import Database, connect_plain
from zk.embedded.chroot import Chroot
from zk.tree.nodes import Partition

A, B = Partition(0, 0), Partition(0, 1)
TABLE = "meta_topic_partition_group_offset"
FRAME = 25


def batch(first: int, count: int, partition: Partition = A) -> Batch:
    """*count* messages of 25 bytes a frame from number *first* on."""
    messages = [
        ReceivedMessage(
            "orders", partition, number * FRAME, 100_000 + number, 0, None, b"%d" % number, (number + 1) * FRAME
        )
        for number in range(first, first + count)
    ]
    return Batch("orders", partition, first * FRAME, (first + count) * FRAME, messages)


def url_of(database: Database) -> str:
    facts = {key: str(value) for key, value in conninfo_to_dict(database.dsn).items()}
    return f"postgresql+psycopg:///?{urlencode(facts)}"


Opened = contextlib.AbstractContextManager[Any]


class Given:
    """A database, and the ways to work in it: `work` is a transaction that commits unless it raises."""

    def __init__(self, engine: Engine, connect: Callable[[], Any], work: Callable[[], Opened], owner: Any) -> None:
        self.engine = engine
        self.connect = connect
        self.work = work
        self.owner = owner  # what a TransactionOffsetStore is made with

    def rows(self) -> list[tuple[object, ...]]:
        with self.engine.connect() as connection:
            found = connection.execute(sql_text(f"SELECT * FROM {TABLE} ORDER BY 1, 2, 3"))
            return [tuple(row) for row in found]


@pytest.fixture(params=["postgres", "sqlite"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    if request.param == "postgres":
        database: Database = request.getfixturevalue("database")
        engine = create_engine(url_of(database))
    else:
        engine = create_engine(f"sqlite:///{tmp_path}/shop.db", connect_args={"timeout": 60})
    yield engine
    engine.dispose()


@pytest.fixture(params=["dbapi", "core", "session", "scoped session"])
def given(request: pytest.FixtureRequest, engine: Engine, tmp_path: Path) -> Given:
    def connect() -> Any:
        if engine.name == "sqlite":
            return sqlite3.connect(tmp_path / "shop.db", timeout=60)
        return psycopg.connect(request.getfixturevalue("database").dsn)

    @contextlib.contextmanager
    def dbapi() -> Iterator[Any]:
        with contextlib.closing(connect()) as connection, connection:
            yield connection

    make = sessionmaker(engine)

    @contextlib.contextmanager
    def scoped() -> Iterator[Any]:
        sessions = scoped_session(make)
        try:
            yield sessions
            sessions.commit()
        finally:
            sessions.remove()

    works: dict[str, Callable[[], Opened]] = {
        "dbapi": dbapi,
        "core": engine.begin,
        "session": make.begin,
        "scoped session": scoped,
    }
    return Given(engine, connect, works[request.param], connect if request.param == "dbapi" else engine)


@pytest.mark.scenario("B09")
def test_a_consumer_s_offsets(engine: Engine) -> None:
    store = SqlOffsetStore(engine, "billing")
    assert store.load("orders", A) is None
    assert inspect(engine).has_table(TABLE)
    store.commit([OffsetEntry("orders", A, 25, 100_000), OffsetEntry("orders", B, 0)])
    store.commit([OffsetEntry("orders", A, 50, 100_001)])
    other = SqlOffsetStore(engine, "audit")
    other.commit([OffsetEntry("orders", A, 7)])
    again = SqlOffsetStore(engine, "billing")
    assert (again.load("orders", A), again.load("orders", B), again.load("Orders", A)) == (50, 0, None)
    with engine.connect() as connection:
        found = connection.execute(sql_text(f"SELECT * FROM {TABLE} ORDER BY 1, 2, 3"))
        assert list(found.keys()) == ["topic", "partition", "group_id", "offset", "msg_id"]
        assert [tuple(row) for row in found] == [
            ("orders", "0-0", "audit", 7, -1),
            ("orders", "0-0", "billing", 50, 100_001),
            ("orders", "0-1", "billing", 0, -1),
        ]


def test_back_only_when_it_is_asked_for(engine: Engine) -> None:
    store = SqlOffsetStore(engine, "billing")
    store.load("orders", A)
    store.commit([OffsetEntry("orders", A, 9000)])
    store.commit([OffsetEntry("orders", A, 25), OffsetEntry("orders", B, 1)])
    assert (store.load("orders", A), store.load("orders", B)) == (9000, 1)
    store.commit([OffsetEntry("orders", A, 25, is_reset=True)])
    assert store.load("orders", A) == 25


def test_a_url_is_enough_and_a_schema_may_be_named(database: Database, tmp_path: Path) -> None:
    with SqlOffsetStore(f"sqlite:///{tmp_path}/offsets.db", "billing") as store:
        store.load("orders", A)
        store.commit([OffsetEntry("orders", A, 25)])
    with SqlOffsetStore(f"sqlite:///{tmp_path}/offsets.db", "billing") as store:
        assert store.load("orders", A) == 25
    with database.connect() as connection:
        connection.execute("CREATE SCHEMA mq")
    url = url_of(database)
    with SqlOffsetStore(url, "billing", table="mq.Offsets") as store:
        assert store.load("orders", A) is None
    by_hand = TransactionOffsetStore(lambda: psycopg.connect(database.dsn), "billing", table="mq.Offsets")
    with database.connect() as connection:
        assert len(by_hand.take(connection, batch(0, 2))) == 2
    assert database.value('SELECT "offset" FROM mq."Offsets"') == 50


def test_members_that_make_the_table_at_the_same_time(engine: Engine) -> None:
    found: list[object] = []
    gate = threading.Barrier(4)

    def load(number: int) -> None:
        store = SqlOffsetStore(engine, f"group{number}")
        gate.wait()
        found.append(store.load("orders", A))

    threads = [threading.Thread(target=load, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [None] * 4


def test_what_is_stored_and_is_no_offset_is_named(engine: Engine) -> None:
    store = SqlOffsetStore(engine, "billing")
    store.load("orders", A)
    with engine.begin() as connection:
        connection.execute(sql_text(f"INSERT INTO {TABLE} VALUES ('orders', '0-0', 'billing', -5, 0)"))
    with pytest.raises(OffsetsMalformed, match="group billing is said to be at -5 of orders/0-0"):
        store.load("orders", A)
    with pytest.raises(OffsetsMalformed, match="has 300 characters"):
        store.load("t" * 300, A)


def test_rows_and_offset_together_or_neither(given: Given) -> None:
    store = TransactionOffsetStore(given.owner, "billing")
    assert store.load("orders", A) is None
    with given.work() as work:
        assert [m.payload for m in store.take(work, batch(0, 3))] == [b"0", b"1", b"2"]
    assert store.load("orders", A) == 75
    with contextlib.suppress(ZeroDivisionError), given.work() as work:
        assert len(store.take(work, batch(3, 3))) == 3
        raise ZeroDivisionError
    assert store.load("orders", A) == 75
    with given.work() as work:
        assert len(store.take(work, batch(3, 3))) == 3
    assert given.rows() == [("orders", "0-0", "billing", 150, 100_005)]


def test_what_was_done_is_not_done_again(given: Given) -> None:
    store = TransactionOffsetStore(given.owner, "billing")
    store.load("orders", A)
    with given.work() as work:
        store.take(work, batch(0, 4))
    for first, count, left in [(0, 4, []), (1, 2, []), (0, 6, [4, 5]), (2, 5, [6]), (9, 1, [9])]:
        with given.work() as work:  # the last one: retention took what stood before
            assert [m.payload for m in store.take(work, batch(first, count))] == [b"%d" % n for n in left]
    assert store.load("orders", A) == 250
    store.commit([OffsetEntry("orders", A, 25)])  # what a consumer would store; the listener has done it
    assert store.load("orders", A) == 250
    store.commit([OffsetEntry("orders", A, 25, is_reset=True), OffsetEntry("orders", B, 75)])
    assert (store.load("orders", A), store.load("orders", B)) == (25, None)


def test_one_message_and_what_fetch_returns_can_be_taken(given: Given) -> None:
    store = TransactionOffsetStore(given.owner, "billing")
    store.load("orders", A)
    first, second = batch(0, 2).messages
    with given.work() as work:
        assert store.take(work, first) == [first]
        assert store.take(work, first) == []
    here, there = batch(0, 4).messages, batch(7, 2, B).messages
    mixed = [there[0], *here, there[1]]
    with given.work() as work:
        assert store.take(work, mixed) == [there[0], second, *here[2:], there[1]]
        assert store.take(work, []) == []
        backwards = batch(4, 3).messages[::-1]
        assert store.take(work, backwards) == backwards
        assert store.take(work, batch(4, 3)) == [], "each of them was taken"
        later = batch(7, 2).messages
        assert store.take(work, iter(later)) == later
    assert (store.load("orders", A), store.load("orders", B)) == (9 * FRAME, 9 * FRAME)


def test_what_would_be_offered_later_can_not_be_a_dead_letter(
    zookeeper: Chroot, database: Database, tmp_path: Path
) -> None:
    store = TransactionOffsetStore(database.connect, "billing")
    with Client(zookeeper.connect) as client:
        consumer = client.consumer("billing", store, config=ConsumerConfig(dead_letter_directory=tmp_path / "refused"))
        with pytest.raises(ConsumerMisuse, match='on_reject "dead_letter" is not for a TransactionOffsetStore'):
            consumer.subscribe("orders", lambda batch: None, on_reject="dead_letter")


def test_two_that_take_the_same_at_the_same_time(engine: Engine) -> None:
    """The second one waits for the first, then has nothing to do, or an error that brings the batch again."""
    store = TransactionOffsetStore(engine, "billing")
    store.load("orders", A)
    done: list[list[ReceivedMessage]] = []
    failed: list[Exception] = []
    started = threading.Barrier(2)

    def work() -> None:
        started.wait()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            try:
                with engine.begin() as connection:
                    taken = store.take(connection, batch(0, 3))
                done.append(taken)
                return
            except (IntegrityError, OperationalError, TakenMeanwhile) as error:
                failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(len, done)) == [0, 3], failed


def test_a_connection_that_commits_by_itself_is_refused(database: Database, tmp_path: Path) -> None:
    store = TransactionOffsetStore(database.connect, "billing")
    store.load("orders", A)
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        with pytest.raises(NotInTransaction, match=r"psycopg\.Connection is in autocommit mode, outside of a trans"):
            store.take(connection, batch(0, 1))
        with connection.transaction():
            assert len(store.take(connection, batch(0, 1))) == 1
    url = url_of(database)
    by_itself = create_engine(url, isolation_level="AUTOCOMMIT")
    with by_itself.connect() as connection, pytest.raises(NotInTransaction):
        store.take(connection, batch(1, 1))
    by_itself.dispose()
    with contextlib.closing(sqlite3.connect(tmp_path / "a.db", isolation_level=None)) as lite:
        there = TransactionOffsetStore(lambda: sqlite3.connect(tmp_path / "a.db"), "billing")
        there.load("orders", A)
        with pytest.raises(NotInTransaction):
            there.take(lite, batch(0, 1))
        lite.execute("BEGIN")
        assert len(there.take(lite, batch(0, 1))) == 1
        lite.execute("COMMIT")
    assert (store.load("orders", A), there.load("orders", A)) == (25, 25)


def test_any_row_factory_and_any_connection_of_its_own_kind(database: Database) -> None:
    class Own(psycopg.Connection[dict[str, Any]]):
        pass

    store = TransactionOffsetStore(lambda: Own.connect(database.dsn, row_factory=dict_row), "billing")
    assert store.load("orders", A) is None
    with Own.connect(database.dsn, row_factory=dict_row) as connection:
        store.take(connection, batch(0, 2))
        assert store.take(connection, batch(0, 3))[0].payload == b"2"
    assert store.load("orders", A) == 75


def test_what_is_no_connection_is_refused(database: Database) -> None:
    store = TransactionOffsetStore(database.connect, "billing")
    for wrong in (None, "shop.db", object(), Session):
        with pytest.raises(NoDatabase, match="is no PEP 249 connection, and no connection or session of SQLAlchemy"):
            store.take(wrong, batch(0, 1))


@pytest.mark.parametrize("driver", ["psycopg2", "pg8000", "pymysql"])
def test_the_drivers_of_other_styles_of_parameters(driver: str, request: pytest.FixtureRequest) -> None:
    def connect() -> Any:
        if driver == "pymysql":
            return request.getfixturevalue("mariadb").connect()
        module: Any = psycopg2 if driver == "psycopg2" else pg8000.dbapi
        return connect_plain(module, request.getfixturevalue("database").dsn)

    store = TransactionOffsetStore(connect, "billing")
    assert store.load("orders", A) is None
    assert store.load("Orders", A) is None
    with contextlib.closing(connect()) as connection:
        assert len(store.take(connection, batch(0, 2))) == 2
        connection.rollback()
        assert len(store.take(connection, batch(0, 3))) == 3
        connection.commit()
        assert [message.payload for message in store.take(connection, batch(1, 3))] == [b"3"]
        connection.commit()
    assert (store.load("orders", A), store.load("Orders", A)) == (4 * FRAME, None)
