"""A part of a ZooKeeper's tree that belongs to one user: made empty, removed afterwards.

Tests and demos share one server this way; none sees another's nodes.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from kazoo.client import KazooClient


@dataclass(frozen=True, slots=True)
class Corner:
    """Where a corner is. *connect* is what its user connects to, ``HOST:PORT/chroot``."""

    connect: str


@contextlib.contextmanager
def corner(server_connect: str, name: str) -> Iterator[Corner]:
    """Make ``/name`` on the server, and remove it with all that was put there. Raises kazoo's errors."""
    client = KazooClient(server_connect)
    client.start()
    try:
        client.create(f"/{name}")
        yield Corner(f"{server_connect}/{name}")
        client.delete(f"/{name}", recursive=True)
    finally:
        client.stop()
        client.close()
