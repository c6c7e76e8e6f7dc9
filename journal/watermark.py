"""The file `watermark`: the high watermark of a master in mode sync, as it was last written down.

The journal itself does not say what slaves have. Without this file a start could not tell what was acknowledged from
what was not, and would have to show too little, or too much. It lags behind what is acknowledged, and never runs ahead:

- it is written after the acknowledgement, in one piece: a crash leaves the one before;
- an open that finds the journal shorter lowers it before anything is appended, and a truncation before it truncates:
  no other bytes ever stand below it;
- a slave's own is in `slave.json`: a promotion writes this file from that one.
"""

import logging
import re
from typing import Final, NamedTuple

from journal.checksum import crc32
from journal.frame import Lsn
from journal.lsn_file import remove_file
from journal.storage import Storage

log = logging.getLogger(__name__)

NAME: Final = "watermark"
_WHOLE, _UNSURE = b"whole", b"unsure"
_CONTENT = re.compile(rb"([0-9a-f]{8}) ((\d{1,19}) (whole|unsure))\n")


class Watermark(NamedTuple):
    """Everything below *lsn* was acknowledged. *is_whole*: nothing acknowledged can be missing in this directory."""

    lsn: Lsn
    is_whole: bool


def read_watermark(storage: Storage) -> Watermark | None:
    """Read the file; None if there is none. Raises StorageFailed.

    One that does not read back says nothing: LSN 0, not whole.
    """
    if NAME not in storage.names():
        return None
    match = _CONTENT.fullmatch(storage.read(NAME))
    if match is None or int(match[1], 16) != crc32(match[2]):
        log.warning("damaged, passed over %s/%s", storage.path, NAME)
        return Watermark(Lsn(0), is_whole=False)
    return Watermark(Lsn(int(match[3])), match[4] == _WHOLE)


def write_watermark(storage: Storage, mark: Watermark) -> None:
    """Durable on return. Raises StorageFailed."""
    text = b"%d %b" % (mark.lsn, _WHOLE if mark.is_whole else _UNSURE)
    storage.replace(NAME, b"%08x %b\n" % (crc32(text), text))


def lower_watermark(storage: Storage, end: int) -> None:
    """The journal ends, or is about to end, at *end*: what was acknowledged beyond is not here. Durable on return.

    Raises StorageFailed.
    """
    if (mark := read_watermark(storage)) is not None and mark.lsn > end:
        log.warning("acknowledged and not here from=%d to=%d path=%s", end, mark.lsn, storage.path)
        write_watermark(storage, Watermark(Lsn(end), is_whole=False))


def remove_watermark(storage: Storage) -> None:
    """Nobody keeps it up to date from here on. Raises StorageFailed."""
    remove_file(storage, NAME)
