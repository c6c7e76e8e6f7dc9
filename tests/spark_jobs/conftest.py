"""One Spark for all of these tests, and an honest journal to copy and damage."""

import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from meta_client.client import Client
from spark_jobs.audit.audit import audit_journal
from spark_jobs.audit.report import AuditReport
from spark_jobs.formats import register
from spark_jobs.source.session import spark_session
from tests.fixtures.broker import CONFIG, BrokerProcess, running_broker
from tests.fixtures.spark_cluster import INTERPRETED
from tests.fixtures.spark_jvm import SparkJvm
from tests.fixtures.spark_workers import warm_python
from tests.spark_jobs.journals import write_honest_journal
from zk.embedded.chroot import chroot
from zk.embedded.server import EmbeddedZooKeeper

QUICK = INTERPRETED | {
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "1",  # each task reads its stage's whole plan again
    "spark.sql.adaptive.enabled": "false",
}


@pytest.fixture(scope="session")
def spark(worker_jvm: SparkJvm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark for a worker: the first query takes ten times what others take. It leaves nothing behind."""
    scratch = tmp_path_factory.mktemp("scratch")
    with ExitStack() as ends:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in worker_jvm.variables.items():
                patch.setenv(name, value)
            patch.setattr(tempfile, "tempdir", str(scratch))
            python = ends.enter_context(warm_python(tmp_path_factory.mktemp("python")))
            options = QUICK | {"spark.pyspark.python": python}
            session = ends.enter_context(spark_session("local[2]", name="metaq tests", options=options))
        register(session)
        for form in ("short", "long"):  # else Spark takes a stack trace for each step of a plan
            session.sparkContext.setLocalProperty(f"callSite.{form}", "tests")
        yield session
    assert list(scratch.iterdir()) == []


@pytest.fixture
def audit(spark: SparkSession) -> Callable[[Path], AuditReport]:
    return lambda path: audit_journal(spark, path)


@pytest.fixture(scope="session")
def honest_master_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("honest") / "journal"
    write_honest_journal(path)
    return path


@pytest.fixture
def honest(honest_master_copy: Path, tmp_path: Path) -> Path:
    """A journal of the transaction store, closed in good order; the test may damage it."""
    return shutil.copytree(honest_master_copy, tmp_path / "honest")


_chroots = itertools.count(1)
_topics = itertools.count()
TOPICS = 60  # of a cluster, all named: a client finds no topic that a wildcard would offer
WIDE = CONFIG + "".join(f"\n[topics.spark-{number}]\npartitions = 4\n" for number in range(TOPICS))


class SmallCluster:
    """Two brokers with topics `spark-*` of four partitions each, and a client."""

    def __init__(self, zookeeper: str, brokers: list[BrokerProcess], client: Client) -> None:
        self.zookeeper = zookeeper
        self.brokers = brokers
        self.client = client


@pytest.fixture(scope="module")
def cluster(zookeeper_server: EmbeddedZooKeeper, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallCluster]:
    """A cluster for the tests of a module; who stops a broker starts it again."""
    data = tmp_path_factory.mktemp("cluster")
    with ExitStack() as opened:
        part = opened.enter_context(chroot(zookeeper_server.connect, f"spark-{next(_chroots)}"))
        brokers = [
            opened.enter_context(running_broker(data / f"{number}", part.connect, broker_id=number, config=WIDE))
            for number in range(2)
        ]
        yield SmallCluster(part.connect, brokers, opened.enter_context(Client(part.connect)))


@pytest.fixture
def topic() -> str:
    """A topic of a cluster that no other test uses."""
    number = next(_topics)
    assert number < TOPICS
    return f"spark-{number}"
