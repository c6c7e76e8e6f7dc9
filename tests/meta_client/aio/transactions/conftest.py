"""A real PostgreSQL with its decision table, and real brokers, for tasks."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.postgres import Database
from tests.meta_client.transactions.conftest import World, make_postgres, running_world
from zk.embedded.chroot import Chroot


@pytest.fixture
def world(tmp_path: Path, zookeeper: Chroot, database: Database) -> Iterator[World]:
    """PostgreSQL and two brokers."""
    with running_world(make_postgres(database), tmp_path, zookeeper, brokers=2) as world:
        yield world
