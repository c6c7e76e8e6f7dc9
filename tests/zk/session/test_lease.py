"""A session's lease ends before the session does, whatever keeps its answers away."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from tests.fixtures.expiry import expire_session
from tests.fixtures.tcp_proxy import TcpProxy
from zk.embedded.chroot import Chroot
from zk.embedded.server import EmbeddedZooKeeper
from zk.session import lease as lease_module
from zk.session.lease import LEASE_FRACTION, Lease, now
from zk.session.session import SessionState, ZooKeeperSession

OpenSession = Callable[..., ZooKeeperSession]
Wait = Callable[[Callable[[], bool]], None]

SESSION_S = 6.0


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(lease_module, "now", lambda: clock.now)
    return clock


@pytest.fixture
def proxy(zookeeper_server: EmbeddedZooKeeper) -> Iterator[TcpProxy]:
    with TcpProxy(int(zookeeper_server.connect.rpartition(":")[2])) as proxy:
        yield proxy


@pytest.fixture
def proxied(proxy: TcpProxy, zookeeper: Chroot) -> Iterator[ZooKeeperSession]:
    chroot = zookeeper.connect.partition("/")[2]
    with ZooKeeperSession(f"{proxy.connect}/{chroot}", session_timeout_ms=int(SESSION_S * 1000)) as session:
        yield session


def test_it_counts_from_when_the_question_was_sent(clock: Clock) -> None:
    lease = Lease()
    assert not lease.is_valid()
    lease.granted(999.0, 30.0)
    clock.now = 1018.9
    assert lease.is_valid()
    lease.renew(1010.0)  # the answer is read late: it proves nothing later than its question
    clock.now = 1029.9
    assert lease.is_valid()
    lease.renew(1005.0)  # an older one changes nothing
    clock.now = 1030.1
    assert not lease.is_valid()
    lease.granted(1030.0, 6.0)  # a new session, and its server grants less
    assert lease.is_valid()
    clock.now = 1034.1
    assert not lease.is_valid()
    assert lease.timeout_s == 6.0


def test_one_that_ended_is_not_renewed_and_other_servers_may_keep_its_session(clock: Clock) -> None:
    lease = Lease()
    lease.granted(999.0, 30.0)
    lease.end()
    lease.renew(1000.0)  # its answer was on the way
    assert not lease.is_valid()
    clock.now = 1028.9
    assert not lease.is_over()
    clock.now = 1029.1
    assert lease.is_over()
    lease.granted(1029.0, 6.0)
    assert lease.is_valid()


def test_it_is_kept_if_the_event_of_the_connection_takes_long(zookeeper: Chroot, wait_until: Wait) -> None:
    """The server's answer is on record only after kazoo has told of the connection."""
    with ZooKeeperSession(
        zookeeper.connect, session_timeout_ms=int(SESSION_S * 1000), enqueue=lambda event: time.sleep(0.1)
    ) as session:
        for expires in (False, True):
            if expires:
                expire_session(session)
                wait_until(session.lease.is_valid)  # the next one is granted after its event
            deadline = now() + SESSION_S
            while now() < deadline:
                time.sleep(0.1)
                assert session.lease.is_valid(), f"{deadline - now():.1f} s before the end, after an expiry: {expires}"


def test_it_knows_what_the_server_grants(open_session: OpenSession) -> None:
    """The embedded server grants 120 s at most."""
    assert open_session(session_timeout_ms=500_000).lease.timeout_s == pytest.approx(120)
    assert open_session(session_timeout_ms=20_000).lease.timeout_s == pytest.approx(20)


def test_an_idle_session_keeps_its_lease(open_session: OpenSession) -> None:
    session = open_session(session_timeout_ms=12_000)
    first_ends = session.lease._valid_until
    while now() <= first_ends:
        time.sleep(0.01)
        assert session.lease.is_valid()


@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "busy"])
def test_it_is_over_before_the_session_is_when_the_link_swallows_everything(
    proxy: TcpProxy, proxied: ZooKeeperSession, session: ZooKeeperSession, wait_until: Wait, *, is_busy: bool
) -> None:
    """Busy: kazoo takes what it sends for a heartbeat, and would not look for another connection at all."""
    assert proxied.create("/here", b"", ephemeral=True)
    lease, stop = proxied.lease, threading.Event()

    def ask() -> None:
        while not stop.wait(0.1):
            proxied._client.exists_async("/here")

    asking = threading.Thread(target=ask)
    if is_busy:
        asking.start()
    try:
        proxy.swallow()
        began = now()
        wait_until(lambda: not lease.is_valid())
        is_there = session.read("/here") is not None
        # Where this test stalls, the session's time may have passed, too.
        assert is_there or now() > lease._answered_at + SESSION_S
        assert lease._valid_until <= began + SESSION_S * LEASE_FRACTION  # nothing that was sent since renewed it
        wait_until(lambda: proxied._state is SessionState.SUSPENDED)
        proxy.heal()
        wait_until(proxied.lease.is_valid)
    finally:
        stop.set()
        if is_busy:
            asking.join()
