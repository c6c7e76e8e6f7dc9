"""Drops old segments, once an archive has them. On a thread of its own: an object store, or another disk, may take
minutes, be full or hang, and neither checkpoints nor a stop may wait for it."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from journal.archive.keeper import IndexSource, SegmentKeeper
from journal.archive.places import archive_place
from meta_broker.config.retention_section import RetentionSection
from meta_broker.daemon_call import in_daemon_thread

STOP_WAIT_S: Final = 5.0  # for an upload: a journal that is closed is not touched by it any more


def segment_keeper(
    section: RetentionSection, refusal: Callable[[], str | None], indexes: IndexSource | None
) -> SegmentKeeper | None:
    """Return the archive that *section* names, if any. Touches nothing yet. *refusal*, *indexes*: as in
    SegmentKeeper."""
    return None if section.archive is None else SegmentKeeper(archive_place(section.archive), refusal, indexes)


class DropThread:
    """Runs one job at a time on a daemon thread. Loop thread only."""

    def __init__(self) -> None:
        self._ended: Future[None] | None = None

    @property
    def is_running(self) -> bool:
        return self._ended is not None and not self._ended.done()

    def start(self, job: Callable[[], None]) -> None:
        """Run *job*, which catches its errors; returns at once."""
        assert not self.is_running
        self._ended = in_daemon_thread(job, "archive")

    async def wait(self, seconds_max: float | None = None) -> None:
        """Wait for the job's end, if one runs; *seconds_max* at most."""
        if self._ended is not None:
            await asyncio.wait([asyncio.wrap_future(self._ended)], timeout=seconds_max)
