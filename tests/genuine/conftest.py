"""The genuine client in one JVM for all tests; those that kill one start their own."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.genuine.java_client import MADE, Actor, JavaProcess
from tests.integration.conftest import open_client, wide_broker
from zk.embedded.chroot import Chroot

collect_ignore_glob = [] if (MADE / "classes/Driver.class").exists() else ["test_*.py"]  # `make genuine` makes them

__all__ = ["open_client", "wide_broker"]  # fixtures of the integration tests

OpenJava = Callable[..., Actor]
_names = itertools.count(1)


@pytest.fixture(scope="session")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaProcess]:
    """The JVM that tests share."""
    home = tmp_path_factory.mktemp("java")
    with JavaProcess(home, home / "log") as process:
        yield process


@pytest.fixture
def own_java(tmp_path: Path) -> Iterator[JavaProcess]:
    """A JVM that a test may kill."""
    home = tmp_path / "java"
    home.mkdir()
    with JavaProcess(home, home / "log") as process:
        yield process


@pytest.fixture
def open_java(java: JavaProcess, zookeeper: Chroot) -> Iterator[OpenJava]:
    """Open any number of Java services; shut down at the end. *kind*: "direct", "broadcast", "ordered"."""
    opened: list[Actor] = []

    def open_one(kind: str = "plain", where: str | None = None, *more: str, within: JavaProcess | None = None) -> Actor:
        actor = Actor(within or java, f"j{next(_names)}")
        actor.ask("open", kind, where or zookeeper.connect, *more)
        if within is None:
            opened.append(actor)
        return actor

    yield open_one
    with contextlib.ExitStack() as stack:
        for actor in opened:
            stack.callback(actor.ask, "shutdown")
