"""A row and a message through Zope's transactions, beside zope.sqlalchemy, whose vote decides."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy
import transaction
import zope.sqlalchemy
from sqlalchemy import text
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from journal.records.xid import Xid
from meta_client import Client, NoBroker, NoPartition, TransactionMisuse
from meta_client.coordinator import PrepareFailed
from meta_client.transactions import CommitStep
from meta_client.transactions.frameworks.zope import send_on_commit
from tests.fixtures.broker_pool import BrokerPool
from tests.fixtures.interrupts import interrupted
from tests.fixtures.replicas import wait_until
from tests.meta_client.transactions.conftest import World, make, running_world
from tests.meta_client.transactions.crashing import engine_of
from tests.meta_client.transactions.test_crashes import QUICK, Cut
from tests.meta_client.transactions.test_sqlalchemy import Number


class Site:
    """A registered session of a database, and the world around it."""

    def __init__(self, world: World, sessions: scoped_session[Session]) -> None:
        self.world, self.sessions = world, sessions

    def send(self, number: int, client: Client | None = None) -> None:
        send_on_commit(client or self.world.client, self.sessions, "orders", str(number).encode())

    def write(self, number: int, client: Client | None = None) -> None:
        self.sessions.add(Number(n=number))
        self.send(number, client)


@contextlib.contextmanager
def opened(world: World, engine: sqlalchemy.Engine, **how: Any) -> Iterator[Site]:
    sessions = scoped_session(sessionmaker(engine))
    zope.sqlalchemy.register(sessions, **how)
    try:
        yield Site(world, sessions)
    finally:
        transaction.abort()
        sessions.remove()
        engine.dispose()


@pytest.fixture(params=["postgres", "sqlite", "mariadb"])
def site(request: pytest.FixtureRequest, broker_pool: BrokerPool) -> Iterator[Site]:
    with (
        running_world(make(request.param, request), broker_pool) as world,
        opened(world, engine_of(world.deciding.url)) as site,
    ):
        yield site


@pytest.fixture
def large_site(world: World) -> Iterator[Site]:
    with opened(world, engine_of(world.deciding.url)) as site:
        yield site


def test_the_transaction_decides(site: Site) -> None:
    for number in (1, 2):
        site.write(number)
        transaction.commit()
        site.write(9)
        transaction.abort()
        with pytest.raises(ZeroDivisionError), transaction.manager:  # noqa: PT012
            site.write(9)
            raise ZeroDivisionError
    with transaction.manager:
        site.sessions.execute(text("INSERT INTO numbers VALUES (3)"))  # of which zope.sqlalchemy takes no notice
        site.send(3)
    with transaction.manager:
        site.sessions.add(Number(n=4))
    site.world.wait_quiet()
    assert site.world.deciding.numbers() == [1, 2, 3, 4]
    assert site.world.messages() == [1, 2, 3]


def test_an_exception_of_a_signal_s_handler_at_every_call(lite_world: World) -> None:
    with opened(lite_world, engine_of(lite_world.deciding.url)) as site:
        for number in itertools.count():
            site.write(number)
            if not interrupted(number, transaction.commit, InterruptedError, "frameworks/zope.py"):
                break
            transaction.abort()
    assert number > 5
    wait_until(lambda: not lite_world.prepared(), "nothing is prepared")
    lite_world.check(lite_world.deciding.numbers())


def test_a_savepoint_takes_messages_along(large_site: Site) -> None:
    site = large_site
    with transaction.manager:
        site.write(1)
        savepoint = transaction.savepoint()
        site.write(2)
        savepoint.rollback()
        site.write(3)
    site.world.wait_quiet()
    site.world.check([1, 3])


def test_a_session_that_is_kept_and_has_a_manager_of_its_own(world: World) -> None:
    manager = transaction.TransactionManager(explicit=True)
    how = {"transaction_manager": manager, "keep_session": True}
    with opened(world, engine_of(world.deciding.url), **how) as site:
        manager.begin()
        one = Number(n=1)
        site.sessions.add(one)
        send_on_commit(world.client, site.sessions(), "orders", b"1", transaction_manager=manager)
        manager.commit()
        manager.begin()
        assert one in site.sessions
        manager.abort()
    world.wait_quiet()
    world.check([1])


class Refusing:
    """A data manager that votes no, before or behind the database."""

    def __init__(self, key: str) -> None:
        self.key, self.transaction_manager = key, transaction.manager

    def sortKey(self) -> str:  # noqa: N802
        return self.key

    def tpc_vote(self, _: object) -> None:
        raise ZeroDivisionError

    def _nothing(self, _: object) -> None: ...

    tpc_begin = commit = tpc_finish = tpc_abort = abort = _nothing


@pytest.mark.parametrize(("key", "commits"), [("a", False), ("~n", False), ("~t", True)])
def test_another_manager_refuses(large_site: Site, key: str, commits: bool) -> None:
    """A vote after the database's comes too late: then rows are stored, and messages sent."""
    site = large_site
    site.write(1)
    transaction.get().join(Refusing(key))
    with pytest.raises(ZeroDivisionError):
        transaction.commit()
    transaction.abort()
    site.write(2)
    transaction.commit()
    site.world.wait_quiet()
    site.world.check([1, 2] if commits else [2])


def test_what_the_database_refuses(large_site: Site) -> None:
    site = large_site
    site.world.deciding.execute("CREATE TABLE once (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)")
    site.sessions.execute(text("INSERT INTO once VALUES (1), (1)"))
    site.send(1)
    with pytest.raises(sqlalchemy.exc.IntegrityError):
        transaction.commit()
    transaction.abort()
    site.write(2)
    transaction.commit()
    site.world.wait_quiet()
    site.world.check([2])


def test_what_can_t_be_prepared(site: Site) -> None:
    def die(step: CommitStep, gtrid: str) -> None:
        if step is CommitStep.RECORDED:
            raise ZeroDivisionError

    def refused(kind: type[Exception], work: Callable[[], None]) -> None:
        with pytest.raises(kind), transaction.manager:
            work()

    with site.world.open_client(observer=die) as client:
        refused(ZeroDivisionError, lambda: site.write(1, client))
        refused(TransactionMisuse, lambda: (site.write(1), site.send(1, client))[0])  # type: ignore[func-returns-value]
    refused(NoPartition, lambda: send_on_commit(site.world.client, site.sessions, "nowhere", b"1"))
    refused(TypeError, lambda: send_on_commit(site.world.client, site.sessions, "orders", "1"))  # type: ignore[arg-type]
    site.world.brokers[0].kill()
    refused(NoBroker, lambda: site.write(1))
    site.world.brokers[0].start()
    site.world.wait_quiet()
    site.world.check([])


def test_it_is_done_again_where_that_helps(site: Site) -> None:
    """Like Pyramid's retries, by what the managers say of an error."""
    failures = [PrepareFailed]

    def fail_once(step: CommitStep, gtrid: str) -> None:
        if step is CommitStep.PREPARED and failures:
            raise failures.pop()(Xid(1, gtrid.encode(), b""), "a test", "once")

    with site.world.open_client(observer=fail_once) as client:
        transaction.manager.run(lambda: site.write(1, client), tries=2)
    site.world.wait_quiet()
    site.world.check([1])


@pytest.mark.parametrize("loses_answer", [True, False])
def test_the_connection_is_lost_inside_commit(world: World, loses_answer: bool) -> None:
    where: Any = psycopg.conninfo.conninfo_to_dict(world.deciding.url)
    with contextlib.closing(Cut(int(where["port"]), loses_answer=loses_answer)) as cut:
        where["port"] = cut.port
        engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(**where))
        with world.open_client(**QUICK) as client, opened(world, engine) as site:
            site.write(1, client)
            with pytest.raises(sqlalchemy.exc.OperationalError):  # which says nothing of the outcome, as ever
                transaction.commit()
            transaction.abort()
            world.wait_quiet()
    world.check([1] if loses_answer else [])
