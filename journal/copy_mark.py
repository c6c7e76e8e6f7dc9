"""What says that a directory was receiving a copy, and how much of that was fsynced here at least.

A record names what its writer had fsynced, on its own disk: of a copy that proves nothing, as long as some of it was
received and not fsynced. So a follower leaves this mark while it is open, brings it up to date every second, and takes
it away when everything is durable: then what records name is true here as well.
"""

from journal.frame import Lsn
from journal.lsn_file import read_lsn, remove_file, write_lsn
from journal.storage import Storage

NAME = "copy"


def read_mark(storage: Storage) -> Lsn | None:
    """Everything below it was fsynced here, more may have been. None: the directory was not receiving a copy.

    0 where the mark does not read back. Raises StorageFailed.
    """
    mark = read_lsn(storage, NAME)
    return Lsn(0) if isinstance(mark, str) else mark


def write_mark(storage: Storage, flushed: int) -> None:
    """Everything below *flushed* is fsynced; durable on return. Raises StorageFailed."""
    write_lsn(storage, NAME, flushed)


def remove_mark(storage: Storage) -> None:
    """Everything in the directory is fsynced. Raises StorageFailed."""
    remove_file(storage, NAME)
