"""One Spark for all of these tests, and an honest journal to copy and damage."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jobs.audit.audit import audit_journal
from spark_jobs.audit.report import AuditReport
from spark_jobs.source.data_source import register
from spark_jobs.source.session import spark_session
from tests.spark_jobs.journals import write_honest_journal

# A query here reads some hundred rows: compiling it costs more than running it.
QUICK = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with spark_session("local[2]", name="metaq tests", options=QUICK) as session:
        register(session)
        yield session


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
