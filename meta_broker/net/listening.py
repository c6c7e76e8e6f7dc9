"""Binds sockets to the addresses of a host."""

import errno
import socket
from typing import Any

from meta_broker.errors import CannotListen


def addresses_of(host: str, port: int) -> list[tuple[Any, ...]]:
    """Return all addresses of *host*, as getaddrinfo has them."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    return list(dict.fromkeys(found))


def bound(family: int, kind: int, protocol: int, address: tuple[Any, ...]) -> socket.socket:
    """Return a socket bound to *address*, not listening. Raises OSError and leaves nothing open."""
    taken = socket.socket(family, kind, protocol)
    try:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            taken.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        taken.bind(address)
    except OSError:
        taken.close()
        raise
    return taken


def cannot_listen(host: str, port: int, error: OSError) -> CannotListen:
    """Return the error for *error*, with its remedy."""
    if error.errno in (errno.EADDRINUSE, errno.EACCES):
        remedy = "stop what uses that port, or choose another with --port (0: any free one)"
    else:
        remedy = "set broker.host to a name or address of this machine"
    return CannotListen(f"cannot listen on {host}:{port}: {error.strerror or error}: {remedy}")
