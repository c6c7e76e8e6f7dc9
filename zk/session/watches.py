"""Watches on children: an event reports a change below a path, and the next read() sets the watch again.

ZooKeeper's watches fire once, so all changes between two reads cause one event.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from zk.session.session import ZooKeeperSession


@dataclass(frozen=True, slots=True)
class ChildrenChanged:
    """Children of *path* came or went, or the connection and its watch were lost: read() it again."""

    path: str


class ChildrenWatches:
    """The watches of one owner. Call read() and stop() from its thread; *enqueue* runs on kazoo's thread and must only
    hand the event over.

    A broken connection fires every watch that is set. So an owner that reads after each event, and again on CONNECTED
    if a read failed, misses no change.
    """

    def __init__(self, session: ZooKeeperSession, enqueue: Callable[[ChildrenChanged], None]) -> None:
        self._session = session
        self._enqueue = enqueue
        self._callbacks: dict[str, Callable[[Any], None]] = {}

    def read(self, path: str) -> list[str]:
        """Return the children of *path* and watch it; makes it if missing.

        After ZooKeeperUnavailable, the path may be watched or not.
        """
        # kazoo keeps one entry per callable: reading twice with the same one does not fire twice.
        callback = self._callbacks.get(path)
        if callback is not None and (children := self._session.children(path, callback)):
            return children
        callback = self._callbacks.setdefault(path, partial(self._on_change, path))
        self._session.ensure(path)  # a missing node's children cannot be watched
        return self._session.children(path, callback)

    def stop(self) -> None:
        """Deliver no more events. Idempotent."""
        self._callbacks.clear()

    def _on_change(self, path: str, event: Any) -> None:
        if path in self._callbacks:
            self._enqueue(ChildrenChanged(path))
