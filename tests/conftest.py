"""Fixtures every package's tests share: one real ZooKeeper a worker, and a corner of it for each test."""

import itertools
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from zk.corner import Corner, corner
from zk.embedded import EmbeddedZooKeeper

pytest_plugins = ["tests.fixtures.broker", "tests.fixtures.postgres", "tests.fixtures.real_orders"]

# What else a machine does must not fail a test: no example has a time limit, nor has making one.
settings.register_profile("metaq", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("metaq")

# The tests start programs by the hundred: where the environment forbids bytecode, each would compile every module anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell ignores SIGINT for what it runs in the background, and so would every program that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_corner_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    """One ZooKeeper for all the tests of one worker. A test that kills a server starts its own."""
    with EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture
def zookeeper(zookeeper_server: EmbeddedZooKeeper) -> Iterator[Corner]:
    """An empty part of the run's ZooKeeper for one test; `.connect` is its connect string."""
    with corner(zookeeper_server.connect, f"test-{next(_corner_numbers)}") as part:
        yield part
