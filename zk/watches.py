"""Watching children: an event says "something changed below PATH", reading again arms the next one.

ZooKeeper's watches fire once. That is all the coalescing there is: however much changes between an event and
the next read(), the owner hears of it once. No thread, no recipe.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from zk.session import ZooKeeperSession


@dataclass(frozen=True, slots=True)
class ChildrenChanged:
    """Children of *path* came or went, or the connection broke and nobody watches it now: read() it again."""

    path: str


class ChildrenWatches:
    """The watches of one owner. read() and stop() from its thread; *enqueue* is called on kazoo's thread and must
    only hand the event over.

    A broken connection fires every armed watch, so the owner that reads after each event, and again when the
    session is CONNECTED after a read failed, never misses a change.
    """

    def __init__(self, session: ZooKeeperSession, enqueue: Callable[[ChildrenChanged], None]) -> None:
        self._session = session
        self._enqueue = enqueue
        self._callbacks: dict[str, Callable[[Any], None]] = {}

    def read(self, path: str) -> list[str]:
        """The children of *path*, which is made when missing, and watch it from now on.

        Raises ZooKeeperUnavailable; the path may be watched or not then.
        """
        # kazoo keeps one entry per callable: reading twice with the same one does not fire twice.
        callback = self._callbacks.get(path)
        if callback is not None and (children := self._session.children(path, callback)):
            return children
        callback = self._callbacks.setdefault(path, partial(self._on_change, path))
        self._session.ensure(path)  # of what does not exist, nothing can be watched
        return self._session.children(path, callback)

    def forget(self, path: str) -> None:
        """Hear no more of *path*."""
        self._callbacks.pop(path, None)

    def stop(self) -> None:
        """Hear no more of anything. Idempotent."""
        self._callbacks.clear()

    def _on_change(self, path: str, event: Any) -> None:
        if path in self._callbacks:
            self._enqueue(ChildrenChanged(path))
