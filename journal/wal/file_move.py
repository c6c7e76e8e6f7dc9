"""Copies a file durably: to another directory, by a link where that will do; or apart from its links; or replaces
one. Part of the storage seam."""

import errno
import filecmp
import os
import shutil
from pathlib import Path

from journal.errors import StorageFailed


def copy(source: Path, target: Path, shown: Path | None = None) -> None:
    """Make *target* the same file, or a copy; durable on return. Repeating it finishes a copy that a crash interrupted.

    *shown*: the name of *source* in messages. Raises StorageFailed, also if *target* exists with other content.
    """
    shown = shown or source
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.parent.samefile(target.parent):
            raise StorageFailed(f"{shown}: cannot be archived where it is: name another directory")
        _make_second(source, target, shown)
        sync_directory(target.parent)
    except OSError as error:
        raise StorageFailed(f"{shown}: not archived as {target}: {error.strerror or error}") from error


def _make_second(source: Path, target: Path, shown: Path) -> None:
    try:
        os.link(source, target)  # never replaces another file, as a rename would
    except FileExistsError:
        if not source.samefile(target) and not filecmp.cmp(source, target, shallow=False):
            raise StorageFailed(
                f"{target} is there already and is not {shown}: give every broker an archive of its own"
            ) from None
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP):
            raise
        _copy(source, target)  # another disk, or one that has no links


def _copy(source: Path, target: Path) -> None:
    temporary = target.with_name(target.name + ".tmp")
    with source.open("rb") as reader, temporary.open("wb") as writer:
        shutil.copyfileobj(reader, writer, 1 << 20)
        writer.flush()
        os.fsync(writer.fileno())
    temporary.rename(target)


def unshare(path: Path) -> bool:
    """Make *path* a file of its own, if other names lead to the same bytes: a copy by links (`cp -al`) would change
    with it, and it with the copy. Durable on return. False: nothing to do. Raises OSError."""
    if path.stat().st_nlink == 1:
        return False
    _copy(path, path)
    sync_directory(path.parent)
    return True


def replace(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Write *data* as the file *path*, in place of one that is there. Durable on return. Raises OSError."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)  # the mode is set only at creation
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(fd, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(fd)
    temporary.rename(path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
