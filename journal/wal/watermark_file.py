"""The file `watermark`: the high watermark of a master in mode sync, as last saved.

The journal itself does not record what slaves have. Without this file a start could not tell which records were
acknowledged. The saved value lags behind the high watermark and never exceeds it:

- it is written after the acknowledgement, atomically: a crash leaves the previous one;
- an open that finds the journal shorter lowers it before it appends, and a truncation before it truncates: no other
  bytes ever stand below it;
- a slave's is in `slave.json`, from which a promotion writes this file.
"""

import logging
import re
from typing import Final, NamedTuple

from journal.checksum import crc32
from journal.records.header import Lsn
from journal.wal.lsn_file import remove_file
from journal.wal.storage import Storage

log = logging.getLogger(__name__)

NAME: Final = "watermark"
_WHOLE, _UNSURE = b"whole", b"unsure"
_CONTENT = re.compile(rb"([0-9a-f]{8}) ((\d{1,19}) (whole|unsure))\n")


class SavedWatermark(NamedTuple):
    """A saved high watermark: everything below *lsn* was acknowledged. *is_whole*: nothing acknowledged can be missing
    in this directory."""

    lsn: Lsn
    is_whole: bool


def read_watermark(storage: Storage) -> SavedWatermark | None:
    """Read the file; None if there is none. Raises StorageFailed.

    A file that does not read back counts as LSN 0, not whole.
    """
    if NAME not in storage.names():
        return None
    match = _CONTENT.fullmatch(storage.read(NAME))
    if match is None or int(match[1], 16) != crc32(match[2]):
        log.warning("damaged, passed over %s/%s", storage.path, NAME)
        return SavedWatermark(Lsn(0), is_whole=False)
    return SavedWatermark(Lsn(int(match[3])), match[4] == _WHOLE)


def write_watermark(storage: Storage, watermark: SavedWatermark) -> None:
    """Write the file; durable on return. Raises StorageFailed."""
    text = b"%d %b" % (watermark.lsn, _WHOLE if watermark.is_whole else _UNSURE)
    storage.replace(NAME, b"%08x %b\n" % (crc32(text), text))


def lower_watermark(storage: Storage, end: int) -> None:
    """Lower the watermark to *end*, at which the journal ends or is about to end, though more was acknowledged. Durable
    on return. Raises StorageFailed."""
    if (watermark := read_watermark(storage)) is not None and watermark.lsn > end:
        log.warning("acknowledged and not here from=%d to=%d path=%s", end, watermark.lsn, storage.path)
        write_watermark(storage, SavedWatermark(Lsn(end), is_whole=False))


def remove_watermark(storage: Storage) -> None:
    """Remove the file when it will not be updated any more. Raises StorageFailed."""
    remove_file(storage, NAME)
