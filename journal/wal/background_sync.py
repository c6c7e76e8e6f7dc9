"""Fsyncs in parallel with writes, for a journal that acknowledges before it fsyncs.

With `interval:<ms>` no reply waits for the fsync, so the writer must not block on it. What was written before a request
is durable once it is done; what is written meanwhile may be, and is not counted.
"""

import threading
import time
from collections.abc import Callable

from journal.errors import StorageFailed
from journal.records.header import Lsn
from journal.wal.storage_file import StorageFile


class BackgroundSync:
    """One thread that fsyncs one file at a time; `start` it once. `request` and `drain` are the writer's."""

    def __init__(
        self,
        on_synced: Callable[[Lsn], None],
        on_failed: Callable[[StorageFailed], None],
        took: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        """*took* is called with the seconds of each fsync."""
        self._on_synced = on_synced
        self._on_failed = on_failed
        self._took = took
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)  # the thread waits here for work, `drain` for its end
        self._wanted: tuple[StorageFile, Lsn] | None = None
        self._is_syncing = False
        self._failure: StorageFailed | None = None
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="journal-sync", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def request(self, file: StorageFile, end: Lsn) -> None:
        """Fsync *file* soon, which holds everything below *end*; then call *on_synced(end)*.

        Replaces a request that has not begun, which is for the same file. Returns at once. Raises StorageFailed.
        """
        with self._lock:
            self._raise_failure()
            assert self._wanted is None or self._wanted[0] is file, "drain() before another file"
            self._wanted = file, end
            self._changed.notify_all()

    def drain(self) -> None:
        """Wait until all requests are done and reported. Raises StorageFailed."""
        with self._lock:
            self._changed.wait_for(lambda: self._failure or not (self._wanted or self._is_syncing))
            self._raise_failure()

    def close(self) -> None:
        """End the thread after the fsync in progress; drops a request that has not begun. Idempotent."""
        with self._lock:
            self._is_closing = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        while (wanted := self._wait_for_request()) is not None:
            file, end = wanted
            began = time.monotonic()
            try:
                file.sync()
                self._took(time.monotonic() - began)
                self._on_synced(end)
            except StorageFailed as error:
                self._fail(error)
                return
            except BaseException as error:
                # The fsync thread ends here: later writes must not be acknowledged.
                self._fail(StorageFailed(f"the thread that fsyncs stopped: {error!r}"))
                raise
            self._settle_sync(None)

    def _fail(self, error: StorageFailed) -> None:
        self._settle_sync(error)
        self._on_failed(error)

    def _wait_for_request(self) -> tuple[StorageFile, Lsn] | None:
        with self._lock:
            self._changed.wait_for(lambda: self._wanted or self._is_closing)
            if self._is_closing:
                return None
            wanted, self._wanted = self._wanted, None
            self._is_syncing = True
            return wanted

    def _settle_sync(self, failure: StorageFailed | None) -> None:
        with self._lock:
            self._is_syncing = False
            self._failure = failure
            self._changed.notify_all()
