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
BLOCKS: Final = f"{DOCS}::test_every_block_runs"
SPARK: Final = ("tests/spark_jobs/test_cluster.py", f"{BLOCKS}_on_spark", "tests/spark_jobs/")
# What takes longest begins first, so that no worker is left alone with it; in order of processor time.
LONGEST: Final = (
    *SPARK,
    "tests/integration/test_demo.py",
    "tests/crash/test_decision_row.py",
    "tests/crash/test_consume_and_produce_killed.py",
    "tests/meta_client/doctor/test_rows.py",
    "tests/meta_client/doctor/test_races.py",
    "tests/meta_client/transactions/test_crashes.py",
    "tests/crash/test_replication_hosts.py",
    "tests/meta_client/transactions/test_interrupted.py",
    "tests/meta_client/aio/transactions/",
    "tests/meta_broker/cluster/test_membership.py",
    "tests/meta_broker/replication/master/test_lost_tail.py",
    "tests/crash/test_groups.py",
    f"{DOCS}::test_readme_and_tutorial",
    "tests/meta_client/cli/test_messages.py",
    "tests/meta_client/transactions/test_plain_drivers.py",
    "tests/meta_client/transactions/test_barrier.py",
    "tests/meta_client/doctor/",
    "tests/crash/",
    BLOCKS,
    "tests/meta_client/console/",
    "tests/meta_client/transactions/",
    "tests/meta_client/coordinator/",
    "tests/journal/state/test_every_storage_call.py",
    "tests/meta_broker/app/test_bad_start.py",
    "tests/journal/repair/test_repair.py",
    "tests/meta_client/cli/",
    "tests/integration/",
    "tests/model/",
)

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


class FilesTogether(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives each worker whole files, and one of them all that share a Spark. Other documents share nothing."""

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(SPARK):
            return "spark"
        return nodeid if nodeid.startswith(DOCS) else nodeid.partition("::")[0]


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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest first; otherwise the order stays, which is random. Mark what starts servers."""
    for item in items:
        if starts_servers(item):
            item.add_marker(pytest.mark.servers)
    items.sort(key=rank)


def rank(item: pytest.Item) -> int:
    """The place of a test's beginning in LONGEST."""
    return next((at for at, start in enumerate(LONGEST) if item.nodeid.startswith(start)), len(LONGEST))


def pytest_collection_finish() -> None:
    """Exempt from the garbage collector's work what was imported and collected, which lives to the end."""
    gc.freeze()
