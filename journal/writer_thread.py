"""The thread that writes a journal: it takes all that is queued, writes it, fsyncs once, and tells.

Owner rules. Owners (any thread, under the lock) queue; the writer writes, moves `written` and `flushed`, and tells
`on_progress`. The writer is this thread, or an event loop at the end of its turn (see `turns`): whoever is at work, one
at a time. With `interval` it is BackgroundSync that syncs, but for the end of a segment and of the journal. A failed
write or fsync is final: the kernel may have dropped the pages and a retry could "succeed" over lost bytes.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from journal.background_sync import BackgroundSync
from journal.errors import JournalClosed, StorageFailed
from journal.flush_mode import FlushMode
from journal.frame import Lsn
from journal.segments import Segments
from journal.storage import Buffer, StorageFile
from journal.turns import BYTES_MAX, DiskPace, Turns

# Taken from the queue for one write. Below, fsync dominates; above, everybody waits while everybody's bytes are
# written, and then all answers leave at once: producer, loop and disk take turns instead of working side by side.
BATCH_BYTES_MAX = 2 * 1024 * 1024
Item = TypeVar("Item")


class WriterThread(ABC, Generic[Item]):
    """Writes to *segments* from *end* on; what it queues, and how that is written, its kinds say."""

    batch_bytes_max = BATCH_BYTES_MAX

    def __init__(
        self,
        segments: Segments,
        end: Lsn,
        mode: FlushMode,
        on_progress: Callable[[], None],
        turns: Turns | None = None,
    ) -> None:
        self.mode = mode
        self.end = end  # first byte that nobody has queued; under the lock
        self.written = end  # first byte the OS has not; whoever is at work writes
        self.flushed = end  # first byte not fsynced here; under the lock
        self.failure: StorageFailed | None = None  # set once, before on_progress
        self.queued_bytes = 0  # under the lock
        self.syncs = 0  # under the lock
        self.tells_written = mode.interval_ms > 0  # call on_progress when `written` moved, too; owner thread
        self._segments = segments
        self._on_progress = on_progress
        self._turns = turns
        self._pace = DiskPace()
        self._is_thread_at_work = False  # it has taken what it writes; never both of these; under the lock
        self._is_owner_at_work = False
        self._is_done = False  # nothing will be queued any more, and all is written; the thread's
        self._queue: list[Item] = []
        self._lock = threading.Lock()
        # The writer waits for this one, which is free once it was called: a condition costs both sides several times as
        # much, between a put and its fsync.
        self._call = threading.Lock()
        self._call.acquire()
        self._progress = threading.Condition(self._lock)  # wait_flushed waits here
        self._waiting = 0  # threads in there; under the lock
        self._closing = False
        self._flush_wanted = False
        self._dirty: StorageFile | None = None  # written to since its last fsync was asked for; writer thread
        self._sync_due = 0.0  # monotonic seconds, once something is dirty; writer thread
        self._thread = threading.Thread(target=self._run, name="journal-writer", daemon=True)
        self._background = BackgroundSync(self._synced, self._stop) if mode.interval_ms else None

    def start(self) -> None:
        if self._background is not None:
            self._background.start()
        self._thread.start()

    def end_turn(self) -> None:
        """Let the writer take what is queued; the caller is the writer if that is soon done. Owner's thread."""
        assert self._turns is not None
        with self._lock:
            if not self._may_write_here():
                self._call_writer()
                return
            batch, self._queue, self.queued_bytes = self._queue, [], 0
            self._is_owner_at_work = True
        try:
            if not self._attempt(self._commit_now, batch):
                return
        finally:
            with self._lock:
                self._is_owner_at_work = False
                if self._queue or self._closing or self._flush_wanted or self.failure is not None:
                    self._call_writer()
        self._turns.progress()

    def _commit_now(self, batch: list[Item]) -> None:
        assert self._turns is not None
        self._write(batch)
        if self.tells_written:
            self._turns.progress()
        self._sync()

    def _may_write_here(self) -> bool:
        """Whether the owner writes what is queued: nobody else is at it, and it is soon done, without a roll. Under the
        lock."""
        return (
            self._pace.is_quick
            and not (self._is_thread_at_work or self._closing or self._flush_wanted)
            and 0 < self.queued_bytes <= BYTES_MAX
            and self.end <= self._segments.end
            and self._background is None
            and self.failure is None
        )

    def _call_writer(self) -> None:
        if self._call.locked():
            self._call.release()

    def _check_open(self) -> None:
        """Before anything is queued, under the lock. Raises StorageFailed, JournalClosed."""
        if self.failure is not None:
            raise self.failure
        if self._closing:
            raise JournalClosed("the journal is closed")

    def flush(self) -> None:
        """Ask for an fsync of all that is queued, now, whatever the mode. Returns at once; any thread."""
        with self._lock:
            self._flush_wanted = True
            self._call_writer()

    def wait_flushed(self, lsn: int, timeout_s: float | None = None) -> None:
        """Block until every byte below *lsn* is fsynced. Not on the loop thread.

        Raises StorageFailed once the journal has stopped, TimeoutError.
        """
        with self._lock:
            if self.flushed < lsn:
                self._flush_wanted = True
                self._call_writer()
            self._waiting += 1
            try:
                if not self._progress.wait_for(lambda: self.flushed >= lsn or self.failure is not None, timeout_s):
                    raise TimeoutError(f"LSN {lsn} is not durable after {timeout_s} s")
            finally:
                self._waiting -= 1
            if self.flushed < lsn and self.failure is not None:
                raise self.failure

    def close(self) -> None:
        """Write and fsync what is queued, then end the thread. Idempotent. Raises StorageFailed if it had failed."""
        with self._lock:
            self._closing = True
            self._call_writer()
        if self._thread.is_alive():
            self._thread.join()
        if self._background is not None:
            self._background.close()
        if self.failure is not None:
            raise self.failure

    # -- the writer thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        while self._attempt(self._work) and not self._is_done:
            pass

    def _attempt(self, step: Callable[..., None], *arguments: Any) -> bool:
        """Do *step*; False if that stopped the journal."""
        try:
            step(*arguments)
        except StorageFailed as error:
            self._stop(error)
            return False
        except BaseException as error:
            # Whatever it was, nobody writes any more: waiters must hear of it rather than wait for ever.
            self._stop(StorageFailed(f"{self._segments.storage.path}: the writer stopped: {error!r}"))
            raise
        return True

    def _work(self) -> None:
        batch, must_sync, self._is_done = self._take()
        if batch:
            self._write(batch)
            if self.tells_written:
                # With interval, acknowledged already: an answer must not wait for the fsync that is due. With slaves,
                # theirs to fsync, too, while this one's disk does.
                self._on_progress()
        if self.flushed < self.written:
            if self._background is None or self._is_done:
                self._sync()
                self._on_progress()
            elif must_sync and self._dirty is not None:
                self._background.request(self._dirty, self.written)
                self._dirty = None

    def _take(self) -> tuple[list[Item], bool, bool]:
        """The next batch; whether it must be fsynced; whether it is the last."""
        called = True
        while True:
            with self._lock:
                if self.failure is not None:  # the fsync's, beside us, or the owner's
                    raise self.failure
                wanted = self._queue or self._closing or self._flush_wanted or not called
                self._is_thread_at_work = bool(wanted) and not self._is_owner_at_work
                if self._is_thread_at_work:
                    return self._cut(is_sync_due=not called)
            # Without an interval the owner alone leaves anything unsynced, while it is at work, and calls after it.
            is_sync_due = self.mode.interval_ms > 0 and self.flushed < self.written
            called = self._call.acquire(timeout=self.mode.interval_ms / 1000 if is_sync_due else -1)

    def _cut(self, *, is_sync_due: bool) -> tuple[list[Item], bool, bool]:
        """As _take, of what is queued now; under the lock."""
        batch, size = self._queue, self.queued_bytes
        if size > self.batch_bytes_max:
            batch, size = self._split(batch)
            del self._queue[: len(batch)]
        else:
            self._queue = []
        self.queued_bytes -= size
        is_sync_due = is_sync_due or self._flush_wanted
        if not self._queue:
            self._flush_wanted = False
        if self._dirty is not None and time.monotonic() >= self._sync_due:
            is_sync_due = True
        return batch, is_sync_due, self._closing and not self._queue

    @abstractmethod
    def _split(self, queue: list[Item]) -> tuple[list[Item], int]:
        """The front of the queue that is one batch, and its bytes as `queued_bytes` counts them."""

    @abstractmethod
    def _write(self, batch: list[Item]) -> None:
        """Write *batch* to its segments, and move `written`."""

    def _put(self, file: StorageFile, position: int, buffers: Sequence[Buffer]) -> None:
        file.write(position, buffers)
        if self._dirty is not file:
            assert self._dirty is None
            self._dirty = file
            self._sync_due = time.monotonic() + self.mode.interval_ms / 1000

    def _wrote(self, end: Lsn, base: Lsn, file: StorageFile) -> None:
        """Everything below *end*, which lies in *file*, is with the OS."""
        self.written = end
        if 2 * (end - base) > file.size:
            self._segments.prepare_next(warm=self._is_waited_for())

    def _is_waited_for(self) -> bool:
        """Does somebody wait for each fsync, so that it pays to write the next segment's zeros ahead?"""
        return not self.mode.interval_ms

    def _sync(self) -> None:
        self._sync_dirty()
        self._settle(self.written)

    def _sync_dirty(self) -> None:
        if self._background is not None:
            self._background.drain()  # first: after a failed fsync none may succeed
        if self._dirty is not None:
            began = time.monotonic()
            self._dirty.sync()
            self._pace.note(time.monotonic() - began)
            self._dirty = None

    # -- whoever writes, or the thread that fsyncs beside it ----------------------------------------------------

    def _synced(self, lsn: Lsn) -> None:
        self._settle(lsn)
        self._on_progress()

    def _settle(self, lsn: Lsn) -> None:
        """Everything below *lsn* is durable."""
        with self._lock:
            self.syncs += 1
            self.flushed = lsn
            if self._waiting:
                self._progress.notify_all()

    def _stop(self, error: StorageFailed) -> None:
        with self._lock:
            if self.failure is None:
                self.failure = error
            self._call_writer()
            self._progress.notify_all()
        self._on_progress()
