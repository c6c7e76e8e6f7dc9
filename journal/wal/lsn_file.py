"""Files that hold one LSN on one line: its CRC-32 in eight hexadecimal digits, a space, the number, a line feed."""

import re

from journal.checksum import crc32
from journal.errors import InvalidContent, StorageFailed
from journal.records.header import Lsn
from journal.wal.storage import Storage

_CONTENT = re.compile(rb"([0-9a-f]{8}) (\d{1,20})\n")


def read_lsn(storage: Storage, name: str) -> Lsn | None:
    """Read the LSN; None without a file. Raises InvalidContent, StorageFailed."""
    if name not in storage.names():
        return None
    try:
        raw = storage.read(name)
    except StorageFailed:
        if name in storage.names():  # else a live writer removed it meanwhile
            raise
        return None
    match = _CONTENT.fullmatch(raw)
    if match is None or int(match[1], 16) != crc32(match[2]):
        raise InvalidContent(f"{storage.path}/{name} does not read back")
    return Lsn(int(match[2]))


def write_lsn(storage: Storage, name: str, lsn: int) -> None:
    """Write the LSN; durable on return. Raises StorageFailed."""
    text = b"%d" % lsn
    storage.replace(name, b"%08x %b\n" % (crc32(text), text))


def remove_file(storage: Storage, name: str) -> None:
    """Delete the file if it exists; durable on return. Raises StorageFailed."""
    if name in storage.names():
        storage.remove(name)
