"""A connection against a peer that answers out of order, late, wrongly, or not at all."""

import contextlib
import itertools
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from meta_client.errors import ClientClosed, ConnectionLost, NotConnected, ReplyTimeout, TooManyRequests
from meta_client.net import pending_reply, send_queue
from meta_client.net.calls import checked_result, checked_value
from meta_client.net.connection import Connection
from meta_client.net.opaques import next_opaque
from meta_client.net.send_queue import PATIENCE_S
from meta_client.protocol.errors import LocalProtocolError, RemoteProtocolError
from meta_client.protocol.requests import Get, Put, Request, Version
from meta_client.protocol.responses import Result, Value
from tests.fixtures.interrupts import interrupted
from tests.meta_client.peer import HANG_UP, Peer, listening, ok, opaque_of
from zk.tree.broker_url import BrokerUrl


def silent(request: Request) -> None:
    del request


@pytest.fixture
def peer() -> Iterator[Peer]:
    with listening(ok) as it:
        yield it


@pytest.fixture
def connection(peer: Peer) -> Iterator[Connection]:
    it = Connection.open(peer.url, 60)
    yield it
    it.close()


def put(body: bytes = b"hello", opaque: int | None = None) -> Put:
    return Put("meta-test", 0, 0, None, None, next_opaque() if opaque is None else opaque, body)


def test_the_trace_of_a_plain_put(peer: Peer, connection: Connection) -> None:
    peer.handler = lambda request: ok(request, b"100000 0 0")
    reply = connection.submit(put(opaque=-(2**31)))
    assert reply.wait(60) == Result(200, b"100000 0 0", -(2**31))
    assert peer.received == [Put("meta-test", 0, 0, None, None, -(2**31), b"hello")]


def test_answers_in_any_order_find_their_requests(peer: Peer, connection: Connection) -> None:
    held: list[bytes] = []

    def answer_all_backwards(request: Request) -> bytes | None:
        assert isinstance(request, Put)
        held.append(ok(request, bytes(request.body)))
        return b"".join(reversed(held)) if len(held) == 100 else None

    peer.handler = answer_all_backwards
    replies = [connection.submit(put(b"%d" % number)) for number in range(100)]
    for number, reply in enumerate(replies):
        response = reply.wait(60)
        assert isinstance(response, Result)
        assert response.message == b"%d" % number
    assert connection.outstanding == 0


def test_many_threads_share_it(peer: Peer, connection: Connection) -> None:
    def echo(request: Request) -> bytes:
        assert isinstance(request, Put)
        return ok(request, bytes(request.body))

    peer.handler = echo
    wrong: list[object] = []

    def work(thread: int) -> None:
        for number in range(200):
            # Bodies on both sides of the size from which one is not joined with its neighbours.
            body = b"%d-%d." % (thread, number) * (1 if number % 50 else 12_000)
            response = connection.submit(put(body)).wait(60)
            if not isinstance(response, Result) or response.message != body:
                wrong.append((thread, number))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert len(peer.received) == 1600


def test_a_break_fails_everything_pending_at_once(peer: Peer, connection: Connection) -> None:
    peer.handler = silent
    replies = [connection.submit(put()) for _ in range(3)]
    started = time.monotonic()
    threading.Timer(0.05, peer.hang_up).start()
    for reply in replies:
        with pytest.raises(ConnectionLost, match=r"meta://127\.0\.0\.1:\d+ lost before the answer .*may have acted"):
            reply.wait(60)
    assert time.monotonic() - started < 30  # nobody has waited for long
    assert connection.is_broken
    with pytest.raises(NotConnected, match="try again for a new one"):
        connection.submit(put())


def test_what_came_before_garbage_counts(peer: Peer, connection: Connection) -> None:
    peer.handler = lambda request: ok(request, b"fine") + b"gibberish\r\n"
    good = connection.submit(put())
    assert good.wait(60) == Result(200, b"fine", good.opaque)
    wait_until(lambda: connection.is_broken)
    with pytest.raises(NotConnected, match="gibberish"):
        connection.submit(put())


def test_a_timeout_gives_the_request_up_and_drops_its_late_answer(peer: Peer, connection: Connection) -> None:
    peer.handler = silent
    late = connection.submit(put())
    with pytest.raises(ReplyTimeout, match=r"within 0\.01 s: the request may have acted"):
        late.wait(0.01)
    assert connection.outstanding == 0
    peer.send(ok(put(opaque=late.opaque)))
    peer.send(b"result 200 0 123456\r\n")  # nobody's
    peer.handler = ok
    assert isinstance(connection.submit(put()).wait(60), Result)
    with pytest.raises(ReplyTimeout):
        late.wait(0.01)


def test_close_fails_what_is_pending_and_ends_the_thread(peer: Peer) -> None:
    peer.handler = silent
    connection = Connection.open(peer.url, 60)
    reply = connection.submit(put())
    connection.close()
    connection.close()
    with pytest.raises(ConnectionLost, match="closed by this client") as caught:
        reply.wait(60)
    assert isinstance(caught.value.__cause__, ClientClosed)


def test_a_signals_handler_closes_what_its_thread_reads(peer: Peer) -> None:
    """The reader thread waits for the thread that reads, which the handler has interrupted."""
    peer.handler = silent
    connection = Connection.open(peer.url, timeout_s=60)

    def close(number: int, frame: object) -> None:
        assert not closing, "close() has hung"
        closing.append(number)
        connection.close()

    closing: list[int] = []
    former = signal.signal(signal.SIGALRM, close)
    try:
        reply = connection.submit(put())
        signal.setitimer(signal.ITIMER_REAL, 0.2, 20)
        with pytest.raises(ConnectionLost, match="closed by this client"):
            reply.wait(60)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
    connection.close()
    assert f"metaq {peer.url}" not in [thread.name for thread in threading.enumerate()]


def test_what_is_not_urgent_waits_for_company(
    peer: Peer, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While other answers are due; else, and once it is waited for or was patient long enough, it leaves."""
    monkeypatch.setattr(send_queue, "PATIENCE_S", 600.0)
    alone = connection.submit(put(b"alone"), is_urgent=False)
    alone.wait(60)
    peer.handler = lambda request: None if isinstance(request, Put) and request.body == b"due" else ok(request)
    due = connection.submit(put(b"due"))
    wait_until(lambda: bodies(peer) == [b"alone", b"due"])
    patient = connection.submit(put(b"patient"), is_urgent=False)
    behind = connection.submit(put(b"behind"), is_urgent=False)
    time.sleep(0.2)
    assert bodies(peer) == [b"alone", b"due"]
    behind.wait(60)
    patient.wait(60)
    assert bodies(peer) == [b"alone", b"due", b"patient", b"behind"]
    monkeypatch.setattr(send_queue, "PATIENCE_S", PATIENCE_S)
    third = connection.submit(put(b"third"), is_urgent=False)
    connection.submit(put(b"at once")).wait(60)
    time.sleep(PATIENCE_S)
    connection.submit(put(b"later")).wait(60)
    wait_until(lambda: b"third" in bodies(peer))  # which nobody waits for yet
    third.wait(60)
    assert not due.is_done


def bodies(peer: Peer) -> list[bytes]:
    return [bytes(request.body) for request in peer.received if isinstance(request, Put)]


def test_outstanding_requests_are_bounded(peer: Peer, connection: Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_reply, "OUTSTANDING_MAX", 2)
    peer.handler = silent
    connection.submit(put())
    connection.submit(put())
    with pytest.raises(TooManyRequests, match="2 answers are due"):
        connection.submit(put())
    assert not connection.is_broken


def test_what_has_no_form_is_refused_and_harms_nobody(connection: Connection) -> None:
    with pytest.raises(LocalProtocolError):
        connection.submit(Get("two words", "g", 0, 0, 1, next_opaque()))
    assert connection.outstanding == 0
    assert isinstance(connection.submit(put()).wait(60), Result)


def test_a_port_without_a_server(peer: Peer) -> None:
    url = peer.url
    peer.close()
    with pytest.raises(NotConnected, match=r"no connection to meta://127.0.0.1:\d+ .*is the broker up"):
        Connection.open(url, 60)


def test_an_idle_connection_beats_and_a_silent_peer_is_given_up(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meta_client.net.heartbeat.IDLE_S", 0.05)
    monkeypatch.setattr("meta_client.net.heartbeat.ANSWER_S", 0.3)  # three in a row are late on no machine
    connection = Connection.open(peer.url, 60)
    wait_until(lambda: len(peer.received) >= 5)  # answered: it goes on
    assert not connection.is_broken
    assert all(isinstance(request, Version) for request in peer.received)
    peer.handler = silent
    reply = connection.submit(put())
    with pytest.raises(ConnectionLost, match="no good answer to three heartbeats"):
        reply.wait(60)
    connection.close()


def test_bad_answers_to_heart_beats_count(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meta_client.net.heartbeat.IDLE_S", 0.02)
    peer.handler = lambda request: b"result 500 0 %d\r\n" % opaque_of(request)
    connection = Connection.open(peer.url, 60)
    wait_until(lambda: connection.is_broken)
    connection.close()
    wait_until(lambda: len(peer.received) == 3)


def test_a_peer_that_hangs_up_on_a_request(peer: Peer, connection: Connection) -> None:
    peer.handler = lambda request: HANG_UP
    with pytest.raises(ConnectionLost):
        connection.submit(put()).wait(60)


def test_an_answer_of_the_wrong_kind_is_a_broken_protocol() -> None:
    with pytest.raises(RemoteProtocolError, match="put x: answered with messages"):
        checked_result(Value(b"", 1), "put x")
    with pytest.raises(RemoteProtocolError, match="get x: answered with a result"):
        checked_value(Result(200, b"", 1), "get x")


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def test_an_interrupt_in_the_middle_of_sending_breaks_the_connection() -> None:
    """Half a command is out: whatever followed it would be read as the rest of it."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    def interrupt_sender(accepted: socket.socket, sender: int) -> None:
        accepted.recv(1)  # and nothing more
        signal.pthread_kill(sender, signal.SIGUSR1)

    with socket.create_server(("127.0.0.1", 0)) as deaf:
        connection = Connection.open(BrokerUrl("127.0.0.1", deaf.getsockname()[1]), 60)
        accepted, _ = deaf.accept()
        former = signal.signal(signal.SIGUSR1, interrupt)
        interrupting = threading.Thread(target=interrupt_sender, args=(accepted, threading.get_ident()))
        interrupting.start()
        try:
            request = put(bytes(64 * 1024 * 1024))
            with pytest.raises(KeyboardInterrupt):
                connection.submit(request)
            assert connection.is_broken
            with pytest.raises(NotConnected):
                connection.submit(put())
        finally:
            connection.close()
            interrupting.join()
            signal.signal(signal.SIGUSR1, former)
            accepted.close()


def answered(connection: Connection) -> None:
    connection.submit(put()).wait(60)


def test_an_interrupt_at_any_moment_leaves_the_connection_to_others_or_breaks_it(peer: Peer) -> None:
    """The thread that was interrupted neither reads nor sends any more."""
    for nth in itertools.count():
        connection = Connection.open(peer.url, 60)
        try:
            is_interrupted = interrupted(nth, partial(answered, connection), within="meta_client/net")
            with ThreadPoolExecutor(1) as other, contextlib.suppress(ConnectionLost, NotConnected):
                assert isinstance(other.submit(connection.submit, put()).result().wait(60), Result), nth
        finally:
            connection.close()
        assert not connection._reader.is_alive(), nth
        if not is_interrupted:
            break
    assert nth > 40
