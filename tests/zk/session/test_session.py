"""A session and faults of a real server: bounded waits, refusals, suspension. The rest: test_contract.py."""

import socket
import time
from pathlib import Path
from queue import SimpleQueue

import pytest
from kazoo.security import make_digest_acl

from tests.fixtures.expiry import empty
from zk.embedded.chroot import Chroot
from zk.embedded.server import EmbeddedZooKeeper
from zk.errors import RefusedNode, ZooKeeperError, ZooKeeperUnavailable
from zk.session import newcomer
from zk.session.lease_keeper import BoundedHandler
from zk.session.newcomer import finds_less
from zk.session.security import PLAIN
from zk.session.session import SessionEvent, SessionState, ZooKeeperSession

LOST_AND_BEGUN_AGAIN = [
    SessionEvent(SessionState.CONNECTED, 1),
    SessionEvent(SessionState.SUSPENDED, 1),
    SessionEvent(SessionState.LOST, 1),
    SessionEvent(SessionState.CONNECTED, 2),
]


def test_an_absent_zookeeper_is_one_clear_line_in_bounded_time() -> None:
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))  # bound, not listening: connections are refused
        connect = f"127.0.0.1:{reserved.getsockname()[1]}"
        started = time.monotonic()
        with pytest.raises(ZooKeeperUnavailable) as failure, ZooKeeperSession(connect, connect_timeout_ms=500):
            raise AssertionError("connected to nothing")
        assert time.monotonic() - started < 30  # it does not try without end
    assert str(failure.value) == (
        f"no ZooKeeper at {connect} within 0.5 s: start one with `metaq zookeeper`, or name another with --zk"
    )


def test_a_session_that_was_never_started_says_so() -> None:
    session = ZooKeeperSession("127.0.0.1:1")
    for ask in (lambda: session.read("/a"), lambda: session.session_id, lambda: session.create("/a")):
        with pytest.raises(ZooKeeperUnavailable, match=r"was never started: start\(\) it"):
            ask()


@pytest.mark.parametrize("connect", ["", "host:port", ":1", "h:99999", None])
def test_a_connect_string_is_checked(connect: str) -> None:
    with pytest.raises(ZooKeeperError, match="no ZooKeeper connect string"):
        ZooKeeperSession(connect).start()


def test_a_missing_chroot_is_made(zookeeper: Chroot) -> None:
    with ZooKeeperSession(f"{zookeeper.connect}/deep/er") as session:
        session.write("/a", b"1")
    with ZooKeeperSession(zookeeper.connect) as outer:
        node = outer.read("/deep/er/a")
        assert node is not None
        assert node.data == b"1"


def test_a_crash_of_the_server_suspends_and_the_session_survives(tmp_path: Path) -> None:
    events: SimpleQueue[SessionEvent] = SimpleQueue()
    with (
        EmbeddedZooKeeper(tmp_path) as server,
        ZooKeeperSession(server.connect, session_timeout_ms=60_000, enqueue=events.put) as session,
    ):
        session.create("/mine", b"", ephemeral=True)
        server.kill()
        assert events.get(timeout=60) == SessionEvent(SessionState.CONNECTED, 1)
        assert events.get(timeout=60) == SessionEvent(SessionState.SUSPENDED, 1)
        server.restart()
        assert events.get(timeout=60) == SessionEvent(SessionState.CONNECTED, 1)
        node = session.read("/mine")
        assert node is not None
        assert node.session_id == session.session_id


def test_a_request_to_a_dead_server_ends_with_the_session_timeout(tmp_path: Path) -> None:
    with (
        EmbeddedZooKeeper(tmp_path) as server,
        ZooKeeperSession(server.connect, session_timeout_ms=1_000) as session,
    ):
        server.kill()
        started = time.monotonic()
        with pytest.raises(ZooKeeperUnavailable, match="did not answer for /x"):
            session.read("/x")
        assert time.monotonic() - started < 30  # it does not wait for the server without end


def test_a_zookeeper_that_lost_its_data_is_a_new_one(tmp_path: Path) -> None:
    """It refuses every client that has seen later changes than it has: this one would ask for ever."""
    events: SimpleQueue[SessionEvent] = SimpleQueue()
    with (
        EmbeddedZooKeeper(tmp_path) as server,
        ZooKeeperSession(server.connect, session_timeout_ms=1_000, enqueue=events.put) as session,
    ):
        session.create("/mine", b"", ephemeral=True)
        empty(server)
        server.start()
        assert [events.get(timeout=60) for _ in range(4)] == LOST_AND_BEGUN_AGAIN
        assert session.read("/mine") is None
        assert session.create("/mine", b"", ephemeral=True)


def test_a_node_that_may_not_be_read_is_refused_by_name(session: ZooKeeperSession) -> None:
    session.write("/hidden", b"x")
    session._client.set_acls("/hidden", [make_digest_acl("other", "secret", all=True)])
    with pytest.raises(RefusedNode, match="/hidden"):
        session.read("/hidden")
    session._client.add_auth("digest", "other:secret")
    session._client.delete("/hidden")


def test_a_handler_without_a_connection_detaches_and_cuts_nothing() -> None:
    handler = BoundedHandler()
    handler.detach()
    handler.cut()
    assert handler.connected is None


def test_a_newcomer_asks_who_has_seen_less(zookeeper: Chroot, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not finds_less(zookeeper.connect, PLAIN, 1)
    assert finds_less(zookeeper.connect, PLAIN, 1 << 62)
    monkeypatch.setattr(newcomer, "ANSWER_TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert not finds_less(f"127.0.0.1:{silent.getsockname()[1]}", PLAIN, 1 << 62)


def test_no_watch_is_called_by_the_close_of_its_session(zookeeper: Chroot, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server answers before kazoo's threads end, as on a busy machine."""
    end = BoundedHandler.stop

    def end_late(handler: BoundedHandler) -> None:
        time.sleep(0.5)
        end(handler)

    monkeypatch.setattr(BoundedHandler, "stop", end_late)
    called: list[object] = []
    session = ZooKeeperSession(zookeeper.connect)
    session.start()
    session.ensure("/w")
    session.children("/w", called.append)
    session.close()
    assert called == []
