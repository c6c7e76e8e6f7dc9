"""Binds sockets to the addresses of a host."""

import errno
import socket
from typing import Any, Final

from meta_broker.errors import CannotListen

ANY_PORT_TRIES: Final = 20  # a port that is free at one address of a host may be taken at the next


def reserved(host: str, port: int) -> list[socket.socket]:
    """Return sockets bound to all addresses of *host* that this machine has, with one port; 0: any that is free. Raises
    CannotListen."""
    tries = 1 if port else ANY_PORT_TRIES
    while True:
        try:
            return _bound_to_all(host, port)
        except OSError as error:
            tries -= 1
            if error.errno != errno.EADDRINUSE or not tries:
                raise cannot_listen(host, port, error) from error


def _bound_to_all(host: str, port: int) -> list[socket.socket]:
    taken: list[socket.socket] = []
    absent: OSError | None = None
    try:
        for family, kind, protocol, _, address in addresses_of(host, port):
            try:
                taken.append(bound(family, kind, protocol, (address[0], port, *address[2:])))
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                absent = error  # e.g. an IPv6 address where IPv6 is off: others may work
            else:
                port = taken[-1].getsockname()[1]
        if absent is not None and not taken:
            raise absent
    except OSError:
        for each in taken:
            each.close()
        raise
    return taken


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
