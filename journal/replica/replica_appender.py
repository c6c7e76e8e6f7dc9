"""Writes what a copy received: records byte for byte, in segments as announced by the stream."""

import time
from collections.abc import Callable, Sequence

from journal.errors import StorageFailed
from journal.records.header import Lsn
from journal.wal.flush_mode import FlushMode
from journal.wal.log_writer import LogWriter
from journal.wal.marks import write_recovery_point
from journal.wal.record_stream import RecordChunk
from journal.wal.segments import Segments
from journal.wal.storage_file import Buffer
from journal.wal.writer_state import E


class ReplicaAppender(LogWriter[RecordChunk]):
    """Writes chunks of a stream to *segments*, through one thread."""

    # Only a copy that is far behind has as much to write, and then no request waits for it.
    batch_bytes_max = 8 * 1024 * 1024
    recovery_point_every_s = 1.0  # two fsyncs each time

    def __init__(
        self,
        segments: Segments,
        end: Lsn,
        mode: FlushMode,
        on_progress: Callable[[], None],
        when_durable: tuple[Lsn, Callable[[], None]] | None = None,
    ) -> None:
        """*when_durable*: an LSN, and an action for the thread that fsyncs, once everything below is durable and before
        that is reported. It may raise StorageFailed, which stops the journal.
        """
        super().__init__(segments, end, mode, on_progress)
        self._when_durable = when_durable  # under the lock; None: done
        self._recovery_point_due = 0.0  # monotonic seconds; owned by the thread that fsyncs

    def enqueue(self, chunks: Sequence[RecordChunk]) -> None:
        """Queue *chunks*, whose bytes must not change until they are written. Raises StorageFailed, JournalClosed."""
        with self._lock:
            self._check_open()
            idle = not self._queue
            self._queue += chunks
            self.queued_bytes += sum(len(chunk.data) for chunk in chunks)
            self.end = chunks[-1].end
            if idle:
                self._enter(E.CALL)

    # -- the writer thread ------------------------------------------------------------------------------------

    def _split(self, queue: list[RecordChunk]) -> tuple[list[RecordChunk], int]:
        size = count = 0
        while size < self.batch_bytes_max:
            size += len(queue[count].data)
            count += 1
        return queue[:count], size

    def _write(self, batch: list[RecordChunk]) -> None:
        at = 0
        while at < len(batch):
            first = batch[at]
            if first.segment is not None:
                self._sync_dirty()  # before the next segment exists, as a roll does
                base, file = self._segments.roll_to(first.segment)
            else:
                base, file = self._segments.locate(first.lsn)
            buffers: list[Buffer] = []
            end = first.lsn
            while at < len(batch) and batch[at].lsn == end and (not buffers or batch[at].segment is None):
                buffers.append(batch[at].data)
                end = batch[at].end
                at += 1
            self._write_buffers(file, first.lsn - base, buffers)
            self._mark_written(end, base, file)

    def _has_waiters(self) -> bool:
        return super()._has_waiters() and self.queued_bytes < self.batch_bytes_max  # else bytes are written twice

    def _mark_durable(self, lsn: Lsn) -> None:
        action: Callable[[], None] | None = None
        with self._lock:
            if self._when_durable is not None and self._when_durable[0] <= lsn:
                (_, action), self._when_durable = self._when_durable, None
        try:
            if action is not None:
                action()
            if (now := time.monotonic()) >= self._recovery_point_due:
                write_recovery_point(self._segments.storage, lsn)
                self._recovery_point_due = now + self.recovery_point_every_s
        except StorageFailed as error:
            self._stop(error)
            return
        super()._mark_durable(lsn)
