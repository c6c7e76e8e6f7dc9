"""A real PostgreSQL with its decision table, and real brokers, for tasks."""

from collections.abc import Iterator

import pytest

from tests.fixtures.broker_pool import BrokerPool
from tests.fixtures.postgres import Database
from tests.meta_client.transactions.conftest import World, make_postgres, running_world


@pytest.fixture
def world(broker_pool: BrokerPool, database: Database) -> Iterator[World]:
    """PostgreSQL and two brokers."""
    with running_world(make_postgres(database), broker_pool, brokers=2) as world:
        yield world
