"""What says that a directory was receiving a copy, and how much of that was fsynced here at least.

A record names what its writer had fsynced, on its own disk: of a copy that proves nothing, as long as some of it was
received and not fsynced. So a follower leaves this mark while it is open, brings it up to date every second, and takes
it away when everything is durable: then what records name is true here as well.

File `copy`: the CRC-32 of the rest in eight hexadecimal digits, a space, the LSN, a line feed.
"""

import re

from journal.checksum import crc32
from journal.errors import StorageFailed
from journal.frame import Lsn
from journal.storage import Storage

NAME = "copy"
_CONTENT = re.compile(rb"([0-9a-f]{8}) (\d{1,20})\n")


def read_mark(storage: Storage) -> Lsn | None:
    """Everything below it was fsynced here, more may have been. None: the directory was not receiving a copy.

    0 where the mark does not read back. Raises StorageFailed.
    """
    if NAME not in storage.names():
        return None
    try:
        raw = storage.read(NAME)
    except StorageFailed:
        if NAME in storage.names():
            raise
        return None  # a follower that lives took it away meanwhile
    match = _CONTENT.fullmatch(raw)
    if match is None or int(match[1], 16) != crc32(match[2]):
        return Lsn(0)
    return Lsn(int(match[2]))


def write_mark(storage: Storage, flushed: int) -> None:
    """Everything below *flushed* is fsynced; durable on return. Raises StorageFailed."""
    text = b"%d" % flushed
    storage.replace(NAME, b"%08x %b\n" % (crc32(text), text))


def remove_mark(storage: Storage) -> None:
    """Everything in the directory is fsynced. Raises StorageFailed."""
    if NAME in storage.names():
        storage.remove(NAME)
