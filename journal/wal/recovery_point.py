"""Recovery point: marks a directory that is receiving a copy, with the LSN below which the copy was fsynced here.

A record names the durable LSN of its writer's disk, which proves nothing about a copy while received bytes are not
fsynced. So a follower keeps this file while it is open, updates it every second, and removes it once everything is
durable: from then on the LSNs in records hold here as well.
"""

from journal.errors import InvalidContent
from journal.records.header import Lsn
from journal.wal.lsn_file import read_lsn, remove_file, write_lsn
from journal.wal.storage import Storage

NAME = "copy"


def read_recovery_point(storage: Storage) -> Lsn | None:
    """Return the LSN below which everything was fsynced here; more may have been. None: the directory was not receiving
    a copy.

    0 if the file does not read back. Raises StorageFailed.
    """
    try:
        return read_lsn(storage, NAME)
    except InvalidContent:
        return Lsn(0)


def write_recovery_point(storage: Storage, flushed: int) -> None:
    """Record that everything below *flushed* is fsynced; durable on return. Raises StorageFailed."""
    write_lsn(storage, NAME, flushed)


def remove_recovery_point(storage: Storage) -> None:
    """Record that everything in the directory is fsynced. Raises StorageFailed."""
    remove_file(storage, NAME)
