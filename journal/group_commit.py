"""The writer: the only thread that writes the journal. One pwritev and one fdatasync for all that is queued.

Owner rules. Appenders (any thread, under the lock) choose LSNs and queue; the writer takes the whole queue,
completes the headers, writes, syncs, moves `written` and `flushed`, and tells `on_progress`. With `interval` it is
BackgroundSync that syncs, but for the end of a segment and of the journal. A failed write or fsync is final: the
kernel may have dropped the pages and a retry could "succeed" over lost bytes.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from journal.background_sync import BackgroundSync
from journal.checksum import crc32
from journal.errors import JournalClosed, RecordTooLarge, StorageFailed
from journal.frame import ALIGNMENT, HEADER_BYTES, META_BYTES_MAX, Kind, Lsn, pack, record_bytes
from journal.segments import SEGMENT_HEADER_BYTES, Segments
from journal.storage import Buffer, StorageFile

# Taken from the queue for one write. Below, fsync dominates; above, everybody waits while everybody's bytes are
# written, and then all answers leave at once: producer, loop and disk take turns instead of working side by side.
BATCH_BYTES_MAX = 2 * 1024 * 1024
JOIN_BYTES_MAX = 64 * 1024  # bodies up to this size are joined into one buffer: cheaper than an iovec each
# Calls a function a little later, as an event loop's call_soon does. A writer that is woken in the middle of a turn of
# the loop fights it for the interpreter, and may fsync a branch's messages alone that its PREPARE is about to follow.
Defer = Callable[[Callable[[], None]], object]
_PADDING = [bytes(n) for n in range(ALIGNMENT)]


@dataclass(frozen=True, slots=True)
class FlushMode:
    """When bytes count as acknowledged.

    interval_ms 0 (`sync`): once fsynced. n (`interval:n`): once the OS has them, fsynced every n ms; a killed
    process loses nothing, a power cut up to that long.
    """

    interval_ms: int = 0

    @classmethod
    def parse(cls, text: str) -> "FlushMode":
        """Read `sync` or `interval:<ms>`. Raises ValueError that says so."""
        if text == "sync":
            return cls(0)
        name, _, ms = text.partition(":")
        if name != "interval" or not ms.isascii() or not ms.isdigit() or not 1 <= int(ms) <= 60_000:
            raise ValueError(f"{text!r} is no flush mode: use sync, or interval:<1..60000 milliseconds>")
        return cls(int(ms))

    def __str__(self) -> str:
        return f"interval:{self.interval_ms}" if self.interval_ms else "sync"


SYNC = FlushMode()


class _Item(NamedTuple):
    kind: int
    meta: bytes
    body: Sequence[Buffer]
    body_bytes: int
    lsn: int
    time_ms: int


class GroupCommit:
    """Appends records to *segments* from *end* on, through one thread."""

    def __init__(
        self,
        segments: Segments,
        end: Lsn,
        epoch: int,
        incarnation: int,
        mode: FlushMode,
        on_progress: Callable[[], None],
        defer: Defer | None = None,
    ) -> None:
        self.mode = mode
        self.end = end  # where the next record goes; under the lock
        self.written = end  # first byte the OS has not; writer thread writes
        self.flushed = end  # first byte not fsynced here; under the lock
        self.failure: StorageFailed | None = None  # set once, before on_progress
        self.queued_bytes = 0  # under the lock
        self.syncs = 0  # under the lock
        self._segments = segments
        self._epoch = epoch
        self._incarnation = incarnation
        self._on_progress = on_progress
        self._defer = defer
        self._queue: list[_Item] = []
        self._lock = threading.Lock()
        # The writer waits for this one, which is free once it was called: a condition costs both sides several times as
        # much, between a put and its fsync.
        self._call = threading.Lock()
        self._call.acquire()
        self._progress = threading.Condition(self._lock)  # wait_flushed waits here
        self._waiting = 0  # threads in there; under the lock
        self._closing = False
        self._flush_wanted = False
        self._segment_end = segments.end  # of the segment `end` lies in; under the lock
        self._dirty: StorageFile | None = None  # written to since its last fsync was asked for; writer thread
        self._sync_due = 0.0  # monotonic seconds, once something is dirty; writer thread
        self._thread = threading.Thread(target=self._run, name="journal-writer", daemon=True)
        self._background = BackgroundSync(self._synced, self._stop) if mode.interval_ms else None

    def start(self) -> None:
        if self._background is not None:
            self._background.start()
        self._thread.start()

    def append(self, kind: int, meta: bytes, body: Sequence[Buffer], body_bytes: int, time_ms: int) -> Lsn:
        """Queue one record and return its LSN; nothing is durable yet. Any thread.

        *body* must not change until it is written. Raises RecordTooLarge, StorageFailed, JournalClosed.
        """
        self.check_fits(len(meta), body_bytes)
        size = record_bytes(len(meta), body_bytes)
        with self._lock:
            if self.failure is not None:
                raise self.failure
            if self._closing:
                raise JournalClosed("the journal is closed")
            idle = not self._queue  # before a PAD stands in it
            lsn = self.end
            if lsn + size > self._segment_end:
                lsn = self._next_segment(time_ms)
            self.end = Lsn(lsn + size)
            self.queued_bytes += size
            self._queue.append(_Item(kind, meta, body, body_bytes, lsn, time_ms))
            if idle and self._defer is None:
                self._call_writer()
        if idle and self._defer is not None:
            self._defer(self.wake)
        return lsn

    def wake(self) -> None:
        """Let the writer take what is queued. Any thread."""
        with self._lock:
            self._call_writer()

    def _call_writer(self) -> None:
        if self._call.locked():
            self._call.release()

    def check_fits(self, meta_bytes: int, body_bytes: int) -> None:
        """Raises RecordTooLarge for a record that no segment takes, or no reader would take back."""
        if meta_bytes + body_bytes > self._segments.body_bytes_max or meta_bytes > META_BYTES_MAX:
            raise RecordTooLarge(
                f"a record of {meta_bytes} + {body_bytes} bytes does not fit: a segment of "
                f"{self._segments.segment_bytes} takes {self._segments.body_bytes_max}, {META_BYTES_MAX} of them "
                f"before the body: send less at a time, or raise segment_bytes"
            )

    def _next_segment(self, time_ms: int) -> Lsn:
        """Fill the segment with a PAD, if one fits, and move to the first LSN of the next."""
        left = self._segment_end - self.end
        if left >= HEADER_BYTES:
            self._queue.append(_Item(Kind.PAD, b"", (), left - HEADER_BYTES, self.end, time_ms))
        base = self._segment_end
        self._segment_end = Lsn(base + self._segments.segment_bytes)
        return Lsn(base + SEGMENT_HEADER_BYTES)

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
        try:
            while self._work():
                pass
        except StorageFailed as error:
            self._stop(error)
        except BaseException as error:
            # Whatever it was, nobody writes any more: waiters must hear of it rather than wait for ever.
            self._stop(StorageFailed(f"{self._segments.storage.path}: the writer stopped: {error!r}"))
            raise

    def _work(self) -> bool:
        batch, must_sync, last = self._take()
        if batch:
            self._write(batch)
            if self.mode.interval_ms:
                self._on_progress()  # acknowledged already: an answer must not wait for the fsync that is due
        if self.flushed < self.written:
            if self._background is None or last:
                self._sync()
            elif must_sync and self._dirty is not None:
                self._background.request(self._dirty, self.written)
                self._dirty = None
        return not last

    def _take(self) -> tuple[list[_Item], bool, bool]:
        """The next batch; whether it must be fsynced; whether it is the last."""
        called = True
        while True:
            with self._lock:
                if self.failure is not None:  # the fsync's, beside us
                    raise self.failure
                if self._queue or self._closing or self._flush_wanted or not called:
                    return self._cut(is_sync_due=not called)
            called = self._call.acquire(timeout=self.mode.interval_ms / 1000 if self.flushed < self.written else -1)

    def _cut(self, *, is_sync_due: bool) -> tuple[list[_Item], bool, bool]:
        """As _take, of what is queued now; under the lock."""
        batch, size = self._queue, self.queued_bytes
        if size > BATCH_BYTES_MAX:
            batch, size = _split(batch)
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

    def _write(self, batch: list[_Item]) -> None:
        segments = self._segments
        base, file = segments.locate(batch[0].lsn) if batch[0].lsn < segments.end else self._roll()
        position = batch[0].lsn - base
        buffers: list[Buffer] = []
        joined: list[Buffer] = []
        end = base + file.size
        for item in batch:
            if item.lsn >= end:
                self._put(file, position, buffers, joined)
                base, file = self._roll()
                position, end = item.lsn - base, base + file.size
                buffers, joined = [], []
            self._add(item, buffers, joined)
        self._put(file, position, buffers, joined)
        tail = batch[-1]
        self.written = Lsn(tail.lsn + record_bytes(len(tail.meta), tail.body_bytes))
        if 2 * (self.written - base) > file.size:
            segments.prepare_next(warm=not self.mode.interval_ms)

    def _add(self, item: _Item, buffers: list[Buffer], joined: list[Buffer]) -> None:
        kind, meta, body, body_bytes, lsn, time_ms = item
        crc = size = 0
        for part in body:
            crc = crc32(part, crc)
            size += len(part)
        # Checked here, where every part is in hand anyway: a wrong length would misplace every later record.
        assert kind == Kind.PAD or size == body_bytes, f"a body of {size} bytes announced as {body_bytes}"
        joined.append(pack(kind, 0, meta, body_bytes, crc, self._epoch, self._incarnation, lsn, self.flushed, time_ms))
        if kind == Kind.PAD:  # its body is the untouched rest of the segment
            return
        if body_bytes > JOIN_BYTES_MAX:
            buffers.append(b"".join(joined))
            buffers.extend(body)
            joined.clear()
        else:
            joined.extend(body)
        if padding := -(len(meta) + body_bytes) % ALIGNMENT:
            joined.append(_PADDING[padding])

    def _put(self, file: StorageFile, position: int, buffers: list[Buffer], joined: list[Buffer]) -> None:
        buffers.append(b"".join(joined))
        file.write(position, buffers)
        if self._dirty is not file:
            assert self._dirty is None
            self._dirty = file
            self._sync_due = time.monotonic() + self.mode.interval_ms / 1000

    def _roll(self) -> tuple[Lsn, StorageFile]:
        self._sync_dirty()  # before the next segment exists: a later segment proves the earlier one whole
        return self._segments.roll()

    def _sync(self) -> None:
        self._sync_dirty()
        self._synced(self.written)

    def _sync_dirty(self) -> None:
        if self._background is not None:
            self._background.drain()  # first: after a failed fsync none may succeed
        if self._dirty is not None:
            self._dirty.sync()
            self._dirty = None

    # -- the writer thread, or the one that fsyncs beside it ----------------------------------------------------

    def _synced(self, lsn: Lsn) -> None:
        with self._lock:
            self.syncs += 1
            self.flushed = lsn
            if self._waiting:
                self._progress.notify_all()
        self._on_progress()

    def _stop(self, error: StorageFailed) -> None:
        with self._lock:
            if self.failure is None:
                self.failure = error
            self._call_writer()
            self._progress.notify_all()
        self._on_progress()


def _split(queue: list[_Item]) -> tuple[list[_Item], int]:
    """The front of the queue that is one batch, and its bytes as `queued_bytes` counts them."""
    size = 0
    for index, item in enumerate(queue):
        # A PAD is not counted: it costs nothing to hold.
        size += 0 if item.kind == Kind.PAD else record_bytes(len(item.meta), item.body_bytes)
        if size >= BATCH_BYTES_MAX:
            return queue[: index + 1], size
    return queue, size
