"""Tells within seconds that a Spark standalone cluster can't be used; Spark itself waits for minutes."""

import re
import socket
import time
from collections.abc import Iterator
from typing import Final

from pyspark.sql import SparkSession

CONNECT_S: Final = 4.0  # for each master
EXECUTORS_S: Final = 15.0  # for the first executor
_LOOK_S: Final = 0.1
_ADDRESS: Final = re.compile(r"(?P<host>[^:/\s]+|\[[0-9A-Fa-f:.]+\]):(?P<port>\d{1,5})")


class ClusterAway(Exception):
    """A Spark master that can't be reached, or has no worker to give."""


def check_reachable(master: str) -> None:
    """Raise ClusterAway unless one of the masters of *master*, spark://HOST:PORT[,HOST:PORT], accepts a connection."""
    failures: list[str] = []
    for host, port in _addresses(master):
        try:
            socket.create_connection((host, port), CONNECT_S).close()
        except OSError as error:
            failures.append(f"{host}:{port}: {error.strerror or error}")
        else:
            return
    raise ClusterAway(f"no Spark master at {master} ({'; '.join(failures)}): start it, or leave --master out")


def wait_for_executors(spark: SparkSession, master: str) -> None:
    """Return once an executor runs. Raises ClusterAway."""
    context = spark.sparkContext._jsc.sc()
    deadline = time.monotonic() + EXECUTORS_S
    while context.isStopped() or context.getExecutorMemoryStatus().size() < 2:  # the driver counts
        if context.isStopped() or time.monotonic() > deadline:
            raise ClusterAway(
                f"{master} gave no executor within {EXECUTORS_S:g} s: its web page shows whether it is a master, and "
                f"its workers are alive and have cores and memory left; they must reach spark.driver.host, this machine"
            )
        time.sleep(_LOOK_S)


def _addresses(master: str) -> Iterator[tuple[str, int]]:
    for address in master.removeprefix("spark://").split(","):
        if (found := _ADDRESS.fullmatch(address)) is None or int(found["port"]) > 65_535:
            raise ClusterAway(f"{master}: {address!r} is no HOST:PORT")
        yield found["host"].strip("[]"), int(found["port"])
