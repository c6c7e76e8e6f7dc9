"""A temporary chroot: created empty, removed afterwards. Lets tests and demos share one server in isolation."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from kazoo.client import KazooClient

SESSION_TIMEOUT_S = 60.0  # must outlive a machine that stalls: at the end the nodes are still to be removed


@dataclass(frozen=True, slots=True)
class Chroot:
    """An existing chroot. *connect* is its connect string, ``HOST:PORT/chroot``."""

    connect: str


@contextlib.contextmanager
def chroot(server_connect: str, name: str) -> Iterator[Chroot]:
    """Make ``/name`` on the server; remove it with its contents on exit. Raises kazoo's errors."""
    client = KazooClient(server_connect, timeout=SESSION_TIMEOUT_S)
    client.start(SESSION_TIMEOUT_S)
    try:
        client.create(f"/{name}")
        yield Chroot(f"{server_connect}/{name}")
        client.delete(f"/{name}", recursive=True)
    finally:
        client.stop()
        client.close()
