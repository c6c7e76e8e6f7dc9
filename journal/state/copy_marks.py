"""Files that mark a directory as no broker's own: a back-up, or one that is being made or restored.

Stands alone: opening a directory needs nothing else of back-ups."""

from typing import Final

from journal.errors import DirectoryIsBackup
from journal.wal.storage import Storage

MANIFEST: Final = "backup.json"
UNFINISHED_BACKUP: Final = "backup.unfinished"
UNFINISHED_RESTORE: Final = "restore.unfinished"

_REMEDIES: Final = {
    UNFINISHED_BACKUP: "an interrupted `metaq backup` left it: repeat that, or delete the directory",
    UNFINISHED_RESTORE: "an interrupted `metaq restore` left it: repeat that, or empty the directory",
    MANIFEST: "it is a back-up, which gave its offsets out already: `metaq restore` makes a broker's directory of it",
}


def refuse_backup(storage: Storage, *, is_read: bool = False) -> None:
    """Raise DirectoryIsBackup unless the directory is a broker's. *is_read*: a finished back-up will do."""
    names = storage.names()
    for name, remedy in _REMEDIES.items():
        if name in names and not (is_read and name == MANIFEST):
            raise DirectoryIsBackup(f"{storage.path} can't be used, {name} is in it: {remedy}")
