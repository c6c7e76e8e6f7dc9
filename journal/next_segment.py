"""The segment after the current one, made by a thread of its own before it is needed.

Making one takes as long as writing all of it, and the first write to a block that is only allocated costs the
disk twice (docs/performance.md): neither may happen while a put waits.
"""

import logging
import threading

from journal.errors import StorageFailed
from journal.reserve import remove_part
from journal.storage import PREPARED_SUFFIX, Storage, StorageFile

log = logging.getLogger(__name__)


class NextSegment:
    """One file in the making, at most. One owner thread: whoever rolls."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._name = ""
        self._thread: threading.Thread | None = None
        self._hurried = threading.Event()
        self._file: StorageFile | None = None  # the thread's until it has ended
        self.failure: StorageFailed | None = None  # of the one that was begun last; any thread may look
        self.may_retry = False  # set by any thread: begin again what failed

    @property
    def is_begun(self) -> bool:
        """Or failed, and not to be tried again yet."""
        return self._thread is not None and not (self.failure is not None and self.may_retry)

    def begin(self, name: str, size: int, head: bytes, *, warm: bool) -> None:
        """Start to make *name*, with its zeros written out if *warm*. Returns at once."""
        assert not self.is_begun
        if self._thread is not None:
            self._thread.join()
        self.failure, self.may_retry = None, False
        self._name = name
        if warm:
            self._hurried.clear()
        else:
            self._hurried.set()
        self._thread = threading.Thread(target=self._make, args=(name, size, head), name="segment-maker", daemon=True)
        self._thread.start()

    def take(self, name: str) -> StorageFile | None:
        """The file, durable but for its name; None when it was not begun, or could not be made.

        Waits for the thread, which then skips what only saves time.
        """
        if self._thread is None:
            return None
        assert name == self._name
        self._hurried.set()
        self._thread.join()
        self._thread = self.failure = None
        file, self._file = self._file, None
        return file

    def _make(self, name: str, size: int, head: bytes) -> None:
        try:
            self._file = self._storage.prepare(name, size, head, self._hurried.is_set)
        except StorageFailed as error:
            # Nothing is lost yet. The roll makes the file itself, and if that fails too the journal stops.
            log.warning("next segment not made ahead error=%s", error)
            remove_part(self._storage, name + PREPARED_SUFFIX)
            self.failure = error

    def close(self) -> None:
        """End the thread and delete what it made. Idempotent."""
        if self._thread is None or (file := self.take(self._name)) is None:
            return
        file.close()
        try:
            self._storage.remove(self._name + PREPARED_SUFFIX)
        except StorageFailed as error:
            log.warning("unused segment left for the next start to delete error=%s", error)
