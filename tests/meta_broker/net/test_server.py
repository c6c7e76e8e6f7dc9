"""Taking the address: before anything else, on every address of the host, or not at all."""

import asyncio
import socket
from typing import Any

import pytest

from journal.errors import StorageFailed
from meta_broker.errors import CannotListen
from meta_broker.net import listening
from meta_broker.net.server import Server

OWN = ("127.0.78.1", "127.0.78.2")  # no other test binds them: what is free at one is free at the other


def nobody_cares(error: StorageFailed) -> None:
    raise AssertionError(error)


def addresses(*hosts: str) -> object:
    def found(host: str, port: int) -> list[tuple[object, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (each, port)) for each in hosts]

    return found


async def reserve(host: str, port: int) -> int:
    server = Server(asyncio.get_running_loop(), nobody_cares)
    try:
        return server.reserve(host, port)
    finally:
        await server.close()


def test_a_reserved_port_is_taken_and_lets_nobody_in() -> None:
    async def story() -> None:
        server = Server(asyncio.get_running_loop(), nobody_cares)
        port = server.reserve("127.0.0.1", 0)
        with socket.socket() as client, pytest.raises(ConnectionRefusedError):
            client.connect(("127.0.0.1", port))
        await server.close()
        assert await reserve("127.0.0.1", port) == port

    asyncio.run(story())


def test_an_address_that_is_not_here_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "addresses_of", addresses("203.0.113.1", "127.0.0.1", "127.0.0.2"))
    assert asyncio.run(reserve("two", 0)) > 0
    monkeypatch.setattr(listening, "addresses_of", addresses("203.0.113.1", "203.0.113.2"))
    with pytest.raises(
        CannotListen, match=r"cannot listen on none:0: Cannot assign requested address: set broker\.host"
    ):
        asyncio.run(reserve("none", 0))


def test_any_free_port_is_free_at_every_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first address gives a port that another program has at the second: another one is taken."""
    monkeypatch.setattr(listening, "addresses_of", addresses("127.0.0.1", "127.0.0.2"))
    bound, others = listening.bound, list[socket.socket]()

    def just_after_another(family: int, kind: int, protocol: int, address: tuple[Any, ...]) -> socket.socket:
        if address[0] == "127.0.0.2" and len(others) < 3:
            others.append(socket.create_server(address[:2]))
        return bound(family, kind, protocol, address)

    monkeypatch.setattr(listening, "bound", just_after_another)
    port = asyncio.run(reserve("two", 0))
    assert port not in [other.getsockname()[1] for other in others]
    assert len(others) == 3
    for other in others:
        other.close()


def test_one_address_in_use_is_enough_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "addresses_of", addresses(*OWN))
    with socket.create_server((OWN[1], 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotListen, match=f"cannot listen on two:{port}: Address already in use: stop what uses"):
            asyncio.run(reserve("two", port))
        assert asyncio.run(reserve("127.0.0.1", 0)) > 0
    assert asyncio.run(reserve("two", port)) == port
