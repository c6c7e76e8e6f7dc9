"""Makes the next segment, in a thread before it is needed.

Making one takes as long as writing all of it, and the first write to a block that is only allocated costs the disk
twice (docs/performance.md): no put must wait for either.
"""

import logging
import threading

from journal.errors import StorageFailed
from journal.wal.reserve import Reserve, is_full, remove_part
from journal.wal.storage import TMP_SUFFIX, Storage
from journal.wal.storage_file import StorageFile

log = logging.getLogger(__name__)


class SegmentPreallocator:
    """Preallocates at most one file. One owner thread: the one that rolls."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._name = ""
        self._thread: threading.Thread | None = None
        self._skip_prezero = threading.Event()
        self._file: StorageFile | None = None  # owned by the thread until that ends
        self.failure: StorageFailed | None = None  # of the last attempt; any thread may read it
        self.may_retry = False  # set by any thread: a failed attempt is repeated, and counts no more

    @property
    def is_started(self) -> bool:
        """True if one is begun, or failed and must not be retried yet."""
        return self._thread is not None and not (self.failure is not None and self.may_retry)

    def start(self, name: str, size: int, head: bytes, *, prezero: bool) -> None:
        """Start to make *name*, with its zeros written out if *prezero*. Returns at once."""
        assert not self.is_started
        if self._thread is not None:
            self._thread.join()
        self.failure, self.may_retry = None, False
        self._name = name
        if prezero:
            self._skip_prezero.clear()
        else:
            self._skip_prezero.set()
        self._thread = threading.Thread(target=self._make, args=(name, size, head), name="segment-maker", daemon=True)
        self._thread.start()

    def make(self, name: str, size: int, head: bytes, reserve: Reserve) -> StorageFile:
        """Return the file under its name, durable: the preallocated one, or a new one. On a full disk gives up
        *reserve* for it. Raises StorageFailed."""
        if (file := self.collect(name)) is not None:
            try:
                self._storage.rename_into_place(name)
            except StorageFailed:
                file.close()
                raise
            return file
        try:
            return self._storage.create(name, size, head)
        except StorageFailed as error:
            if not is_full(error):
                raise
            remove_part(self._storage, name + TMP_SUFFIX)
            if not reserve.give_up():
                raise
            # Like a failed preallocation: new messages are refused from now on, not only after half of this segment.
            self.failure, self.may_retry = error, False
        return self._storage.create(name, size, head)

    def collect(self, name: str) -> StorageFile | None:
        """Return the file, durable except for its name; None if it was not begun, or could not be made.

        Waits for the thread, which then skips prezeroing.
        """
        if self._thread is None:
            return None
        assert name == self._name
        self._skip_prezero.set()
        self._thread.join()
        self._thread = self.failure = None
        file, self._file = self._file, None
        return file

    def _make(self, name: str, size: int, head: bytes) -> None:
        try:
            self._file = self._storage.preallocate(name, size, head, self._skip_prezero.is_set)
        except StorageFailed as error:
            # Not fatal: the roll makes the file itself, and stops the journal only if that fails too.
            log.warning("next segment not preallocated error=%s", error)
            remove_part(self._storage, name + TMP_SUFFIX)
            self.failure = error

    def close(self) -> None:
        """End the thread and delete its file. Idempotent."""
        if self._thread is None or (file := self.collect(self._name)) is None:
            return
        file.close()
        try:
            self._storage.remove(self._name + TMP_SUFFIX)
        except StorageFailed as error:
            log.warning("unused segment left for the next start to delete error=%s", error)
