"""Writing down what a master in mode sync has acknowledged, while it runs."""

import asyncio
import logging
import time
from typing import Final

from journal.errors import StorageFailed
from journal.fence import Fence
from journal.flush_mode import FlushMode
from journal.frame import Lsn
from journal.reserve import Reserve, is_full
from journal.storage import Storage
from journal.watermark import Watermark, read_watermark, write_watermark

log = logging.getLogger(__name__)

WRITE_S: Final = 1.0  # between two writes, while things change


def begin_watermark(storage: Storage, flush: FlushMode) -> None:
    """Due before the first append; durable on return. A full disk gives it the reserve. Raises StorageFailed.

    With flush mode interval the file says, from here to a clean stop, that something acknowledged may be missing:
    slaves in sync have it, and after a power cut this directory may not.
    """
    lsn, is_whole = read_watermark(storage) or Watermark(Lsn(0), is_whole=False)
    mark = Watermark(lsn, is_whole and not flush.interval_ms)
    try:
        write_watermark(storage, mark)
    except StorageFailed as error:
        if not is_full(error) or not Reserve(storage, 0).give_up():
            raise
        write_watermark(storage, mark)


class WatermarkKeeper:
    """Keeps the file up to date. Loop thread only; the directory is locked."""

    def __init__(self, storage: Storage, fence: Fence, flush: FlushMode, *, is_whole: bool) -> None:
        self.is_whole = is_whole  # nothing acknowledged is missing here, as of the start; set once a slave confirms it
        self._storage = storage
        self._fence = fence
        self._is_flushed_first = not flush.interval_ms
        self._written = self._mark
        self._written_at = 0.0
        self._writing: asyncio.Task[None] | None = None
        self._failed = ""

    @property
    def _mark(self) -> Watermark:
        return Watermark(self._fence.acknowledged, self.is_whole and self._is_flushed_first)

    def tick(self) -> None:
        """Due twice a second: write the file if it is a second old and says less than is known by now."""
        now = time.monotonic()
        mark = self._mark
        if self._writing is None and mark != self._written and now - self._written_at >= WRITE_S:
            self._written_at = now
            self._writing = asyncio.create_task(asyncio.to_thread(write_watermark, self._storage, mark))
            self._writing.add_done_callback(lambda task: self._wrote(task, mark))

    def _wrote(self, task: "asyncio.Task[None]", mark: Watermark) -> None:
        self._writing = None
        error = None if task.cancelled() else task.exception()
        if error is None:
            self._written, self._failed = mark, ""
        elif not isinstance(error, StorageFailed):
            raise error
        else:
            self._not_written(error)

    def _not_written(self, error: StorageFailed) -> None:
        """The one before stands, which says less. What the journal's own disk does, its writer finds out."""
        if str(error) != self._failed:
            self._failed = str(error)
            log.error("watermark not written, a restart would show less error=%s", error)

    async def finish(self) -> None:
        """Wait for a write that is under way."""
        if self._writing is not None:
            await asyncio.wait([self._writing])

    def close(self) -> None:
        """Write it for the last time: everything here is fsynced. Blocks. Idempotent."""
        if self._writing is not None:
            return  # this is no clean stop: what that one writes is right
        try:
            write_watermark(self._storage, Watermark(self._fence.acknowledged, self.is_whole))
        except StorageFailed as error:
            self._not_written(error)
