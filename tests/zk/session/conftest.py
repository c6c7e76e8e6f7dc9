"""Sessions of both kinds: on the test's chroot of a real ZooKeeper, and on a tree in memory."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from meta_broker.testing.memory.session import MemorySession
from meta_broker.testing.memory.tree import Tree
from tests.fixtures.expiry import expire_session
from zk.session.session import ZooKeeperSession


class Sessions:
    """Opens sessions that see the same tree, and ends one as its server does."""

    def __init__(self, make: Callable[..., ZooKeeperSession], expire: Callable[[Any], None]) -> None:
        self._make = make
        self._opened = contextlib.ExitStack()
        self.expire = expire

    def open(self, **options: Any) -> ZooKeeperSession:
        """Return a started session, closed with the test. *options*: `enqueue`."""
        return self._opened.enter_context(self._make(**options))

    def close(self) -> None:
        self._opened.close()


@pytest.fixture(params=[pytest.param("real", marks=pytest.mark.servers), "memory"])
def sessions(request: pytest.FixtureRequest) -> Iterator[Sessions]:
    """Run a test on a real server and in memory."""
    if request.param == "real":
        connect = request.getfixturevalue("zookeeper").connect
        timeout_ms = 60_000  # it must outlive a machine that stalls
        opened = Sessions(lambda **options: ZooKeeperSession(connect, "/meta", timeout_ms, **options), expire_session)
    else:
        tree = Tree()
        opened = Sessions(lambda **options: MemorySession(tree, **options), MemorySession.expire)
    with contextlib.closing(opened):
        yield opened
