"""LogWriter: the thread that writes a journal. It takes all that is queued, writes it, fsyncs once, and notifies.

Ownership: owners (any thread, under the lock) queue; the writer writes, moves `written` and `flushed`, and calls
`on_progress`. The writer is this thread, or an event loop at the end of an iteration (see inline_commit): one at a
time, as the table in writer_state says. With `interval`, BackgroundSync fsyncs, except at the end of a segment and of
the journal. A failed write or fsync is final: the kernel may have dropped the pages, and a retry could "succeed" over
lost bytes.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from journal.errors import JournalClosed, StorageFailed
from journal.records.header import Lsn
from journal.records.state_table import walk
from journal.wal.background_sync import BackgroundSync
from journal.wal.flush_mode import FlushMode
from journal.wal.histogram import BYTES, Histogram
from journal.wal.inline_commit import INLINE_BYTES_MAX, InlinePolicy, LoopHooks
from journal.wal.segments import Segments
from journal.wal.storage_file import Buffer, StorageFile
from journal.wal.writer_state import CLOSED, LOOP_WRITES, NEXT, WAKES_THREAD, E, S

# Limit of one write. Below, fsync dominates; above, requests wait for all bytes, then all replies leave at once:
# producer, loop and disk alternate instead of working in parallel.
BATCH_BYTES_MAX = 2 * 1024 * 1024
_Item = TypeVar("_Item")


class LogWriter(ABC, Generic[_Item]):
    """Writes to *segments* from *end* on. Subclasses define the item type and its writing."""

    batch_bytes_max = BATCH_BYTES_MAX

    def __init__(
        self,
        segments: Segments,
        end: Lsn,
        mode: FlushMode,
        on_progress: Callable[[], None],
        loop_hooks: LoopHooks | None = None,
    ) -> None:
        self.mode = mode
        self.end = end  # LSN after the last queued byte; under the lock
        self.written = end  # first byte not handed to the OS; set by the writer
        self.flushed = end  # first byte not fsynced here; under the lock
        self.failure: StorageFailed | None = None  # set once, before on_progress
        self.queued_bytes = 0  # under the lock
        self.syncs = 0  # under the lock
        self.fsync_seconds = Histogram()  # the writer observes, or the background fsync
        self.batch_bytes = Histogram(BYTES)  # written together; the writer observes
        self.notifies_written = mode.interval_ms > 0  # call on_progress when `written` moved, too; owner thread
        self._segments = segments
        self._on_progress = on_progress
        self._loop_hooks = loop_hooks
        self._inline_policy = InlinePolicy()
        self._state = S.IDLE  # under the lock
        self._queue: list[_Item] = []
        self._must_sync = False  # an fsync of all that is queued was requested; under the lock
        self._lock = threading.Lock()
        # The writer blocks on this lock, which is released to wake it: a condition costs both threads several times as
        # much, between a put and its fsync.
        self._wake_up = threading.Lock()
        self._wake_up.acquire()
        # LSNs that wait_flushed waits for, and locks that are released then; under the lock. No condition: a ^C in its
        # wait() may leave it without the lock, which its caller then releases while another thread has it.
        self._waiters: list[tuple[int, threading.Lock]] = []
        self._dirty: StorageFile | None = None  # written to since its last fsync was asked for; writer thread
        self._sync_due = 0.0  # monotonic seconds, once something is dirty; writer thread
        self._thread = threading.Thread(target=self._run, name="journal-writer", daemon=True)
        self._background = (
            BackgroundSync(self._synced, self._stop, self.fsync_seconds.observe) if mode.interval_ms else None
        )

    def start(self) -> None:
        if self._background is not None:
            self._background.start()
        self._thread.start()

    def commit_now(self) -> None:
        """Write what is queued: on the calling thread if that is quick, else on the writer thread. Owner's thread."""
        assert self._loop_hooks is not None
        with self._lock:
            if not self._may_commit_inline():
                self._enter(E.CALL)
                return
            self._enter(E.BEGIN_INLINE)
            batch, self._queue, self.queued_bytes = self._queue, [], 0
        try:
            if not self._run_step(self._commit_inline, batch):
                return
        finally:
            with self._lock:
                if self._queue:
                    self._enter(E.CALL)
                self._enter(E.END_INLINE)
        self._loop_hooks.progress()

    def _commit_inline(self, batch: list[_Item]) -> None:
        assert self._loop_hooks is not None
        self._write(batch)
        if self.notifies_written:
            self._loop_hooks.progress()
        self._sync()

    def _may_commit_inline(self) -> bool:
        """Return True if the owner may write what is queued: it is not the thread's turn, and the write is short and
        needs no roll. Under the lock."""
        return (
            self._inline_policy.allows(len(self._queue))
            and self._state is S.IDLE
            and 0 < self.queued_bytes <= INLINE_BYTES_MAX
            and self.end <= self._segments.end
            and self._background is None
        )

    def _enter(self, event: E) -> None:
        """Enter the state after *event*, and wake the thread if that makes it its turn. Under the lock."""
        after = walk(NEXT, self._state, event)
        if self._state is not after and after in WAKES_THREAD and self._wake_up.locked():
            self._wake_up.release()
        self._state = after  # last: a ^C that is raised above leaves a thread awake, and none asleep

    def _check_open(self) -> None:
        """Check before queueing, under the lock. Raises StorageFailed, JournalClosed."""
        if self._state in CLOSED:
            raise self.failure or JournalClosed("the journal is closed")

    def flush(self) -> None:
        """Request an fsync of all that is queued, whatever the mode. Returns at once; any thread."""
        with self._lock:
            self._must_sync = True
            self._enter(E.CALL)

    def wait_flushed(self, lsn: int, timeout_s: float | None = None) -> None:
        """Block until every byte below *lsn* is fsynced. Not on the loop thread.

        Raises StorageFailed once the journal has stopped, TimeoutError.
        """
        waiter = threading.Lock()
        waiter.acquire()
        with self._lock:
            if self.flushed >= lsn:
                return
            self._must_sync = True
            self._enter(E.CALL)
            if self.failure is not None:
                raise self.failure
            self._waiters.append((lsn, waiter))
        is_told = waiter.acquire(timeout=-1 if timeout_s is None else max(0.0, timeout_s))
        with self._lock:
            if self.flushed < lsn and self.failure is not None:
                raise self.failure
            if not is_told and self.flushed < lsn:
                self._waiters.remove((lsn, waiter))
                raise TimeoutError(f"LSN {lsn} is not durable after {timeout_s} s")

    def close(self) -> None:
        """Write and fsync what is queued, then end the thread. Idempotent. Raises StorageFailed if it had failed."""
        with self._lock:
            self._enter(E.CLOSE)
        if self._thread.is_alive():
            self._thread.join()
        if self._background is not None:
            self._background.close()
        if self.failure is not None:
            raise self.failure

    # -- the writer thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        while self._run_step(self._write_batch) and self._state is not S.LAST:
            pass

    def _run_step(self, step: Callable[..., None], *arguments: Any) -> bool:
        """Run *step*. Returns False if that stopped the journal."""
        try:
            step(*arguments)
        except StorageFailed as error:
            self._stop(error)
            return False
        except BaseException as error:
            # The writer ends here: waiters must get the failure instead of blocking without a limit.
            self._stop(StorageFailed(f"{self._segments.storage.path}: the writer stopped: {error!r}"))
            raise
        return True

    def _write_batch(self) -> None:
        batch, must_sync = self._wait_for_batch()
        if batch:
            self._write(batch)
            if self.notifies_written:
                # With interval the bytes are acknowledged now: replies must not wait for the fsync that is due. With
                # slaves, they can fsync in parallel with this disk.
                self._on_progress()
        if self.flushed < self.written:
            if self._background is None or self._state is S.LAST:
                self._sync()
                self._on_progress()
            elif must_sync and self._dirty is not None:
                self._background.request(self._dirty, self.written)
                self._dirty = None

    def _wait_for_batch(self) -> tuple[list[_Item], bool]:
        """Return the next batch, and whether it must be fsynced."""
        called = True
        while True:
            with self._lock:
                if self.failure is not None:  # of the background fsync, or of the owner
                    raise self.failure
                has_work = self._queue or self._must_sync or self._state is S.CLOSING or not called
                if has_work and self._state not in LOOP_WRITES:
                    return self._next_batch(is_sync_due=not called)
                self._enter(E.REST)
            # Without an interval only the owner leaves bytes unsynced, during an inline commit, and calls afterwards.
            is_sync_due = self.mode.interval_ms > 0 and self.flushed < self.written
            called = self._wake_up.acquire(timeout=self.mode.interval_ms / 1000 if is_sync_due else -1)

    def _next_batch(self, *, is_sync_due: bool) -> tuple[list[_Item], bool]:
        """Take a batch of what is queued now; under the lock. Returns the same as `_wait_for_batch`."""
        batch, size = self._queue, self.queued_bytes
        if size > self.batch_bytes_max:
            batch, size = self._split(batch)
            del self._queue[: len(batch)]
        else:
            self._queue = []
        self.queued_bytes -= size
        is_sync_due = is_sync_due or self._must_sync
        if not self._queue:
            self._must_sync = False
        if self._dirty is not None and time.monotonic() >= self._sync_due:
            is_sync_due = True
        self._enter(E.TAKE_LAST if self._state is S.CLOSING and not self._queue else E.TAKE)
        return batch, is_sync_due

    @abstractmethod
    def _split(self, queue: list[_Item]) -> tuple[list[_Item], int]:
        """Return the front of a queue of more than `batch_bytes_max` as one batch, and its bytes as counted in
        `queued_bytes`."""

    @abstractmethod
    def _write(self, batch: list[_Item]) -> None:
        """Write *batch* to its segments, and move `written`."""

    def _write_buffers(self, file: StorageFile, position: int, buffers: Sequence[Buffer]) -> None:
        file.write(position, buffers)
        if self._dirty is not file:
            assert self._dirty is None
            self._dirty = file
            self._sync_due = time.monotonic() + self.mode.interval_ms / 1000

    def _mark_written(self, end: Lsn, base: Lsn, file: StorageFile) -> None:
        """Note that everything below *end*, which lies in *file*, is handed to the OS."""
        self.batch_bytes.observe(end - self.written)
        self.written = end
        if 2 * (end - base) > file.size:
            self._segments.preallocate_next(prezero=self._has_waiters())

    def _has_waiters(self) -> bool:
        """Return True if requests wait for each fsync, so that prezeroing the next segment pays."""
        return not self.mode.interval_ms

    def _sync(self) -> None:
        self._sync_dirty()
        self._mark_durable(self.written)

    def _sync_dirty(self) -> None:
        if self._background is not None:
            self._background.drain()  # first: after a failed fsync none may succeed
        if self._dirty is not None:
            began = time.monotonic()
            self._dirty.sync()
            took_s = time.monotonic() - began
            self._inline_policy.observe_fsync(took_s)
            self.fsync_seconds.observe(took_s)
            self._dirty = None

    # -- the writer, or the background fsync ----------------------------------------------------------------------

    def _synced(self, lsn: Lsn) -> None:
        self._mark_durable(lsn)
        self._on_progress()

    def _mark_durable(self, lsn: Lsn) -> None:
        """Note that everything below *lsn* is durable."""
        with self._lock:
            self.syncs += 1
            self.flushed = lsn
            if self._waiters:
                self._wake_waiters()

    def _stop(self, error: StorageFailed) -> None:
        with self._lock:
            if self.failure is None:
                self.failure = error
            self._enter(E.FAIL)
            self._wake_waiters()
        self._on_progress()

    def _wake_waiters(self) -> None:
        """Wake the threads whose LSN is durable, or all once the journal has failed. Under the lock."""
        waiting, self._waiters = self._waiters, []
        for lsn, waiter in waiting:
            if lsn <= self.flushed or self.failure is not None:
                waiter.release()
            else:
                self._waiters.append((lsn, waiter))
