"""Origin of a decision log, kept in its file `place`: the directory where it was made, to detect copies.

Two logs with the same transaction prefix roll back each other's transactions, as each takes the other's for abandoned.
A directory is identified by its inode, which survives renames, reboots and remounts, and by its device, whose number is
valid until the next boot. A copy of a whole file system on another machine is not detected.
"""

import logging
from pathlib import Path

from journal.errors import StorageFailed
from journal.wal.storage import DirectoryStorage
from meta_client.coordinator.errors import CopiedLog

FILE_NAME = "place"
MOVED = "moved"  # created by an operator who knows that no other copy is in use; used once
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

log = logging.getLogger(__name__)


def keep_origin(storage: DirectoryStorage, *, is_new: bool) -> None:
    """Check that the log in *storage* was made there, and store its origin. Requires the directory's lock.

    *is_new*: there is no log yet. Raises CopiedLog, StorageFailed.
    """
    names, here = storage.names(), origin_of(Path(storage.path))
    known = storage.read(FILE_NAME).decode(errors="replace") if FILE_NAME in names else ""
    if not is_new and not is_same_origin(known, here):
        origin = known.strip() or "nothing says where that was"
        if MOVED not in names:
            raise CopiedLog(
                f"{storage.path} is not where its decisions were made ({origin}; this is {here.strip()}): if the "
                f"original may still be used, give this coordinator an empty directory, because two with one log roll "
                f"back each other's transactions; if it was moved here, or restored from a backup that holds every "
                f"decision, create the file {storage.path}/{MOVED} and open it again"
            )
        log.warning("decision log was moved path=%s from=%s to=%s", storage.path, origin, here.strip())
    if known != here:
        storage.replace(FILE_NAME, here.encode())
    if MOVED in names:
        storage.remove(MOVED)


def is_copy(storage: DirectoryStorage) -> bool:
    """True if the log in *storage* was made elsewhere. Read-only. Raises StorageFailed."""
    names = storage.names()
    known = storage.read(FILE_NAME).decode(errors="replace") if FILE_NAME in names else ""
    return MOVED not in names and not is_same_origin(known, origin_of(Path(storage.path)))


def is_same_origin(known: str, here: str) -> bool:
    """True if two lines of `origin_of` name one directory; device numbers are compared only within one boot."""
    match known.split(), here.split():
        case [known_inode, known_device, known_boot], [inode, device, boot]:
            return known_inode == inode and (known_device == device or known_boot != boot)
    return False


def origin_of(path: Path) -> str:
    """Return one line with inode, device and boot id, as far as known. Raises StorageFailed."""
    try:
        status, boot = path.stat(), _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError as error:
        raise StorageFailed(f"{path}: cannot tell where it is: {error.strerror or error}") from error
    return f"inode={status.st_ino} device={status.st_dev} boot={boot}\n"
