"""Disk space reserved for writes that must succeed on a full disk: a file that is deleted then.

It has room for a segment, checkpoints and indexes. A roll on a full disk deletes it, also during a start; retention
does so to free the disk. A broker with a reserve refuses new messages before it is needed.
"""

import errno
import logging
import threading
from typing import Final

from journal.errors import StorageFailed
from journal.wal.storage import TMP_SUFFIX, Storage

log = logging.getLogger(__name__)

_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_STEM: Final = "reserve"
NAME: Final = _STEM + TMP_SUFFIX


def is_full(error: StorageFailed) -> bool:
    """Return True for a full disk, which may recover, False for one that fails."""
    return error.errno in _FULL


class Reserve:
    """The reserve of one directory. Any thread."""

    def __init__(self, storage: Storage, size: int) -> None:
        self.size = size
        self.is_held = False  # false too before `find`
        self._storage = storage
        self._lock = threading.Lock()

    def find(self) -> bool:
        """Adopt the file of an earlier process, if it exists. Raises StorageFailed."""
        with self._lock:
            if NAME in self._storage.names():
                file = self._storage.open(NAME, writable=False)
                self.is_held = file.size == self.size
                file.close()
            return self.is_held

    def make(self) -> None:
        """Make the file. Raises StorageFailed and leaves none."""
        with self._lock:
            try:
                self._storage.preallocate(_STEM, self.size, b"", lambda: True).close()
            except StorageFailed:
                remove_part(self._storage, NAME)
                raise
            self.is_held = True

    def give_up(self) -> bool:
        """Delete the file. Returns False if there is none. Raises StorageFailed."""
        with self._lock:
            self.is_held = False
            if NAME not in self._storage.names():
                return False
            file = self._storage.open(NAME, writable=False)
            size = file.size
            file.close()
            self._storage.remove(NAME)
            log.warning("reserve given up bytes=%d: the disk of %s is full", size, self._storage.path)
            return True


def remove_part(storage: Storage, name: str) -> None:
    """Delete the rest of a file that could not be made: it may hold the last free space."""
    try:
        if name in storage.names():
            storage.remove(name)
    except StorageFailed as error:
        log.warning("part of a file left for the next start to delete error=%s", error)
