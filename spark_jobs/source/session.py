"""A Spark session for one command: quick to start, small, quiet, and without remains.

Local by default. With a master URL the same job runs on a cluster, with this Python, metaq and the journal in the same
place on every worker (`spark.pyspark.python` names another Python). It has as many shuffle partitions as cores: Spark's
200 are two hundred Python tasks for a few kilobytes.
"""

import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # py4j ships no types
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from spark_jobs.source.cluster import ClusterAway, check_reachable, registering, wait_for_executors
from spark_jobs.source.data_source import PUSHDOWN
from spark_jobs.source.failures import SparkNotStarted, telling_line
from zk.embedded.java import java_home, shim_home

LOCAL_MASTER: Final = "local[*]"
SHUFFLE_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_MASTER: Final = re.compile(r"local(\[([1-9]\d*|\*)(, *\d+)?\])?|yarn|(spark|k8s)://\S+")
# Java classes that PySpark names for each column, and that py4j would look for in every jar each time.
_OF_EVERY_COLUMN: Final = ("PythonUtils", "functions", "org.apache.spark.sql.functions")
_LOGGING: Final = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = spark: %p %c{1}: %m%n
logger.shell.name = org.apache.spark.api.python.PythonGatewayServer
logger.shell.level = error
"""


class InvalidMaster(ValueError):
    """A master URL that Spark does not accept."""


def checked_master(master: str) -> str:
    """Return *master* if it is valid. Raises InvalidMaster."""
    if _MASTER.fullmatch(master) is None:
        raise InvalidMaster(f"{master!r} is no Spark master: use local[N], spark://HOST:PORT, yarn or k8s://URL")
    return master


@contextmanager
def spark_session(
    master: str = LOCAL_MASTER, *, name: str = "metaq", options: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Make a Spark session; its JVM, files and changes to the environment end with the block.

    *options* are Spark's and override the defaults. Raises JavaNotFound, InvalidMaster, SparkNotStarted; ClusterAway
    within 20 s if a standalone cluster can't be used. One at a time in a process.
    """
    options = options or {}
    is_local, is_standalone = checked_master(master).startswith("local"), master.startswith("spark://")
    if SparkContext._active_spark_context is not None:
        raise RuntimeError("this process has a Spark session already: give that one to audit_journal")
    if is_standalone:
        check_reachable(master)
    # Spark asks every Java for an incubator module, which prints a warning; the shim drops that argument.
    home = shim_home(java_home(), os.environ)
    with (
        tempfile.TemporaryDirectory(prefix="metaq-spark-") as scratch,
        _environment(home, options.get("spark.pyspark.python", sys.executable), is_local=is_local),
    ):
        builder = SparkSession.builder.master(master).appName(name)
        for key, value in (_settings(Path(scratch), is_local=is_local) | dict(options)).items():
            builder = builder.config(key, value)
        try:
            with registering(master) if is_standalone else nullcontext():
                spark = builder.getOrCreate()
        except ClusterAway:
            _end_jvm()
            raise
        except (PySparkException, Py4JError) as error:
            reason = telling_line(str(error))  # which asks the JVM
            _end_jvm()
            raise SparkNotStarted(
                f"Spark at {master} did not start: {reason.rstrip('.')}: its messages above say why: check --master, "
                "--packages and --conf"
            ) from error
        try:
            for name in _OF_EVERY_COLUMN:
                setattr(spark.sparkContext._jvm, name, getattr(spark.sparkContext._jvm, name))
            if is_standalone:
                wait_for_executors(spark, master)
            if not is_local and SHUFFLE_PARTITIONS not in options:
                spark.conf.set(SHUFFLE_PARTITIONS, str(spark.sparkContext.defaultParallelism))
            yield spark
        finally:
            spark.stop()
            _end_jvm()


def _settings(scratch: Path, *, is_local: bool) -> dict[str, str]:
    logging = scratch / "log4j2.properties"
    logging.write_text(_LOGGING)
    settings = {
        PUSHDOWN: "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.python.sql.dataFrameDebugging.enabled": "false",  # a stack trace taken for every column expression
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": (scratch / "warehouse").as_uri(),
        "spark.driver.memory": "1g",
        # C1 and one collecting thread: an audit is over before C2 would have paid, and the bytes are read in Python.
        # Room for Spark's classes: loading them would have the whole heap collected four times. Room for their code: in
        # C1's own 48 MB the queries of an audit throw each other out and are compiled again.
        "spark.driver.extraJavaOptions": (
            f"-Djava.io.tmpdir={scratch} -Dlog4j2.configurationFile={logging.as_uri()} "
            "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:MetaspaceSize=256m -XX:ReservedCodeCacheSize=160m"
        ),
    }
    if is_local:
        settings |= {
            "spark.local.dir": str(scratch),
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            # More partitions than cores only add tasks.
            SHUFFLE_PARTITIONS: str(os.cpu_count() or 1),
        }
    return settings


@contextmanager
def _environment(home: Path, python: str, *, is_local: bool) -> Iterator[None]:
    """Set the variables that PySpark reads from the environment only; restore them afterwards. *python*: of the
    workers."""
    wanted = {"JAVA_HOME": str(home)}
    if is_local or "PYSPARK_PYTHON" not in os.environ:
        wanted["PYSPARK_PYTHON"] = python
    if is_local:
        wanted["SPARK_LOCAL_IP"] = "127.0.0.1"
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _end_jvm() -> None:
    """End the JVM, which PySpark would leave to the end of the process, so that the scratch directory can be
    removed. One that was there before, as in spark-submit, is only left: closing its connections would wait for those
    on which it has called this process, as for `foreachBatch`."""
    gateway = SparkContext._gateway
    if gateway is None:
        return
    process = gateway.proc  # PySpark's own launcher puts it there
    if process is not None:
        gateway.shutdown()
        if process.stdin is not None:
            process.stdin.close()  # makes its JVM exit
        process.wait()
    SparkContext._gateway = SparkContext._jvm = None
