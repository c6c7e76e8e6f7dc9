"""A database with an outbox, beside a broker: a row in `numbers` and a message for each number, or neither."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from meta_client.outbox import Outbox, Relay, contents, tables
from meta_client.outbox.contents import OutboxStatus
from meta_client.outbox.engines import engine_at
from meta_client.outbox.relay import ROWS_MAX
from tests.fixtures.broker_pool import BrokerPool
from tests.meta_client.transactions.conftest import World, do, make, running_world

TABLES = "metaq_outbox", "metaq_outbox_deferred", "metaq_outbox_aside", "metaq_outbox_relay"
LOCK_WAITS = {
    "postgres": "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()",
    "mariadb": """SELECT count(*) FROM information_schema.processlist WHERE info LIKE '%metaq_outbox_relay FOR UPDATE'
        OR info LIKE 'INSERT INTO metaq_outbox%' OR info LIKE 'DELETE FROM metaq_outbox%'""",
}


class OutboxWorld:
    """A world, and what a service, a relay and an operator do there."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.outbox = Outbox()
        self.engine = engine_at(world.deciding.url)
        self.closing = ExitStack()
        self.closing.callback(self.engine.dispose)
        with self.engine.connect() as connection:
            tables.create(connection)

    @property
    def url(self) -> str:
        return self.world.deciding.url

    def work(self, *numbers: int, topic: str = "orders", commits: bool = True) -> None:
        """One transaction of a service."""
        connection = self.world.deciding.connect()
        try:
            for number in numbers:
                do(connection, f"INSERT INTO numbers VALUES ({number})")
                self.outbox.send(connection, topic, b"%d" % number, attribute=str(number % 7))
            if commits:
                connection.commit()
        finally:
            connection.close()

    def relay(self, *, rows_max: int = ROWS_MAX) -> Relay:
        relay = Relay(self.world.client, self.url, rows_max=rows_max)
        self.closing.callback(relay.close)
        return relay

    def status(self) -> OutboxStatus:
        with self.engine.connect() as connection:
            return contents.status(connection)


def drain(relay: Relay) -> None:
    while relay.run_pass():
        pass


@pytest.fixture(params=["postgres", "sqlite", "mariadb"])
def outboxed(request: pytest.FixtureRequest, broker_pool: BrokerPool) -> Iterator[OutboxWorld]:
    with running_world(make(request.param, request), broker_pool) as world:
        one = OutboxWorld(world)
        with one.closing:
            yield one


@pytest.fixture
def on_postgres(request: pytest.FixtureRequest, broker_pool: BrokerPool) -> Iterator[OutboxWorld]:
    with running_world(make("postgres", request), broker_pool) as world:
        one = OutboxWorld(world)
        with one.closing:
            yield one


@pytest.fixture
def wide(request: pytest.FixtureRequest, broker_pool: BrokerPool) -> Iterator[OutboxWorld]:
    """Beside two brokers: topic `bills` is at the second alone."""
    with running_world(make("postgres", request), broker_pool, brokers=2) as world:
        one = OutboxWorld(world)
        with one.closing:
            yield one
