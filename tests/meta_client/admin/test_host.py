"""The admin port on loopback answers no page of a browser whose name was pointed at it."""

import socket

import pytest
from prometheus_client.registry import CollectorRegistry

from meta_client.admin.endpoint import AdminEndpoint
from meta_client.admin.health import Health
from meta_client.admin.host import may_ask_as
from meta_client.admin.server import AdminServer
from tests.meta_client.admin.test_server import ask

OWN = [
    "127.0.0.1",
    "127.0.0.1:9440",
    "localhost:9440",
    "LocalHost",
    "[::1]:9440",
    "[::1]",
    "10.0.0.7:1",  # of a tunnel or proxy
]
FOREIGN = [
    "evil.example",
    "evil.example:9440",
    "127.0.0.1.evil.example",
    "localhost.evil.example",
    "evil.localhost",
    "127.0.0.1,evil.example",  # two headers
    "evil.example@127.0.0.1",
    "127.0.0.1:9440:9440",
    "127.0.0.1:evil",
    "[evil.example]",
    "[127.0.0.1]",
    "[::1]evil.example",
    "::1",
    "",
    ":9440",
    "[",
    "12\u0667.0.0.1",
]
PATHS = ["/metrics", "/health/live", "/health/ready", "/"]


@pytest.mark.parametrize("header", OWN)
@pytest.mark.parametrize("at", ["127.0.0.1", "::1", "0.0.0.0"])
def test_addresses_and_localhost_are_answered(header: str, at: str) -> None:
    assert may_ask_as(header, at)


@pytest.mark.parametrize("header", FOREIGN)
def test_other_names_are_answered_elsewhere_than_on_loopback_alone(header: str) -> None:
    assert not may_ask_as(header, "127.0.0.1")
    assert not may_ask_as(header, "::1")
    assert may_ask_as(header, "10.0.0.7")
    assert may_ask_as(header, "0.0.0.0")


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    "at", ["127.0.0.1", "localhost", pytest.param("::1", marks=pytest.mark.skipif(not has_ipv6(), reason="no IPv6"))]
)
def test_a_port_on_loopback_tells_a_page_of_another_name_nothing(at: str) -> None:
    endpoint = AdminEndpoint(CollectorRegistry(), Health, lambda: Health(("a secret reason",)))
    with AdminServer(at, 0, endpoint) as admin:
        for path in PATHS:
            get = b"GET %s HTTP/1.1\r\n" % path.encode()
            refused = ask(admin, get + b"Host: evil.example:9440\r\n\r\n", at)
            assert refused.splitlines()[0] == b"HTTP/1.0 421 Misdirected Request", (path, refused)
            assert b"by its IP address or as localhost" in refused
            assert b"secret" not in refused
            assert b" 421 " in ask(admin, get + b"Host: localhost\r\nHost: evil.example\r\n\r\n", at)
            for own in (b"Host: localhost\r\n", b"Host: 127.0.0.1:1\r\n", b""):
                assert b" 421 " not in ask(admin, get + own + b"\r\n", at), (path, own)


def test_a_port_that_others_reach_answers_to_any_name() -> None:
    with AdminServer("0.0.0.0", 0, AdminEndpoint(CollectorRegistry(), Health, Health)) as admin:
        assert b" 200 " in ask(admin, b"GET /health/live HTTP/1.1\r\nHost: broker-0.example\r\n\r\n")
