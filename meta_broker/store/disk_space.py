"""Room on the disk: whether new messages may be taken, and the reserve for what must be written all the same.

A full disk is no failing disk: it passes. New messages are refused as soon as the next segment can't be made ahead, or
the reserve can't; what is left of the segment, and then the reserve, is for the ends of branches that are there, for
operators' decisions, for checkpoints, and for the next start. Once there is room again messages are taken again.
"""

import asyncio
import logging
import os
import time
from concurrent.futures import Executor
from typing import Final

from journal.errors import StorageFailed
from journal.open_journal import OpenJournal
from journal.reserve import is_full

log = logging.getLogger(__name__)

LOOK_S: Final = 2.0  # between two looks for room
PRESS_S: Final = 30.0  # between two retentions for want of room: each takes checkpoints, and those take room
NO_RESERVE_S: Final = 60.0  # the same, where a reserve can't be made for another reason
LAST_PART: Final = 8  # of a segment: for the records of the next starts alone


class DiskSpace:
    """One master's. Loop thread only, but for what a worker runs."""

    def __init__(self, journal: OpenJournal) -> None:
        self._journal = journal
        self._segments = journal.segments
        self._reserve = journal.segments.reserve
        self._why = ""
        self._gives_up = False  # the reserve, with the next look
        self._look_at = self._press_at = 0.0
        self._looking: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Have the reserve before the first message is taken. Blocks."""
        try:
            self._make_room()
        except StorageFailed as error:
            self._failed(error)

    @property
    def why_full(self) -> str:
        """Why no new message is taken, for clients; blank: they are."""
        failure = self._segments.next_failure
        if not self._why and failure is not None and is_full(failure):
            self.filled(failure)
        return self._why

    @property
    def why_at_end(self) -> str:
        """Why nothing at all is written any more, for clients: what is left is for the next starts."""
        if not self.why_full or self._reserve.is_held:
            return ""
        left = self._segments.end - self._journal.end
        return self._why if left < self._segments.segment_bytes // LAST_PART else ""

    def filled(self, error: StorageFailed) -> None:
        """The disk is full: *error* says so."""
        if not self._why:
            self._why = f"the disk is full ({error}): nothing was done, send again once there is room"
            self._press_at = 0.0
            log.error("disk full, new messages are refused until there is room error=%s", error)

    def give_up_reserve(self) -> None:
        """Retention needs the room, to make more of it: with the next look."""
        if self._reserve.is_held:
            self._gives_up, self._look_at = True, 0.0

    def tick(self, loop: asyncio.AbstractEventLoop, worker: Executor) -> bool:
        """Look for room, if it is time. True: retention must make some, and its time has come."""
        now = time.monotonic()
        is_needed = bool(self.why_full)
        if (
            (is_needed or not self._reserve.is_held or self._gives_up)
            and self._looking is None
            and now >= self._look_at
        ):
            self._look_at = now + LOOK_S
            self._looking = loop.create_task(self._look(loop, worker))
        if is_needed and now >= self._press_at:
            self._press_at = now + PRESS_S
            return True
        return False

    async def finish(self) -> None:
        if self._looking is not None:
            await asyncio.wait([self._looking])

    async def _look(self, loop: asyncio.AbstractEventLoop, worker: Executor) -> None:
        try:
            if not await loop.run_in_executor(worker, self._make_room) or not self._why:
                return
        except StorageFailed as error:
            self._failed(error)
            return
        finally:
            self._looking = None
        self._why = ""
        self._segments.retry_next()
        log.warning("disk has room, new messages are taken again")

    def _failed(self, error: StorageFailed) -> None:
        if is_full(error):
            self.filled(error)
        else:
            log.warning("no reserve, a disk that fills will stop this broker error=%s", error)
            self._look_at = time.monotonic() + NO_RESERVE_S

    def _make_room(self) -> bool:
        """Give the reserve up, or have it. False: there is no room for it. Raises StorageFailed."""
        if self._gives_up:
            self._gives_up = False
            self._reserve.give_up()
            return False
        has_reserve = self._reserve.is_held or self._reserve.find()
        if self._why:
            wanted = self._segments.segment_bytes + (0 if has_reserve else self._reserve.size)
            if _free_bytes(self._segments.storage.path) < wanted:
                return False
        if not has_reserve:
            self._reserve.make()
        return True


def _free_bytes(path: str) -> int:
    """Raises StorageFailed."""
    try:
        found = os.statvfs(path)
    except OSError as error:
        raise StorageFailed(f"{path}: {error.strerror}") from error
    return found.f_frsize * (found.f_bfree if os.geteuid() == 0 else found.f_bavail)
