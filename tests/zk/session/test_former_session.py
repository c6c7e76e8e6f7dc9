"""Ending the session of a process that was killed: proof by password, at once, and never anybody else's."""

import socket
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from zk.embedded.chroot import Chroot
from zk.errors import ZooKeeperUnavailable
from zk.session.former_session import end_session
from zk.session.security import SessionCredentials
from zk.session.session import ZooKeeperSession

DOOMED = """
import sys, time
from zk.session.session import ZooKeeperSession
session = ZooKeeperSession(sys.argv[1], session_timeout_ms=120_000)
session.start()
session.create("/mine", b"", ephemeral=True)
credentials = session.credentials
print(credentials.session_id, credentials.password.hex(), flush=True)
time.sleep(600)
"""
ANSWER_S = 50.0


def killed_session(connect: str) -> SessionCredentials:
    """A session of two minutes whose process was killed with SIGKILL."""
    with subprocess.Popen([sys.executable, "-c", DOOMED, connect], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        session_id, password = process.stdout.readline().split()
        process.kill()
    return SessionCredentials(int(session_id), bytes.fromhex(password))


def test_a_killed_process_session_ends_at_once(zookeeper: Chroot, session: ZooKeeperSession) -> None:
    credentials = killed_session(zookeeper.connect)
    assert session.read("/mine") is not None
    started = time.monotonic()
    assert end_session(zookeeper.connect, credentials, ANSWER_S)
    assert session.read("/mine") is None
    assert time.monotonic() - started < 60  # and not two minutes
    assert not end_session(zookeeper.connect, credentials, ANSWER_S)  # it is over


def test_nobody_ends_a_session_without_its_password(
    zookeeper: Chroot,
    session: ZooKeeperSession,
    open_session: Callable[..., ZooKeeperSession],
    wait_until: Callable[[Callable[[], bool]], None],
) -> None:
    live = open_session()
    live.create("/mine", b"", ephemeral=True)
    right = live.credentials
    wrong = SessionCredentials(right.session_id, bytes(b ^ 1 for b in right.password))
    assert not end_session(zookeeper.connect, wrong, ANSWER_S)
    assert session.read("/mine") is not None
    # The server drops the connection of a session that somebody asks for, before it looks at the password.
    wait_until(lambda: is_back(live))
    assert live.credentials == right
    assert live.epoch == 1


def is_back(session: ZooKeeperSession) -> bool:
    try:
        return session.read("/mine") is not None
    except ZooKeeperUnavailable:
        return False


def test_an_absent_zookeeper_is_told_in_bounded_time() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # bound, not listening: connections are refused
        connect = f"127.0.0.1:{reserved.getsockname()[1]}"
        started = time.monotonic()
        with pytest.raises(ZooKeeperUnavailable, match=f"no ZooKeeper at {connect} within 0.5 s"):
            end_session(connect, SessionCredentials(1, bytes(16)), timeout_s=0.5)
        assert time.monotonic() - started < 30  # it does not try without end


def test_a_password_is_not_shown() -> None:
    assert "secret" not in repr(SessionCredentials(1, b"secret"))
