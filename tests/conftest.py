"""Fixtures every package's tests share: one real ZooKeeper a worker, and a chroot of it for each test."""

import gc
import itertools
import os
import signal
from collections.abc import Iterator
from typing import Final

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.fixtures.class_archive import archive_options
from tests.fixtures.long_tests import SHARE, Stopwatch, draw, read_table, sort_longest_first
from tests.fixtures.thoroughness import examples
from zk.embedded.chroot import Chroot, chroot
from zk.embedded.server import EmbeddedZooKeeper

pytest_plugins = [
    "tests.fixtures.broker",
    "tests.fixtures.broker_pool",
    "tests.fixtures.cloud_stores",
    "tests.fixtures.cores",
    "tests.fixtures.hdfs_server",
    "tests.fixtures.mariadb",
    "tests.fixtures.postgres",
    "tests.fixtures.real_orders",
    "tests.fixtures.s3_server",
    "tests.fixtures.spark_jvm",
]

# What else a machine does must not fail a test: no example has a time limit, nor has making one.
settings.register_profile(
    "metaq", max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("metaq")

# Tests start hundreds of programs: without bytecode each would compile every module again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Programs of users keep what they print in a buffer, which the interpreter's end writes.
os.environ.pop("PYTHONUNBUFFERED", None)

# Public authorities certify no server of a test, and PyMySQL would read all of their certificates at each connection.
os.environ["SSL_CERT_FILE"] = os.devnull

# Drivers that commands start take options from here alone.
os.environ.setdefault("SPARK_SUBMIT_OPTS", archive_options())

# A shell ignores SIGINT for what it runs in the background, and so would every program that the tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# One worker's: a JVM takes its time to start, and grows quicker with every query. First programs share it, then tests.
DOCS: Final = "tests/test_docs.py"
SPARK: Final = ("tests/spark_jobs/test_cluster.py", f"{DOCS}::test_every_block_runs_on_spark", "tests/spark_jobs/")
WITH_SERVERS: Final = (
    "tests/crash/",
    "tests/integration/",
    "tests/genuine/",
    "tests/fuzz/",
    "tests/bench/",
    "tests/test_docs.py",
)
SERVERS: Final = frozenset(
    {
        "zookeeper_server",
        "postgres_server",
        "mariadb_server",
        "broker",
        "shared_lone_broker",
        "lone_broker",
        "s3_server",
        "cloud_scheme",
        "hdfs",
        "hdfs_server",
        "spark",
    }
)
STARTERS: Final = frozenset(
    {"BrokerProcess", "EmbeddedMariaDb", "EmbeddedPostgres", "EmbeddedZooKeeper", "running_broker", "subprocess"}
)

_chroot_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def zookeeper_server() -> Iterator[EmbeddedZooKeeper]:
    """One ZooKeeper for all the tests of one worker. A test that kills a server starts its own."""
    with EmbeddedZooKeeper() as server:
        yield server


@pytest.fixture(autouse=True)
def round_robin_begins_at_the_second_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Producers of this process begin there instead of at a random partition."""
    monkeypatch.setattr("meta_client.producer.outgoing._first_count", lambda: 0)


@pytest.fixture
def zookeeper(zookeeper_server: EmbeddedZooKeeper) -> Iterator[Chroot]:
    """An empty part of the run's ZooKeeper for one test; `.connect` is its connect string."""
    with chroot(zookeeper_server.connect, f"test-{next(_chroot_numbers)}") as part:
        yield part


def scope_of(node_id: str) -> str:
    """Return what goes to one worker: a file, or all that share a Spark. Other documents share nothing."""
    if node_id.startswith(SPARK):
        return "spark"
    return node_id if node_id.startswith(DOCS) else node_id.partition("::")[0]


class FilesTogether(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives each worker whole scopes."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FilesTogether:
    """Schedule by files, in the order in which they were collected."""
    config.option.loadscopereorder = False
    return FilesTogether(config, log)


def starts_servers(item: pytest.Item) -> bool:
    """True if it starts a program, by a fixture or by what its module imports: `make test-fast` leaves it out."""
    assert isinstance(item, pytest.Function)
    return (
        item.nodeid.startswith(WITH_SERVERS)
        or not SERVERS.isdisjoint(item.fixturenames)
        or not STARTERS.isdisjoint(vars(item.module))
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Draw the long tests that are played, and put the longest first; otherwise the order stays, which is random. Mark
    what starts servers."""
    for item in items:
        if starts_servers(item):
            item.add_marker(pytest.mark.servers)
    long_s = read_table()
    items[:], left_out = draw(items, long_s, config.getoption("randomly_seed", 0))
    config.hook.pytest_deselected(items=left_out)
    sort_longest_first(items, long_s, scope_of)
    items.sort(key=lambda item: rank_on_spark(item.nodeid))


def rank_on_spark(node_id: str) -> int:
    """Return the place of a test among those that share a Spark."""
    return next((at for at, start in enumerate(SPARK) if node_id.startswith(start)), len(SPARK))


def pytest_report_header() -> str:
    """Say what is left out."""
    return (
        f"long tests: one in {SHARE}, drawn by the seed; `make test-all` plays all" if SHARE > 1 else "long tests: all"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Measure where all is played, but not in a worker, which knows its own tests alone."""
    if "METAQ_MEASURE_TESTS" in os.environ and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Stopwatch())


def pytest_collection_finish() -> None:
    """Exempt from the garbage collector's work what was imported and collected, which lives to the end."""
    gc.freeze()
