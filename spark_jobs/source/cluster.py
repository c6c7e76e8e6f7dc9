"""Tells within seconds that a Spark standalone cluster can't be used; Spark itself waits for minutes."""

import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # py4j ships no types
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

CONNECT_S: Final = 4.0  # for each master
REGISTER_S: Final = 30.0  # for the application, by its master: Spark asks a second time after 20
EXECUTORS_S: Final = 15.0  # for the first executor
_LOOK_S: Final = 0.2
_REGISTRATION: Final = "appclient-registration-retry-thread"  # of a driver that waits for its master
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


@contextmanager
def registering(master: str) -> Iterator[None]:
    """Raise ClusterAway if *master* does not register the application that the block starts within REGISTER_S.

    What accepts connections there is no Spark master then, or hangs. Spark itself asks for over a minute.
    """
    is_done, is_late = threading.Event(), threading.Event()

    def watch() -> None:
        while not is_done.wait(_LOOK_S):
            gateway = SparkContext._gateway
            if gateway is None or gateway.proc is None or _REGISTRATION not in _threads(gateway.jvm):
                continue
            if not is_done.wait(REGISTER_S):
                is_late.set()
                gateway.proc.kill()
            return

    watcher = threading.Thread(target=watch, name="spark-registration", daemon=True)
    watcher.start()
    try:
        yield
    except (PySparkException, Py4JError, OSError) as error:  # the last: it asks a JVM that is gone
        if not is_late.is_set():
            raise
        raise ClusterAway(
            f"what answers at {master} did not register the application within {REGISTER_S:g} s: see whether it is a "
            f"Spark master's port, by its web page, and whether it hangs, by its log"
        ) from error
    finally:
        is_done.set()
        watcher.join()


def _threads(jvm: Any) -> str:
    names: str = jvm.java.lang.Thread.getAllStackTraces().keySet().toString()
    return names


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
