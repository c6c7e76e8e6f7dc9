"""The pool: one connection per broker, a new one after a break, rests between failures."""

import threading
import time
from collections.abc import Iterator

import pytest

from meta_client.errors import ClientClosed, NotConnected
from meta_client.net.backoff import BACKOFF_MAX_S, backoff_after_s
from meta_client.net.connections import Connections
from meta_client.net.transport import Link
from tests.meta_client.peer import listening, ok
from zk.tree.broker_url import BrokerUrl


@pytest.fixture
def connections() -> Iterator[Connections]:
    pool = Connections()
    yield pool
    pool.close()


def test_back_off_is_free_once_then_grows_to_two_seconds() -> None:
    assert [backoff_after_s(failures) for failures in range(9)] == [0, 0, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    assert backoff_after_s(5000) == BACKOFF_MAX_S


def test_one_connection_for_all_threads(connections: Connections) -> None:
    with listening(ok) as peer:
        found: list[Link] = []
        threads = [threading.Thread(target=lambda: found.append(connections.get(peer.url, 60))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({id(connection) for connection in found}) == 1
        peer.hang_up()  # which waits for what is on its way
        assert peer.accepted == 1


def test_a_broken_one_is_replaced_at_once(connections: Connections) -> None:
    with listening(ok) as peer:
        first = connections.get(peer.url, 60)
        peer.hang_up()
        while not first.is_broken:
            time.sleep(0.001)
        second = connections.get(peer.url, 60)
        assert second is not first
        assert not second.is_broken


@pytest.fixture
def dead_url() -> BrokerUrl:
    """URL of a broker that is down."""
    with listening(ok) as peer:
        return peer.url


def test_failures_make_the_patient_back_off(connections: Connections, dead_url: BrokerUrl) -> None:
    for _ in range(3):
        with pytest.raises(NotConnected, match="refused"):
            connections.get(dead_url, 60)
    started = time.monotonic()
    for _ in range(2):
        with pytest.raises(NotConnected, match="refused"):
            connections.get(dead_url, 60)
    assert time.monotonic() - started >= backoff_after_s(4)


def test_the_impatient_are_refused_while_others_back_off(
    connections: Connections, dead_url: BrokerUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meta_client.net.backoff.backoff_after_s", lambda failures: 600.0 if failures == 4 else 0.0)
    for _ in range(4):
        with pytest.raises(NotConnected, match="refused"):
            connections.get(dead_url, 60)
    with pytest.raises(NotConnected, match="after 4 attempts"):
        connections.get(dead_url, 3600, patient=False)
    with pytest.raises(NotConnected, match="after 4 attempts"):
        connections.get(dead_url, 0.01)


def test_a_closed_pool_gives_nothing(connections: Connections) -> None:
    connections.close()
    with pytest.raises(ClientClosed):
        connections.get(BrokerUrl("127.0.0.1", 1), 1)
