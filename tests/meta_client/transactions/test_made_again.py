"""Both decision tables are dropped and made again under a service that runs: its connections and its resolver know the
old ones."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from functools import partial
from typing import Any

import pg8000.dbapi
import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from sqlalchemy import text
from sqlalchemy.orm import Session

from meta_client import aio
from meta_client.coordinator import PrepareFailed
from meta_client.coordinator.errors import Unreachable
from meta_client.producer.xa_verbs import Listing, XaVerbs
from meta_client.transactions.brokers import BranchPlace, Brokers
from meta_client.transactions.databases import Change, init
from meta_client.transactions.errors import CopiedTable
from meta_client.transactions.generation import Generations
from meta_client.transactions.names import TableName
from meta_client.transactions.resolver import Resolver
from meta_client.transactions.table import KEEP_S, TableIdentity
from tests.fixtures.broker_pool import BrokerPool
from tests.fixtures.forked import start_module
from tests.fixtures.postgres import connect_plain
from tests.meta_client.aio.transactions.ways import opened
from tests.meta_client.transactions.conftest import Deciding, World, do, make, running_world
from tests.meta_client.transactions.crashing import connect
from tests.meta_client.transactions.test_crashes import CRASHING, DRIVERS
from tests.meta_client.transactions.test_restored import resolver as run_resolver

AGAIN = {
    "dropped": ("DROP TABLE metaq_decision", "DROP TABLE metaq_decision_table"),
    "emptied": ("DELETE FROM metaq_decision", "DELETE FROM metaq_decision_table"),
}


def make_again(deciding: Deciding, how: str) -> TableIdentity:
    for statement in AGAIN[how]:
        deciding.execute(statement)
    deciding.identity = init(deciding.url, KEEP_S)
    return deciding.identity


PLAIN = ["psycopg", "psycopg2", "pg8000.dbapi", "sqlite3", "pymysql", "psycopg+sqlalchemy", "pymysql+sqlalchemy"]


@pytest.fixture(params=AGAIN)
def how(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Service:
    """A service with one connection, which it keeps."""

    def __init__(self, driver: str, world: World) -> None:
        place = world.deciding.url.removeprefix("sqlite:///")
        self.world = world
        is_pg8000 = driver == "pg8000.dbapi"
        another = partial(connect_plain, pg8000.dbapi, place) if is_pg8000 else partial(connect, driver, place)
        self.connection = another()
        self._how: dict[str, Any] = {"connect": another} if is_pg8000 else {}

    def close(self) -> None:
        self.connection.close()
        if isinstance(self.connection, Session):
            self.connection.get_bind().engine.dispose()  # its pool has the connection

    def execute(self, statement: str) -> None:
        if isinstance(self.connection, Session):
            self.connection.execute(text(statement))
        else:
            do(self.connection, statement)

    def work(self, number: int, during: Callable[[], object] = lambda: None) -> None:
        with self.world.client.transaction(self.connection, **self._how) as transaction:
            during()
            self.execute(f"INSERT INTO numbers VALUES ({number})")
            transaction.send("orders", b"%d" % number)


@pytest.mark.parametrize("driver", PLAIN)
def test_a_block_on_a_connection_from_before(
    request: pytest.FixtureRequest, broker_pool: BrokerPool, driver: str, how: str
) -> None:
    """A row in the new table, of a transaction that names the old one, would be no resolver's after a crash."""
    deciding = make(DRIVERS.get(driver.partition("+")[0], "postgres"), request)
    with running_world(deciding, broker_pool) as world:
        service, again = Service(driver, world), partial(make_again, deciding, how)
        with closing(service):
            service.work(1)
            again()
            if driver == "sqlite3":  # which looks at each block
                service.work(2)
            else:
                with pytest.raises(PrepareFailed, match="decision tables were made again"):
                    service.work(2)
            service.work(3)
            with pytest.raises(PrepareFailed, match="decision tables were made again"):
                service.work(4, again)
            service.work(5)
        world.wait_quiet()
        world.check([1, 2, 3, 5] if driver == "sqlite3" else [1, 3, 5])


@pytest.mark.parametrize("way", ["psycopg", "asyncpg", "asyncpg session"])
def test_a_block_of_a_task(world: World, way: str, how: str) -> None:
    async def main() -> None:
        async with opened(way, world.deciding.url) as one, aio.Client(world.zookeeper) as client:

            async def work(number: int) -> None:
                async with client.transaction(one.connection) as transaction:
                    await one.execute(f"INSERT INTO numbers VALUES ({number})")
                    await transaction.send("orders", b"%d" % number)

            await work(1)
            make_again(world.deciding, how)
            with pytest.raises(PrepareFailed, match="decision tables were made again"):
                await work(2)
            await work(3)

    asyncio.run(main())
    world.wait_quiet()
    world.check([1, 3])


def test_a_snapshot_from_before_in_mariadb(maria_world: World) -> None:
    service = Service("pymysql", maria_world)

    def read_and_make_again() -> None:
        do(service.connection, "SELECT n FROM numbers")
        make_again(maria_world.deciding, "dropped")

    with closing(service):
        service.work(1)
        with pytest.raises(PrepareFailed, match="decision tables were made again"):
            service.work(2, read_and_make_again)
        service.work(3)
    maria_world.wait_quiet()
    maria_world.check([1, 3])


def test_a_table_that_has_moved_to_another_schema(world: World) -> None:
    """Connections that know its place find it again, once the operator says that it has moved."""
    world.deciding.execute("CREATE SCHEMA other")
    with closing(psycopg.connect(world.deciding.url, options="-csearch_path=public,other")) as connection:
        world.work(1, connection=connection)
        for table in ("metaq_decision", "metaq_decision_table"):
            world.deciding.execute(f"ALTER TABLE {table} SET SCHEMA other")
        with pytest.raises(PrepareFailed, match="does not exist"):
            world.work(2, connection=connection)
        with pytest.raises(CopiedTable, match=r"/public; this is .*/other"):
            world.work(2, connection=connection)
        init(make_conninfo(world.deciding.url, options="-csearch_path=other"), KEEP_S, Change.MOVED)
        world.work(3, connection=connection)
    world.check([1, 3])


class AskedForLong(Brokers):
    """Brokers that are listed, or tell of branches, while an operator works on the database."""

    def __init__(
        self, world: World, name: TableName, work: Callable[[], object], meanwhile: Callable[[], object] = lambda: None
    ) -> None:
        super().__init__(XaVerbs(world.client.topology, world.client.connections, "test"), name)
        self._work = work
        self._meanwhile = meanwhile

    def listed(self) -> Listing:
        self._work()
        return super().listed()

    def restored(self, places: Collection[BranchPlace]) -> Mapping[BranchPlace, bool | Unreachable]:
        self._meanwhile()
        return super().restored(places)


@pytest.mark.parametrize("when", ["before", "meanwhile"])
@pytest.mark.parametrize("notes", [True, False])
def test_a_resolver_from_before_rolls_nothing_back(
    deciding: Deciding, broker_pool: BrokerPool, how: str, when: str, notes: bool
) -> None:
    """A service has died, decided. Nor is the new table's generation below the old one's."""
    before = deciding.identity
    works = list[Callable[[], None]]()
    with running_world(deciding, broker_pool) as world:
        generations = Generations(world.client.session, before.name) if notes else None
        brokers = AskedForLong(world, before.name, lambda: works and works.pop()())
        resolver = Resolver(brokers, before.name, deciding.table, 0.0, generations=generations)
        resolver.run_pass()
        driver = next(driver for driver, kind in DRIVERS.items() if kind == deciding.kind)
        place = deciding.url.removeprefix("sqlite:///")
        assert start_module(CRASHING, driver, place, world.zookeeper, "7", "DECIDED").wait() == -9

        def make_another() -> None:
            identity = make_again(deciding, how)
            deciding.execute("UPDATE metaq_decision_table SET generation = 9")
            assert identity != before

        if when == "before":
            make_another()
        else:
            works.append(make_another)
        resolver.run_pass()
        deciding.identity = before
        assert (len(world.prepared()), resolver.counts.resolved_rolled_back) == (1, 0)
        assert "it has another decision table now" in str(resolver.unreachable)
        resolver.close()


def test_a_table_that_is_made_again_while_brokers_tell_of_branches(deciding: Deciding, broker_pool: BrokerPool) -> None:
    """A broker that hangs takes seconds. What was decided meanwhile is not in the new table."""
    name = deciding.identity.name
    with running_world(deciding, broker_pool) as world:
        brokers = AskedForLong(world, name, lambda: None, partial(make_again, deciding, "dropped"))
        resolver = Resolver(brokers, name, deciding.table, 0.0)
        driver = next(driver for driver, kind in DRIVERS.items() if kind == deciding.kind)
        place = deciding.url.removeprefix("sqlite:///")
        assert start_module(CRASHING, driver, place, world.zookeeper, "7", "PREPARED").wait() == -9
        resolver.run_pass()
        assert (resolver.counts.resolved_rolled_back, deciding.rows()) == (0, {})
        assert "it has another decision table now" in str(resolver.unreachable)
        resolver.close()


def test_a_table_without_its_identity_proves_nothing(deciding: Deciding) -> None:
    with closing(deciding.table()) as table:
        deciding.execute("DELETE FROM metaq_decision_table")
        with pytest.raises(Unreachable, match=f"put its row back, of table_id {deciding.identity.name.table_id}, or"):
            table.generation()


def test_a_server_that_has_become_a_replica(maria_world: World) -> None:
    """A switch-over keeps connections, and `read_only` lets a user with all rights write: it may lack rows of the new
    primary."""
    world, name = maria_world, maria_world.deciding.identity.name
    generations = Generations(world.client.session, name)
    brokers = Brokers(XaVerbs(world.client.topology, world.client.connections, "test"), name)
    resolver = Resolver(brokers, name, world.deciding.table, 0.0, generations=generations)
    resolver.run_pass()
    assert start_module(CRASHING, "pymysql", world.deciding.url, world.zookeeper, "7", "PREPARED").wait() == -9
    world.deciding.execute("SET GLOBAL read_only = 1")
    try:
        for reason in ("read-only", "connect to the primary"):
            resolver.run_pass()
            assert (len(world.prepared()), world.deciding.rows()) == (1, {})
            assert reason in str(resolver.unreachable)
    finally:
        world.deciding.execute("SET GLOBAL read_only = 0")
    resolver.run_pass()
    assert world.prepared() == []
    resolver.close()


def test_a_row_of_a_table_that_lost_its_identity_is_carried_out(deciding: Deciding, broker_pool: BrokerPool) -> None:
    """Its row says that it is decided, and where, whatever the table is called by now."""
    with running_world(deciding, broker_pool) as world:
        driver = next(driver for driver, kind in DRIVERS.items() if kind == deciding.kind)
        place = deciding.url.removeprefix("sqlite:///")
        assert start_module(CRASHING, driver, place, world.zookeeper, "7", "DECIDED").wait() == -9
        assert len(world.prepared()) == 1
        deciding.execute("DELETE FROM metaq_decision_table")
        assert init(deciding.url, KEEP_S) != deciding.identity
        done = run_resolver(deciding.url, world.zookeeper)
        assert (done.returncode, world.prepared()) == (0, []), done.stderr
        world.check([7])
