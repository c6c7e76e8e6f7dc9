"""Disk space: whether new messages are accepted, and the reserve for what must be written all the same.

A full disk is a passing state, not a failure. New messages are refused as soon as the next segment, or the reserve,
cannot be preallocated; the rest of the segment, and then the reserve, is for the ends of existing branches, operators'
decisions, checkpoints, and the next start. Messages are accepted again once there is room.

Before that, they are refused while the file system has fewer bytes free than `disk_free_bytes_min`, the watermark. A
slave, which can refuse nothing, stops reading from its master then, and before a segment for which there is no room.

A segment whose file has lost its name is no matter of room, but ends as badly: what is written to it is lost with the
process. Once that is seen, nothing is written any more.
"""

import asyncio
import contextlib
import logging
import os
import time
from concurrent.futures import Executor
from pathlib import Path
from typing import Final

from journal.errors import StorageFailed
from journal.records.header import Lsn
from journal.wal.open_journal import OpenJournal
from journal.wal.reserve import is_full
from journal.wal.segments import Segments, segment_name
from journal.wal.storage_file import translated

log = logging.getLogger(__name__)

CHECK_S: Final = 2.0  # between two checks for room
PRESS_S: Final = 30.0  # between two retention runs for lack of room: their checkpoints take room
NO_RESERVE_S: Final = 60.0  # between two checks after the reserve failed for another reason
LAST_PART: Final = 8  # a segment's last eighth is for the records of the next starts
HYSTERESIS_PART: Final = 8  # an eighth more than the watermark must be free before messages are accepted again


class DiskSpace:
    """Disk space of one broker. Loop thread only, except for the jobs of its worker."""

    def __init__(self, journal: OpenJournal, free_bytes_min: int = 0) -> None:
        """*free_bytes_min*: the watermark; 0: there is none."""
        self.free_bytes_min = free_bytes_min
        self._low = ""  # reason, below the watermark
        self._journal = journal
        self._segments = journal.segments
        self._reserve = journal.segments.reserve
        self._why = ""
        self.why_gone = ""  # a segment's file is gone, from then on until the restart. Any thread
        self._gives_up = False  # release the reserve with the next check
        self._next_check_at = self._press_at = 0.0
        self._checking: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Make the reserve before the first message is accepted. Blocks."""
        try:
            self._make_room()
            if self.free_bytes_min:
                self._judge(_free_bytes(self._segments.storage.path))
        except StorageFailed as error:
            self._failed(error)

    @property
    def is_full(self) -> bool:
        """True while new messages are refused. Any thread."""
        return bool(self.why_gone or self._why or self._low)

    @property
    def is_out_of_room(self) -> bool:
        """True if a segment or the reserve can't be made, whatever the watermark."""
        return bool(self._reason_out_of_room())

    @property
    def why_full(self) -> str:
        """Reason no new message is accepted, for clients; blank: they are."""
        return self._reason_out_of_room() or self._low

    def _reason_out_of_room(self) -> str:
        if self.why_gone:
            return self.why_gone
        preallocator = self._segments.preallocator
        failure = preallocator.failure
        if not self._why and failure is not None and not preallocator.may_retry and is_full(failure):
            self.filled(failure)
        return self._why

    @property
    def why_at_end(self) -> str:
        """Reason nothing at all can be written any more, for clients: the rest is for the next starts."""
        if self.why_gone:
            return self.why_gone
        if not self._reason_out_of_room() or self._reserve.is_held:
            return ""
        left = self._segments.end - self._journal.end
        return self._why if left < self._segments.segment_bytes // LAST_PART else ""

    def filled(self, error: StorageFailed) -> None:
        if not self._why:
            hint = "; it has no inode left, for any file: delete some" if _is_out_of_inodes(self._segments) else ""
            self._why = f"the disk is full ({error}{hint}): nothing was done, send again once there is room"
            self._press_at = 0.0
            log.error("disk full, new messages are refused until there is room error=%s%s", error, hint)

    def give_up_reserve(self) -> None:
        """Release the reserve with the next check: retention needs the room to make more."""
        if self._reserve.is_held:
            self._gives_up, self._next_check_at = True, 0.0

    def tick(self, worker: Executor) -> bool:
        """Check for room, if that is due. True: retention must run now to make some."""
        if self.why_gone:
            return False
        now = time.monotonic()
        is_needed = bool(self.why_full)
        if self._checking is None and now >= self._next_check_at:
            self._next_check_at = now + CHECK_S
            self._checking = asyncio.create_task(self._check(worker))
        if is_needed and now >= self._press_at:
            self._press_at = now + PRESS_S
            return True
        return False

    def check_segments(self, worker: Executor) -> None:
        """Look for a slave's segments, if that is due."""
        now = time.monotonic()
        if not self.why_gone and self._checking is None and now >= self._next_check_at:
            self._next_check_at = now + CHECK_S
            self._checking = asyncio.create_task(self._check_segments(worker))

    async def stop(self) -> None:
        if self._checking is not None:
            await asyncio.wait([self._checking])

    async def _check(self, worker: Executor) -> None:
        loop = asyncio.get_running_loop()
        try:
            await self._look_for_segments(worker)
            if self.free_bytes_min:
                self._judge(await loop.run_in_executor(worker, _free_bytes, self._segments.storage.path))
            if not await loop.run_in_executor(worker, self._make_room) or not self._why:
                return
        except StorageFailed as error:
            self._failed(error)
            return
        finally:
            self._checking = None
        self._why = ""
        self._segments.preallocator.may_retry = True  # at the next write
        log.warning("disk has room, new messages are taken again")

    async def _check_segments(self, worker: Executor) -> None:
        """Look for them; a directory that can't be listed is left to the writer."""
        try:
            with contextlib.suppress(StorageFailed):
                await self._look_for_segments(worker)
        finally:
            self._checking = None

    async def _look_for_segments(self, worker: Executor) -> None:
        """Write nothing, until the restart, once a segment's file is gone. Raises StorageFailed."""
        storage = self._segments.storage
        # Twice: a listing may pass over a file that is replaced meanwhile.
        if await self._without_file(worker) and (gone := await self._without_file(worker)):
            self.why_gone = (
                f"{storage.path}/{gone[0]} was deleted or moved away: nothing was done, see the broker's log"
            )
            log.error(
                "files of the journal are gone, nothing is written any more directory=%s names=%s: what they hold is "
                "lost when this process ends: move them back, or copy them from /proc/%d/fd, where `ls -l` shows them "
                "as deleted; then restart the broker",
                *(storage.path, ",".join(gone), os.getpid()),
            )

    async def _without_file(self, worker: Executor) -> list[str]:
        """Return the names of segments whose files the directory does not have. Raises StorageFailed."""
        before = {base for base, _ in self._segments}
        before -= await asyncio.get_running_loop().run_in_executor(worker, _named, self._segments)
        before -= {self._segments.dropping}  # by retention, which may have it dropped by now
        return [segment_name(base) for base, _ in self._segments if base in before]

    def _judge(self, free: int) -> None:
        """Begin or end the refusal below the watermark."""
        low, wanted = self.free_bytes_min, self.free_bytes_min + self.free_bytes_min // HYSTERESIS_PART
        if not self._low and free < low:
            self._low = (
                f"the disk has {free} bytes free, and broker.disk_free_bytes_min is {low}: nothing was done, send "
                f"again once there is room"
            )
            self._press_at = 0.0
            log.error(
                "disk low, new messages are refused until more is free free=%d min=%d wanted=%d", free, low, wanted
            )
        elif self._low and free >= wanted:
            self._low = ""
            log.warning("disk has room above the watermark again free=%d min=%d", free, low)

    def has_room_to_copy(self) -> bool:
        """Return whether a slave may append another segment's worth: the watermark and, as a master's reserve, a
        segment and an eighth are free. Once it was not, a segment more is needed. Asks the file system. Raises
        StorageFailed."""
        needed = max(self.free_bytes_min, self._reserve.size)
        if self._low:
            needed += max(self.free_bytes_min // HYSTERESIS_PART, self._segments.segment_bytes)
        free = _free_bytes(self._segments.storage.path)
        has_room = free >= needed
        if has_room == bool(self._low):
            self._low = "" if has_room else f"{free} bytes are free, and a copy goes on with {needed}"
            told = "disk has room, the copy goes on" if has_room else "disk low, the copy waits until more is free"
            log.warning("%s free=%d needed=%d", told, free, needed)
        return has_room

    def _failed(self, error: StorageFailed) -> None:
        if is_full(error):
            self.filled(error)
        else:
            log.warning("no reserve, a disk that fills will stop this broker error=%s", error)
            self._next_check_at = time.monotonic() + NO_RESERVE_S

    def _make_room(self) -> bool:
        """Release or make the reserve. False: there is no room for it. Raises StorageFailed."""
        if self._gives_up:
            self._gives_up = False
            self._reserve.give_up()
            return False
        has_reserve = self._reserve.is_held or self._reserve.find()
        if self._why:
            wanted = self._segments.segment_bytes + (0 if has_reserve else self._reserve.size)
            if _is_out_of_inodes(self._segments) or _free_bytes(self._segments.storage.path) < wanted:
                return False
        if not has_reserve:
            self._reserve.make()
        return True


def _free_bytes(path: str) -> int:
    """Return the free bytes of the file system. Raises StorageFailed."""
    with translated(Path(path)):
        found = os.statvfs(path)
    return found.f_frsize * (found.f_bfree if os.geteuid() == 0 else found.f_bavail)


def _named(segments: Segments) -> set[Lsn]:
    """Return the bases of the segments whose files are there, and not others in their place. Raises StorageFailed."""
    names = set(segments.storage.names())
    return {base for base, file in segments if segment_name(base) in names and file.is_named}


def _is_out_of_inodes(segments: Segments) -> bool:
    """Return whether the file system has room for no other file, however many bytes are free. One without a table of
    inodes says that it has none at all."""
    try:
        found = os.statvfs(segments.storage.path)
    except OSError:
        return False  # unknown
    return found.f_files > 0 and not (found.f_ffree if os.geteuid() == 0 else found.f_favail)
