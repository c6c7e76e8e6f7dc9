"""Saves a sync master's high watermark while it runs."""

import asyncio
import logging
import time
from typing import Final

from journal.errors import StorageFailed
from journal.records.header import Lsn
from journal.wal.flush_mode import FlushMode
from journal.wal.high_watermark import HighWatermark
from journal.wal.marks import SavedWatermark, read_watermark, write_watermark
from journal.wal.reserve import Reserve, is_full
from journal.wal.storage import Storage

log = logging.getLogger(__name__)

WRITE_S: Final = 1.0  # between two writes, while things change


def write_first_watermark(storage: Storage, flush: FlushMode) -> None:
    """Write the file before the first append; durable on return. On a full disk it uses the reserve. Raises
    StorageFailed.

    With flush mode interval the file says, until a clean stop, that acknowledged data may be missing: in-sync slaves
    have it, and after a power cut this directory may not.
    """
    lsn, is_whole = read_watermark(storage) or SavedWatermark(Lsn(0), is_whole=False)
    watermark = SavedWatermark(lsn, is_whole and not flush.interval_ms)
    try:
        write_watermark(storage, watermark)
    except StorageFailed as error:
        if not is_full(error) or not Reserve(storage, 0).give_up():
            raise
        write_watermark(storage, watermark)


class WatermarkKeeper:
    """Keeps the saved watermark up to date. Loop thread only; the directory is locked."""

    def __init__(self, storage: Storage, high_watermark: HighWatermark, flush: FlushMode, *, is_whole: bool) -> None:
        self.is_whole = is_whole  # nothing acknowledged is missing here; else set once a slave confirms it
        self._storage = storage
        self._high_watermark = high_watermark
        self._is_flushed_first = not flush.interval_ms
        self._written = self._mark
        self._written_at = 0.0
        self._writing: asyncio.Task[None] | None = None
        self._failed = ""

    @property
    def _mark(self) -> SavedWatermark:
        return SavedWatermark(self._high_watermark.acknowledged, self.is_whole and self._is_flushed_first)

    def tick(self) -> None:
        """Write the file if it is a second old and out of date. Call it twice a second."""
        now = time.monotonic()
        watermark = self._mark
        if self._writing is None and watermark != self._written and now - self._written_at >= WRITE_S:
            self._written_at = now
            self._writing = asyncio.create_task(asyncio.to_thread(write_watermark, self._storage, watermark))
            self._writing.add_done_callback(lambda task: self._wrote(task, watermark))

    def _wrote(self, task: "asyncio.Task[None]", watermark: SavedWatermark) -> None:
        self._writing = None
        error = None if task.cancelled() else task.exception()
        if error is None:
            self._written, self._failed = watermark, ""
        elif not isinstance(error, StorageFailed):
            raise error
        else:
            self._not_written(error)

    def _not_written(self, error: StorageFailed) -> None:
        """Log that the older file stays. If the journal's disk fails, its writer reports that."""
        if str(error) != self._failed:
            self._failed = str(error)
            log.error("watermark not written, a restart would show less error=%s", error)

    async def stop(self) -> None:
        if self._writing is not None:
            await asyncio.wait([self._writing])

    def close(self) -> None:
        """Write the file a last time: everything here is fsynced. Blocks. Idempotent."""
        if self._writing is not None:
            return  # not a clean stop: the running write is right
        try:
            write_watermark(self._storage, SavedWatermark(self._high_watermark.acknowledged, self.is_whole))
        except StorageFailed as error:
            self._not_written(error)
