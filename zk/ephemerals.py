"""Ephemeral nodes as claims: a node that says who is here, gone when its session is.

A claim can be repeated: after a lost answer, after an expired session, or by a process that crashed and is
back before ZooKeeper noticed.
"""

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from zk.errors import ZooKeeperError, ZooKeeperUnavailable
from zk.session import ZooKeeperSession
from zk.transactions import Remove

EXPIRY_SLACK_S = 3.0  # a server expires sessions on its ticks, 2 s by default, not on the dot
POLL_S = 0.1
TAKE_ATTEMPTS = 10  # of one node, which a former session may be about to leave


@dataclass(frozen=True, slots=True)
class Holder:
    """Another session that holds the node we want, and what it wrote there."""

    data: bytes
    session_id: int


def claim(session: ZooKeeperSession, path: str, data: bytes) -> Holder | None:
    """Make *path* an ephemeral node of this session with exactly *data*: None when it is, else who holds it.

    A node of our own with other data is made anew, not changed: peers watch for children, not for data.
    """
    while not session.create(path, data, ephemeral=True):
        if (node := session.read(path)) is None:
            continue  # it went away between the two questions
        if node.session_id != session.session_id:
            return Holder(node.data, node.session_id)
        if node.data == data:
            return None
        session.delete(path, node.version)
    return None


def take(session: ZooKeeperSession, path: str, data: bytes) -> None:
    """As claim, for a node that is ours by right: another session's is deleted, it is what we left at a crash.

    Raises ZooKeeperError when that can't be deleted.
    """
    for _ in range(TAKE_ATTEMPTS):
        if claim(session, path, data) is None:
            return
        session.delete(path)
    raise ZooKeeperError(f"{path} in ZooKeeper can't be replaced: delete it, and what is below it")


def claim_waiting(
    session: ZooKeeperSession,
    path: str,
    data: bytes,
    *,
    progress: Callable[[Holder, float], None],
    cancelled: threading.Event,
) -> Holder | None:
    """As claim, but give a holder that may be dead already one session timeout to disappear.

    Calls *progress* once with the holder and the seconds it may take; ends early when *cancelled* is set. Raises
    ZooKeeperUnavailable as soon as the connection is gone: a request would wait for another one, cancelled or not.
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
    """Delete *path* if this session made it; False when it is missing or a successor's."""
    node = session.read(path)
    return node is not None and node.session_id == session.session_id and session.delete(path, node.version)


def release_many(session: ZooKeeperSession, paths: Collection[str]) -> None:
    """As release, pipelined."""
    found, own = session.read_many(paths), session.session_id
    # One that is refused has changed hands.
    session.transact_many([(Remove(path, node.version),) for path, node in found.items() if node.session_id == own])
