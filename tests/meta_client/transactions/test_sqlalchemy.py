"""A row and a message through SQLAlchemy's sessions and connections: both or neither, in SQLAlchemy's own ways."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy import event, text
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker
from sqlalchemy.pool import NullPool, QueuePool

from meta_client import TransactionMisuse
from meta_client.coordinator import PrepareFailed
from meta_client.coordinator.errors import CannotEnlist
from meta_client.transactions import CommitStep
from tests.fixtures.broker_pool import BrokerPool
from tests.meta_client.transactions.conftest import World, make, running_world
from tests.meta_client.transactions.crashing import engine_of


class Base(DeclarativeBase):
    pass


class Number(Base):
    __tablename__ = "numbers"
    n: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


@pytest.fixture(params=["postgres", "sqlite", "mariadb"])
def either(request: pytest.FixtureRequest, broker_pool: BrokerPool) -> Iterator[World]:
    with running_world(make(request.param, request), broker_pool) as world:
        yield world


@pytest.fixture
def make_engine(request: pytest.FixtureRequest) -> Iterator[Callable[..., sqlalchemy.Engine]]:
    with contextlib.ExitStack() as stack:

        def make(world: World, **options: Any) -> sqlalchemy.Engine:
            engine = engine_of(world.deciding.url, **options)
            stack.callback(engine.dispose)
            return engine

        yield make


Engines = Callable[..., sqlalchemy.Engine]


@contextlib.contextmanager
def opened(kind: str, engine: sqlalchemy.Engine) -> Iterator[Any]:
    """Yield the object a caller uses for *kind*."""
    if kind == "connection":
        with engine.connect() as connection:
            yield connection
    elif kind == "scoped":
        registry = scoped_session(sessionmaker(engine))
        yield registry
        registry.remove()
    else:
        with Session(engine) as session:
            yield session


def is_begun(given: Any) -> bool:
    return bool((given() if isinstance(given, scoped_session) else given).in_transaction())


@pytest.mark.parametrize("pool", [NullPool, QueuePool])
@pytest.mark.parametrize("kind", ["session", "scoped", "connection"])
def test_whatever_has_begun_or_not(either: World, make_engine: Engines, kind: str, pool: type[sqlalchemy.Pool]) -> None:
    engine = make_engine(either, poolclass=pool)
    with opened(kind, engine) as given:
        for number in (1, 2, 3):
            if number > 1:
                assert given.execute(text("SELECT count(*) FROM numbers")).scalar() is not None
            with either.client.transaction(given) as transaction:
                given.execute(text(f"INSERT INTO numbers VALUES ({number})"))
                transaction.send("orders", str(number).encode())
            assert not is_begun(given)
        with pytest.raises(ZeroDivisionError), either.client.transaction(given) as transaction:  # noqa: PT012
            given.execute(text("INSERT INTO numbers VALUES (9)"))
            transaction.send("orders", b"9")
            raise ZeroDivisionError
        assert not is_begun(given)
    either.wait_quiet()
    either.check([1, 2, 3])


def test_what_a_commit_of_the_session_does(either: World, make_engine: Engines) -> None:
    """Flush, events and expiry; a statement that fails in the flush rolls everything back."""
    heard: list[str] = []
    with Session(make_engine(either)) as session:
        for name in ("before_commit", "after_flush", "after_commit"):
            event.listen(session, name, lambda *_, name=name: heard.append(name))
        one = Number(n=1)
        with either.client.transaction(session, wait=True) as transaction:
            session.add(one)
            transaction.send("orders", b"1")
        assert heard == ["after_flush", "before_commit", "after_commit"]
        assert sqlalchemy.inspect(one).expired
        assert one.n == 1
        session.commit()
        with pytest.raises(IntegrityError), either.client.transaction(session) as transaction:  # noqa: PT012
            session.execute(sqlalchemy.insert(Number).values(n=2))
            session.add(Number(n=2))
            transaction.send("orders", b"2").result()
        with either.client.transaction(session) as transaction:
            session.add(Number(n=3))
            with pytest.raises(IntegrityError), session.begin_nested():
                session.execute(sqlalchemy.insert(Number).values(n=1))
            transaction.send("orders", b"3")
    either.wait_quiet()
    either.check([1, 3])


def test_a_row_that_is_added_in_before_commit(world: World, make_engine: Engines) -> None:
    """Later than the decision's row, and in the same transaction."""
    with Session(make_engine(world)) as session:
        event.listen(session, "before_commit", lambda session: session.add(Number(n=1)), once=True)
        with world.client.transaction(session) as transaction:
            transaction.send("orders", b"1")
        event.listen(session, "before_commit", lambda session: session.add(Number(n=1)), once=True)
        with pytest.raises(IntegrityError), world.client.transaction(session) as transaction:
            transaction.send("orders", b"1")
        with world.client.transaction(session) as transaction:
            session.add(Number(n=2))
            transaction.send("orders", b"2")
    world.wait_quiet()
    world.check([1, 2])


def test_a_listener_that_raises_around_commit(either: World, make_engine: Engines) -> None:
    """The error is raised; committed rows stay, and their messages with them."""

    def die(*_: object) -> None:
        raise ZeroDivisionError

    engine = make_engine(either)
    for number, name in ((1, "before_commit"), (2, "after_commit")):
        with Session(engine) as session:
            event.listen(session, name, die)
            with pytest.raises(ZeroDivisionError), either.client.transaction(session) as transaction:  # noqa: PT012
                session.add(Number(n=number))
                transaction.send("orders", str(number).encode())
            assert transaction.step is (CommitStep.COMMIT_SENT if number == 2 else CommitStep.ROLLED_BACK)
    with engine.connect() as connection:
        event.listen(connection, "commit", die)
        with pytest.raises(ZeroDivisionError), either.client.transaction(connection) as transaction:  # noqa: PT012
            connection.execute(text("INSERT INTO numbers VALUES (3)"))
            transaction.send("orders", b"3")
    either.wait_quiet()
    either.check([2])


def test_a_commit_that_the_database_refuses(world: World, make_engine: Engines) -> None:
    world.deciding.execute("CREATE TABLE once (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    for kind in ("session", "connection"):
        with opened(kind, make_engine(world)) as given:
            with pytest.raises(IntegrityError), world.client.transaction(given) as transaction:  # noqa: PT012
                given.execute(text("INSERT INTO once VALUES (1), (1)"))
                transaction.send("orders", b"1")
            assert transaction.step is CommitStep.ROLLED_BACK
            assert given.execute(text("SELECT 1")).scalar() == 1
    world.wait_quiet()
    world.check([])


def test_a_serialization_failure_is_sqlalchemy_s(world: World, make_engine: Engines) -> None:
    """The decision's row raises OperationalError too, so that a retry on it covers this case."""
    engine = make_engine(world, isolation_level="SERIALIZABLE")
    world.deciding.execute("INSERT INTO numbers VALUES (1)")
    with Session(engine) as one, Session(engine) as other:
        for session in (one, other):
            assert session.scalar(text("SELECT sum(n) FROM numbers")) == 1
        other.execute(text("INSERT INTO numbers VALUES (2)"))
        one.execute(text("INSERT INTO numbers VALUES (3)"))
        other.commit()
        with pytest.raises(OperationalError) as raised, world.client.transaction(one) as transaction:
            transaction.send("orders", b"3")
        assert isinstance(raised.value.orig, psycopg.errors.SerializationFailure)
    world.wait_quiet()
    assert (world.deciding.numbers(), world.messages()) == ([1, 2], [])


def test_inside_a_block_of_sqlalchemy_s_own(either: World, make_engine: Engines) -> None:
    engine = make_engine(either)
    with (
        Session(engine) as session,
        session.begin(),
        either.client.transaction(session) as transaction,
    ):
        session.add(Number(n=1))
        transaction.send("orders", b"1")
    with engine.begin() as connection, either.client.transaction(connection) as transaction:
        connection.execute(text("INSERT INTO numbers VALUES (2)"))
        transaction.send("orders", b"2")
    either.wait_quiet()
    either.check([1, 2])


@pytest.mark.parametrize("word", ["commit", "rollback"])
def test_a_transaction_that_is_ended_inside_the_block(world: World, make_engine: Engines, word: str) -> None:
    engine = make_engine(world)
    for kind in ("session", "connection"):
        with (  # noqa: PT012 - the block is what is tested
            opened(kind, engine) as given,
            pytest.raises(PrepareFailed, match="ended inside the block"),
            world.client.transaction(given) as transaction,
        ):
            transaction.send("orders", b"1").result()
            getattr(given, word)()
            given.execute(text("INSERT INTO numbers VALUES (1)"))
    with (  # noqa: PT012 - the block is what is tested
        Session(engine) as session,
        pytest.raises(PrepareFailed, match="ended inside the block"),
        world.client.transaction(session) as transaction,
    ):
        transaction.send("orders", b"1")
        session.execute(text(word))
    world.wait_quiet()
    world.check([])


def test_what_can_t_take_part(world: World, make_engine: Engines, tmp_path: Path) -> None:
    engine, other = make_engine(world), engine_of(str(tmp_path / "other.db"))

    def refused(given: Any, match: str, kind: type[Exception] = CannotEnlist) -> None:
        was_begun = given.in_transaction()
        with pytest.raises(kind, match=match), world.client.transaction(given):
            pytest.fail("the block must not be entered")
        assert given.in_transaction() == was_begun

    refused(Session(engine, twophase=True), "meta_client.coordinator")
    refused(Session(engine, binds={Number: other}), "several engines")
    refused(Session(), "bound to no engine")
    refused(Session(make_engine(world, isolation_level="AUTOCOMMIT")), "autocommit mode")
    refused(Session(other), "metaq txn init")
    with engine.connect() as connection:
        refused(Session(connection), "bound to a connection")
        with connection.begin_twophase():
            refused(connection, "begin_twophase")
        with connection.begin(), connection.begin_nested():
            refused(connection, "inside a savepoint", TransactionMisuse)
    with Session(engine) as session, session.begin_nested():
        refused(session, "inside a savepoint", TransactionMisuse)
    other.dispose()


def test_a_second_engine_inside_the_block(world: World, make_engine: Engines) -> None:
    class Routing(Session):
        target = engine = make_engine(world)

        def get_bind(self, *args: Any, **named: Any) -> sqlalchemy.Engine:
            return self.target

    with (  # noqa: PT012 - the block is what is tested
        Routing() as session,
        pytest.raises(PrepareFailed, match="several engines"),
        world.client.transaction(session) as transaction,
    ):
        session.add(Number(n=1))
        session.flush()
        Routing.target = make_engine(world)
        session.execute(text("INSERT INTO numbers VALUES (2)"))
        transaction.send("orders", b"1")
    world.wait_quiet()
    world.check([])


def test_a_block_inside_a_block(world: World, make_engine: Engines) -> None:
    with Session(make_engine(world)) as session, world.client.transaction(session) as transaction:
        for same in (session, session.connection()):
            with pytest.raises(TransactionMisuse, match="end that block first"), world.client.transaction(same):
                pytest.fail("the block must not be entered")
        session.add(Number(n=1))
        transaction.send("orders", b"1")
    world.wait_quiet()
    world.check([1])


def test_threads_with_a_scoped_session_and_a_small_pool(world: World, make_engine: Engines) -> None:
    """The resolver's connection is none of the pool's, which are all in use."""
    registry = scoped_session(sessionmaker(make_engine(world, pool_size=2, max_overflow=0)))

    def work(thread: int) -> None:
        for number in range(10):
            with world.client.transaction(registry) as transaction:
                registry.add(Number(n=thread * 100 + number))
                transaction.send("orders", str(thread * 100 + number).encode())
        registry.remove()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    world.wait_quiet()
    world.check(sorted(thread * 100 + number for thread in range(4) for number in range(10)))
    (counts,) = world.client.transaction_counts().values()
    assert (counts.rows_deleted, counts.hazards, counts.errors) == (40, 0, 0)


@pytest.mark.parametrize("kind", ["session", "connection"])
def test_the_connection_is_lost_before_commit(world: World, make_engine: Engines, kind: str) -> None:
    engine = make_engine(world)

    def cut(step: CommitStep, gtrid: str) -> None:
        if step is CommitStep.RECORDED and not cuts:
            cuts.append(gtrid)
            world.deciding.query(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle in transaction'"
            )

    cuts: list[str] = []
    with world.open_client(observer=cut) as client, opened(kind, engine) as given:
        with (  # noqa: PT012 - the block is what is tested
            pytest.raises(PrepareFailed, match="turned out to be rolled back"),
            client.transaction(given) as transaction,
        ):
            given.execute(text("INSERT INTO numbers VALUES (1)"))
            transaction.send("orders", b"1")
        with client.transaction(given) as transaction:
            given.execute(text("INSERT INTO numbers VALUES (2)"))
            transaction.send("orders", b"2")
        world.wait_quiet()
    world.check([2])
