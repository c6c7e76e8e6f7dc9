"""The admin port's HTTP server: bounded in connections, time and bytes; the port is its own, and gone with it."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from prometheus_client.registry import CollectorRegistry

from meta_client.admin import server as server_module
from meta_client.admin.endpoint import AdminEndpoint
from meta_client.admin.families import Family, MetricKind, Sample, SampleCollector
from meta_client.admin.health import Health
from meta_client.admin.server import CONNECTIONS_MAX, HEAD_BYTES_MAX, THREADS_MAX, AdminServer, CannotServe
from tests.fixtures.scrape import Scrape, health, wait_for

NUMBER = Family("metaq_test_number", MetricKind.GAUGE, "A number.")


class Process:
    """One question: *value* None is unknown."""

    def __init__(self) -> None:
        self.value: float | None = 3.0
        self.why_not: tuple[str, ...] = ()
        self.is_asked = threading.Event()
        self.may_answer = threading.Event()
        self.may_answer.set()

    def samples(self) -> Iterator[Sample]:
        self.is_asked.set()
        assert self.may_answer.wait(60)
        yield Sample(NUMBER, self.value)

    def health(self) -> Health:
        return Health(self.why_not, {"role": "test"})


@pytest.fixture
def process() -> Process:
    return Process()


@pytest.fixture
def admin(process: Process) -> Iterator[AdminServer]:
    registry = CollectorRegistry()
    registry.register(SampleCollector(process.samples))
    with AdminServer("127.0.0.1", 0, AdminEndpoint(registry, process.health, process.health)) as server:
        yield server
    process.may_answer.set()


def connected(admin: AdminServer, host: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection((host, admin.port), timeout=60)


def ask(admin: AdminServer, request: bytes, host: str = "127.0.0.1") -> bytes:
    """Send *request* and read to the end of the connection."""
    with connected(admin, host) as peer:
        peer.sendall(request)
        return read_all(peer)


def read_all(peer: socket.socket) -> bytes:
    found = b""
    with contextlib.suppress(ConnectionError):
        while chunk := peer.recv(65536):
            found += chunk
    return found


def test_a_known_number_is_exported_and_an_unknown_one_is_absent(admin: AdminServer, process: Process) -> None:
    assert Scrape(admin.url).get("metaq_test_number") == 3
    process.value = None
    assert Scrape(admin.url).families == set()


def test_health_says_why_not(admin: AdminServer, process: Process) -> None:
    assert health(admin.url, "ready") == (200, {"ready": True, "why_not": [], "role": "test"})
    process.why_not = ("it starts",)
    assert health(admin.url, "ready") == (503, {"ready": False, "why_not": ["it starts"], "role": "test"})
    assert health(admin.url, "live") == (503, {"live": False, "why_not": ["it starts"], "role": "test"})


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /nothing HTTP/1.1", b"404"),
        (b"GET / HTTP/1.0", b"404"),
        (b"POST /metrics HTTP/1.1", b"405"),
        (b"HEAD /health/live HTTP/1.1", b"405"),
        (b"GET /metrics?name[]=metaq_test_number HTTP/1.1", b"200"),
        (b"GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text; version=1.x.0", b"200"),
        (b"nonsense", b"400"),
        (b"GET /health/live HTTP/9.9.9", b"400"),
        (b"\xff\xfe\x00 \x00", b"400"),
    ],
)
def test_any_request_has_an_answer_and_an_end(admin: AdminServer, request_line: bytes, status: bytes) -> None:
    answer = ask(admin, request_line + b"\r\n\r\n")
    assert status in answer.splitlines()[0] or b"Error code: " + status in answer, answer
    assert health(admin.url, "live")[0] == 200


def test_a_long_head_is_not_read(admin: AdminServer) -> None:
    """Beyond HEAD_BYTES_MAX the request counts as it is."""
    endless = b"GET /health/live HTTP/1.1\r\n" + b"".join(b"X-%d: %s\r\n" % (n, bytes(1000)) for n in range(90))
    assert len(endless) > HEAD_BYTES_MAX
    assert len(ask(admin, endless)) < 1000  # an answer, or the reset of a connection with unread bytes
    ask(admin, b"G" * (8 * HEAD_BYTES_MAX))
    assert health(admin.url, "live")[0] == 200


def test_requests_that_are_never_finished_keep_nobody_out(admin: AdminServer) -> None:
    """More of them than there may be connections: the oldest is ended each time, and its thread with it."""
    others = threading.active_count()
    with contextlib.ExitStack() as stack:
        peers = [stack.enter_context(connected(admin)) for _ in range(3 * CONNECTIONS_MAX)]
        for peer in peers:
            with contextlib.suppress(ConnectionError):
                peer.sendall(b"GET /metr")
        assert Scrape(admin.url).get("metaq_test_number") == 3
        assert read_all(peers[0]) == b""
        wait_for(threading.active_count, lambda count: count <= others + CONNECTIONS_MAX)


@pytest.mark.parametrize(
    "half", [b"GET /metrics HTTP/1.1", b"GET /metrics HTTP/1.1\r\n", b"GET /metrics HTTP/1.1\r\nHost: h\r\n"]
)
def test_half_a_request_is_not_carried_out(half: bytes, admin: AdminServer) -> None:
    """As of one that is ended for a newer one: scrapes that nobody waits for would keep out those of others."""
    with connected(admin) as peer:
        peer.sendall(half)
        peer.shutdown(socket.SHUT_WR)
        assert read_all(peer) == b""


def test_a_slow_request_is_ended(admin: AdminServer, process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that sends a byte now and then is ended, too."""
    monkeypatch.setattr(server_module, "REQUEST_S_MAX", 0.3)
    with connected(admin) as peer:
        with contextlib.suppress(ConnectionError):
            while True:  # until the server ends it
                peer.sendall(b"G")
                time.sleep(0.01)
        assert read_all(peer) == b""
    assert Scrape(admin.url).get("metaq_test_number") == 3


def test_a_scrape_that_hangs_does_not_pile_up(
    admin: AdminServer, process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one is told so, and health answers."""
    monkeypatch.setattr("meta_client.admin.endpoint.SCRAPE_S_MAX", 0.01)
    process.may_answer.clear()
    with connected(admin) as first:
        first.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert process.is_asked.wait(60)
        assert b"503" in ask(admin, b"GET /metrics HTTP/1.0\r\n\r\n").splitlines()[0]
        assert health(admin.url, "live")[0] == 200
        process.may_answer.set()
        assert b"metaq_test_number 3.0" in read_all(first)


def test_scrapes_that_nobody_waits_for_do_not_pile_up(admin: AdminServer, process: Process) -> None:
    """Hundreds of them, whose connections are gone, while one hangs: few threads, and health answers."""
    process.may_answer.clear()
    before = threading.active_count()
    with connected(admin) as first:
        first.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert process.is_asked.wait(60)
        most = 0
        for _ in range(300):
            with connected(admin) as peer, contextlib.suppress(ConnectionError):
                peer.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
            most = max(most, threading.active_count() - before)
        assert health(admin.url, "live")[0] == 200
        assert most <= THREADS_MAX
        process.may_answer.set()


def test_a_token_is_asked_for(process: Process) -> None:
    """Of metrics, and of the reasons of health; whether it is healthy everybody may know."""
    process.why_not = ("a secret reason",)
    registry = CollectorRegistry()
    registry.register(SampleCollector(process.samples))
    endpoint = AdminEndpoint(registry, process.health, process.health, lambda said: said == "Bearer right")
    with AdminServer("127.0.0.1", 0, endpoint) as admin:
        for header in (b"", b"Authorization: Bearer wrong\r\n", b"Authorization: Basic cmlnaHQ=\r\n"):
            refused = ask(admin, b"GET /metrics HTTP/1.0\r\n" + header + b"\r\n")
            assert refused.startswith(b"HTTP/1.0 401 ")
            assert b"WWW-Authenticate: Bearer" in refused
            assert b"metaq_test_number" not in refused
        assert health(admin.url, "ready") == (503, {"ready": False, "why_not": ["ask with the token"]})
        right = b" HTTP/1.0\r\nAuthorization: Bearer right\r\n\r\n"
        assert b"metaq_test_number 3.0" in ask(admin, b"GET /metrics" + right)
        assert b"a secret reason" in ask(admin, b"GET /health/live" + right)


def test_a_failing_scrape_is_an_error_in_the_log_and_of_that_scrape(
    admin: AdminServer, process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    process.value = "not a number"  # type: ignore[assignment]
    assert b"500" in ask(admin, b"GET /metrics HTTP/1.0\r\n\r\n").splitlines()[0]
    assert "scrape failed" in caplog.text
    process.value = 4.0
    assert Scrape(admin.url).get("metaq_test_number") == 4


def test_a_port_that_is_taken_is_an_error_that_names_the_option(admin: AdminServer, process: Process) -> None:
    endpoint = AdminEndpoint(CollectorRegistry(), process.health, process.health)
    with pytest.raises(CannotServe, match=f"127.0.0.1:{admin.port}: Address already in use: .* with --admin-port"):
        AdminServer("127.0.0.1", admin.port, endpoint)
    with pytest.raises(CannotServe, match="name an address of this machine"):
        AdminServer("203.0.113.1", 0, endpoint)


def test_closing_ends_a_scrape_and_frees_the_port(admin: AdminServer, process: Process) -> None:
    process.may_answer.clear()
    with connected(admin) as peer:
        peer.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert process.is_asked.wait(60)
        admin.close()
        assert read_all(peer) == b""
    endpoint = AdminEndpoint(CollectorRegistry(), process.health, process.health)
    with AdminServer("127.0.0.1", admin.port, endpoint) as again:
        assert health(again.url, "live")[0] == 200
    admin.close()  # idempotent


def test_a_forked_child_does_not_hold_the_port(admin: AdminServer, process: Process) -> None:
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.close(writing)
        os.read(reading, 1)  # until the parent has closed its end
        os._exit(0)
    os.close(reading)
    try:
        assert health(admin.url, "live")[0] == 200
        admin.close()  # whether the child has run yet or not
        endpoint = AdminEndpoint(CollectorRegistry(), process.health, process.health)
        with AdminServer("127.0.0.1", admin.port, endpoint) as again:
            assert health(again.url, "live")[0] == 200
    finally:
        os.close(writing)
        assert os.waitpid(child, 0)[1] == 0


def test_a_copy_of_its_socket_does_not_hold_the_port(admin: AdminServer, process: Process) -> None:
    """A child has such a copy that was forked and did not run yet, or is about to execute a program."""
    with socket.socket(fileno=os.dup(admin._server.fileno())):
        admin.close()
        with AdminServer("127.0.0.1", admin.port, AdminEndpoint(CollectorRegistry(), process.health, process.health)):
            pass
