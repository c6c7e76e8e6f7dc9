"""Writing what a copy received: records as they are, byte for byte, in segments as they were announced."""

import time
from collections.abc import Callable, Sequence

from journal.copy_mark import write_mark
from journal.errors import StorageFailed
from journal.frame import Lsn
from journal.storage import Buffer
from journal.stream import Piece
from journal.writer_thread import WriterThread


class StreamWriter(WriterThread[Piece]):
    """Writes pieces of a stream to *segments*, through one thread."""

    # A copy that is far behind has nobody waiting for it; one that is not never has as much to write.
    batch_bytes_max = 8 * 1024 * 1024
    mark_every_s = 1.0  # two fsyncs each time
    _once_durable: tuple[Lsn, Callable[[], None]] | None = None  # under the lock
    _mark_due = 0.0  # monotonic seconds; the thread's that fsyncs

    def write_soon(self, pieces: Sequence[Piece]) -> None:
        """Queue *pieces*, whose bytes must not change until they are written. Raises StorageFailed, JournalClosed."""
        with self._lock:
            self._check_open()
            idle = not self._queue
            self._queue += pieces
            self.queued_bytes += sum(len(piece.data) for piece in pieces)
            self.end = pieces[-1].end
            if idle:
                self._call_writer()

    def once_durable(self, lsn: Lsn, action: Callable[[], None]) -> None:
        """Have *action* done by the thread that fsyncs, once everything below *lsn* is durable and before anybody
        hears of that. It may raise StorageFailed, which stops the journal."""
        with self._lock:
            self._once_durable = lsn, action

    # -- the writer thread ------------------------------------------------------------------------------------

    def _split(self, queue: list[Piece]) -> tuple[list[Piece], int]:
        size = 0
        for index, piece in enumerate(queue):
            size += len(piece.data)
            if size >= self.batch_bytes_max:
                return queue[: index + 1], size
        return queue, size

    def _write(self, batch: list[Piece]) -> None:
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
            self._put(file, first.lsn - base, buffers)
            self._wrote(end, base, file)

    def _is_waited_for(self) -> bool:
        return super()._is_waited_for() and self.queued_bytes < self.batch_bytes_max  # else it would be written twice

    def _settle(self, lsn: Lsn) -> None:
        with self._lock:
            waiting = self._once_durable
            is_reached = waiting is not None and waiting[0] <= lsn
            if is_reached:
                self._once_durable = None
        try:
            if waiting is not None and is_reached:
                waiting[1]()
            if (now := time.monotonic()) >= self._mark_due:
                write_mark(self._segments.storage, lsn)
                self._mark_due = now + self.mark_every_s
        except StorageFailed as error:
            self._stop(error)
            return
        super()._settle(lsn)
