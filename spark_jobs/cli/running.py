"""Runs of commands on Spark. Imports PySpark: a command imports this when it is called."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import click
from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # py4j ships no types
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from journal.errors import JournalError
from spark_jobs.cli.options import fail
from spark_jobs.source.cluster import ClusterAway
from spark_jobs.source.failures import SparkNotStarted, telling_line
from spark_jobs.source.locations import JournalLocation, plan
from spark_jobs.source.session import InvalidMaster, checked_master, spark_session
from zk.errors import JavaNotFound


def progress_of(command: str) -> Callable[[str], None]:
    """Return what tells of the next step of *command*."""
    return lambda line: click.echo(f"{command}: {line}", err=True)


def check_places(master: str, places: Iterable[JournalLocation]) -> None:
    """Raise what is wrong with these before Spark takes seconds to start."""
    checked_master(master)
    for place in places:
        plan(place)


@contextmanager
def ending_with_line(master: str, *errors: type[Exception], then: str = "") -> Iterator[None]:
    """End the command with a line for what Spark, a journal or one of *errors* says. *then*: for Spark's."""
    told: tuple[type[Exception], ...] = (
        JournalError,
        JavaNotFound,
        InvalidMaster,
        ClusterAway,
        SparkNotStarted,
        *errors,
    )
    try:
        yield
    except (PySparkException, Py4JError) as error:
        fail(f"Spark at {master} failed: {telling_line(str(error))}: see its messages above{then}")
    except told as error:
        fail(str(error))


@contextmanager
def started_spark(command: str, master: str, settings: Mapping[str, str], then: str = "") -> Iterator[SparkSession]:
    """Yield the Spark of *command*. A failure of it in the block is told while it runs: its line is asked of it."""
    with (
        spark_session(master, name=f"metaq {command}", options=settings) as spark,
        ending_with_line(master, then=then),
    ):
        yield spark
