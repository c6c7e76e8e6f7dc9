"""Files of one line beside the segments: what the journal itself does not record about its bytes.

`copy`, the recovery point, marks a directory that is receiving a copy, with the LSN below which the copy was fsynced
here. A record names the durable LSN of its writer's disk, which proves nothing about a copy while received bytes are
not fsynced. So a follower keeps the file while it is open, updates it every second, and removes it once everything is
durable: from then on the LSNs in records hold here as well.

`watermark` is the high watermark of a master in mode sync, as last saved: without it a start could not tell which
records slaves had acknowledged. It lags behind the high watermark and never exceeds it:

- it is written after the acknowledgement, atomically: a crash leaves the previous one;
- an open that finds the journal shorter lowers it before it appends, and a truncation before it truncates: no other
  bytes ever stand below it;
- a slave's is in `slave.json`, from which a promotion writes this file.

A line is the CRC-32 of the rest in eight hexadecimal digits, a space, the rest, a line feed.
"""

import logging
import re
from typing import Final, NamedTuple

from journal.checksum import crc32
from journal.errors import InvalidContent, StorageFailed
from journal.records.header import Lsn
from journal.wal.storage import Storage

log = logging.getLogger(__name__)

COPY: Final = "copy"
WATERMARK: Final = "watermark"
_LINE: Final = re.compile(rb"([0-9a-f]{8}) (.+)\n")
_LSN: Final = re.compile(rb"\d{1,20}")
_WATERMARK: Final = re.compile(rb"(\d{1,19}) (whole|unsure)")


def _read(storage: Storage, name: str, content: re.Pattern[bytes]) -> re.Match[bytes] | None:
    """Read the line of a file that is there; None if it does not read back as *content*. Raises StorageFailed."""
    line = _LINE.fullmatch(storage.read(name))
    return None if line is None or int(line[1], 16) != crc32(line[2]) else content.fullmatch(line[2])


def _write(storage: Storage, name: str, text: bytes) -> None:
    storage.replace(name, b"%08x %b\n" % (crc32(text), text))


def read_lsn(storage: Storage, name: str) -> Lsn | None:
    """Read a file that holds an LSN; None without it. Raises InvalidContent, StorageFailed."""
    if name not in storage.names():
        return None
    try:
        found = _read(storage, name, _LSN)
    except StorageFailed:
        if name in storage.names():  # else a live writer removed it meanwhile
            raise
        return None
    if found is None:
        raise InvalidContent(f"{storage.path}/{name} does not read back")
    return Lsn(int(found[0]))


def write_lsn(storage: Storage, name: str, lsn: int) -> None:
    """Write a file that holds an LSN; durable on return. Raises StorageFailed."""
    _write(storage, name, b"%d" % lsn)


def remove_file(storage: Storage, name: str) -> None:
    """Delete the file if it exists; durable on return. Raises StorageFailed."""
    if name in storage.names():
        storage.remove(name)


def read_recovery_point(storage: Storage) -> Lsn | None:
    """Return the LSN below which everything was fsynced here; more may have been. None: the directory was not receiving
    a copy.

    0 if the file does not read back. Raises StorageFailed.
    """
    try:
        return read_lsn(storage, COPY)
    except InvalidContent:
        return Lsn(0)


def write_recovery_point(storage: Storage, flushed: int) -> None:
    """Record that everything below *flushed* is fsynced; durable on return. Raises StorageFailed."""
    write_lsn(storage, COPY, flushed)


def remove_recovery_point(storage: Storage) -> None:
    """Record that everything in the directory is fsynced. Raises StorageFailed."""
    remove_file(storage, COPY)


class SavedWatermark(NamedTuple):
    """A saved high watermark: everything below *lsn* was acknowledged. *is_whole*: nothing acknowledged can be missing
    in this directory."""

    lsn: Lsn
    is_whole: bool


def read_watermark(storage: Storage) -> SavedWatermark | None:
    """Read the file; None if there is none. Raises StorageFailed.

    A file that does not read back counts as LSN 0, not whole.
    """
    if WATERMARK not in storage.names():
        return None
    if (found := _read(storage, WATERMARK, _WATERMARK)) is None:
        log.warning("damaged, passed over %s/%s", storage.path, WATERMARK)
        return SavedWatermark(Lsn(0), is_whole=False)
    return SavedWatermark(Lsn(int(found[1])), found[2] == b"whole")


def write_watermark(storage: Storage, watermark: SavedWatermark) -> None:
    """Write the file; durable on return. Raises StorageFailed."""
    _write(storage, WATERMARK, b"%d %b" % (watermark.lsn, b"whole" if watermark.is_whole else b"unsure"))


def lower_watermark(storage: Storage, end: int) -> None:
    """Lower the watermark to *end*, at which the journal ends or is about to end, though more was acknowledged. Durable
    on return. Raises StorageFailed."""
    if (watermark := read_watermark(storage)) is not None and watermark.lsn > end:
        log.warning("acknowledged and not here from=%d to=%d path=%s", end, watermark.lsn, storage.path)
        write_watermark(storage, SavedWatermark(Lsn(end), is_whole=False))


def remove_watermark(storage: Storage) -> None:
    """Remove the file when it will not be updated any more. Raises StorageFailed."""
    remove_file(storage, WATERMARK)
