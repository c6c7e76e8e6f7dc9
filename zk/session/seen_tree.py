"""Tells that the tree of a ZooKeeper was replaced: emptied, restored to an earlier time, or another ensemble's.

The creation of the tree's root, by change and time, tells trees apart. One that was restored has the same root: its
servers have seen fewer changes than a client has, which the keeper of the session's lease finds.
"""

import logging
import threading
from typing import Any

_log = logging.getLogger(__name__)


class SeenTree:
    """The tree that a session sees. Any thread."""

    def __init__(self, connect: str, root: str) -> None:
        self.root = root or "/"
        self._connect = connect
        self._lock = threading.Lock()  # guards the rest
        self._created: tuple[int, int] | None = None  # its root; None: unknown, or there is none
        self._replaced = 0

    @property
    def replaced(self) -> int:
        """Count of replacements that were seen."""
        return self._replaced

    def saw(self, stat: Any) -> None:
        """Note the root's *stat*, kazoo's; None: there is no root."""
        created = None if stat is None else (stat.czxid, stat.ctime)
        with self._lock:
            former, self._created = self._created, created
            if former in (None, created):
                return
            self._replaced += 1
        _log.error(
            "%s in ZooKeeper is another tree than before, or empty: a group's offsets, in-sync sets and decisions may "
            "be gone connect=%s",
            *(self.root, self._connect),
        )

    def went_back(self) -> None:
        """Note that ZooKeeper lost changes, or is another one."""
        with self._lock:
            self._created = None
            self._replaced += 1
