"""Sessions on the test's chroot of ZooKeeper, closed when it ends, and the means to break one."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.fixtures.expiry import expire_session
from zk.embedded.chroot import Chroot
from zk.session.session import ZooKeeperSession


@pytest.fixture
def open_session(zookeeper: Chroot) -> Iterator[Callable[..., ZooKeeperSession]]:
    """Open any number of sessions on this test's chroot; options are ZooKeeperSession's."""
    with contextlib.ExitStack() as stack:

        def open_one(**options: Any) -> ZooKeeperSession:
            options.setdefault("session_timeout_ms", 60_000)  # it must outlive a machine that stalls
            return stack.enter_context(ZooKeeperSession(zookeeper.connect, **options))

        yield open_one


@pytest.fixture
def session(open_session: Callable[..., ZooKeeperSession]) -> ZooKeeperSession:
    return open_session()


@pytest.fixture
def wait_until() -> Callable[[Callable[[], bool]], None]:
    """Wait until a condition holds; fail after a minute."""

    def wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, "it did not happen in time"
            time.sleep(0.01)

    return wait


@pytest.fixture
def expire() -> Callable[[ZooKeeperSession], None]:
    """End a session at the server while its client still believes in it; returns when the client is back."""
    return expire_session
