"""`place`: where a decision log was made, so that a copy of it is told from it.

Two logs that give transactions the same prefix roll back each other's: each takes what it has not decided itself for
abandoned. A directory is known by its inode, which survives renaming, a reboot, and mounting on another machine, and by
its device, whose number means something until the machine is started again. What neither tells is a copy of a whole
file system that is mounted on another machine.
"""

import logging
from pathlib import Path

from journal.errors import StorageFailed
from journal.storage import DirectoryStorage
from meta_client.coordinator.errors import CopiedLog

FILE_NAME = "place"
MOVED = "moved"  # made by whoever knows that no other copy is in use; counts once
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

log = logging.getLogger(__name__)


def keep_place(storage: DirectoryStorage, *, is_new: bool) -> None:
    """Check that the log in *storage* was made there, and remember where it is. While the directory is locked.

    *is_new*: there is no log yet. Raises CopiedLog, StorageFailed.
    """
    names, here = storage.names(), place_of(Path(storage.path))
    known = storage.read(FILE_NAME).decode(errors="replace") if FILE_NAME in names else ""
    if not is_new and not is_same_place(known, here):
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


def is_same_place(known: str, here: str) -> bool:
    """Whether two lines of `place_of` name one place; the device's number counts within one life of the machine."""
    match known.split(), here.split():
        case [known_inode, known_device, known_boot], [inode, device, boot]:
            return known_inode == inode and (known_device == device or known_boot != boot)
    return False


def place_of(path: Path) -> str:
    """One line: inode, device, and the machine's life, as far as they can be told. Raises StorageFailed."""
    try:
        status, boot = path.stat(), _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError as error:
        raise StorageFailed(f"{path}: cannot tell where it is: {error.strerror or error}") from error
    return f"inode={status.st_ino} device={status.st_dev} boot={boot}\n"
