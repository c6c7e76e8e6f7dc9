"""Ephemeral nodes that claim an id for this session.

A claim can be repeated: after a lost reply, after the session expired, or by a process that restarts before the session
of its crashed predecessor expired.
"""

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from zk.errors import ZooKeeperError, ZooKeeperUnavailable
from zk.session.session import ZooKeeperSession
from zk.tree.transactions import Create, Remove

EXPIRY_SLACK_S = 3.0  # a server expires sessions on its ticks, 2 s by default, not on the dot
POLL_S = 0.1
TAKE_OVER_ATTEMPTS = 10  # the former session may remove the node meanwhile


@dataclass(frozen=True, slots=True)
class NodeHolder:
    """Another session that holds the wanted node, and the node's data."""

    data: bytes
    session_id: int


def claim(session: ZooKeeperSession, path: str, data: bytes) -> NodeHolder | None:
    """Make *path* an ephemeral node of this session with exactly *data*. Returns its holder if another session has it.

    Replaces a node of this session that has other data instead of changing it: peers watch children, not data.
    """
    while not session.create(path, data, ephemeral=True):
        if (node := session.read(path)) is None:  # it went meanwhile
            continue
        if node.session_id != session.session_id:
            return NodeHolder(node.data, node.session_id)
        if node.data == data:
            return None
        if _replace(session, path, data, node.version):
            return None
    return None


def _replace(session: ZooKeeperSession, path: str, data: bytes, version: int) -> bool:
    """Replace a node in one transaction: a peer that reads children meanwhile finds the former node or the new one.

    Returns False if it is not at *version* (-1: any), or can't be deleted.
    """
    outcomes = session.transact_many([(Remove(path, version), Create(path, data, ephemeral=True))])
    return outcomes == [None]


def take_over(session: ZooKeeperSession, path: str, data: bytes) -> None:
    """Claim a node that belongs to this process: delete another session's, left by a crash.

    Raises ZooKeeperError if it cannot be deleted.
    """
    for _ in range(TAKE_OVER_ATTEMPTS):
        if claim(session, path, data) is None or _replace(session, path, data, -1):
            return
    raise ZooKeeperError(f"{path} in ZooKeeper can't be replaced: delete it, and what is below it")


def claim_waiting(
    session: ZooKeeperSession,
    path: str,
    data: bytes,
    *,
    progress: Callable[[NodeHolder, float], None],
    cancelled: threading.Event,
) -> NodeHolder | None:
    """Claim *path*, waiting one session timeout for a holder that may be dead.

    Calls *progress* once with the holder and the seconds to wait at most; returns early once *cancelled* is set. Raises
    ZooKeeperUnavailable as soon as the connection breaks: a request would ignore *cancelled* until the next one.
    """
    wait_s = session.session_timeout_s + EXPIRY_SLACK_S
    deadline: float | None = None
    while (holder := claim(session, path, data)) is not None:
        if deadline is None:
            deadline = time.monotonic() + wait_s
            progress(holder, wait_s)
        if time.monotonic() >= deadline or cancelled.wait(POLL_S):
            return holder
        if not session.is_connected:
            raise ZooKeeperUnavailable(
                f"the connection to ZooKeeper at {session.connect} broke while {path} was waited for: is it running?"
            )
    return None


def release(session: ZooKeeperSession, path: str) -> bool:
    """Delete *path* if this session made it. Returns False if it is missing or a successor's."""
    node = session.read(path)
    return node is not None and node.session_id == session.session_id and session.delete(path, node.version)


def release_many(session: ZooKeeperSession, paths: Collection[str]) -> None:
    """Delete those of *paths* that this session made; pipelined."""
    found, own = session.read_many(paths), session.session_id
    # A refused removal means that the node has a new owner.
    session.transact_many([(Remove(path, node.version),) for path, node in found.items() if node.session_id == own])
