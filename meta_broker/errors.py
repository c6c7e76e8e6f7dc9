"""Errors that stop a broker from starting or going on; each names the thing, the cause and the remedy."""

import errno
from typing import Final

from meta_client.protocol.errors import MetaError

_ACCESS: Final = "give --data a directory that this user can read and write"
_ROOM: Final = "make room there, or give --data a directory on a larger disk"
_DISK: Final = "the disk is failing: see the kernel's log, and copy the directory before anything else"
_LOCKS: Final = "give --data a directory on a disk of this machine, or on a file system whose locks work"
_FILES: Final = "raise the limit of open files (ulimit -n)"
_REMEDIES: Final = {
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR), _ACCESS),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), _ROOM),
    **dict.fromkeys((errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOLCK), _LOCKS),
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), _FILES),
    errno.EIO: _DISK,
}


def with_remedy(text: str, number: int | None) -> str:
    """Append the remedy for errno *number* to *text*, if one is known."""
    return f"{text}: {_REMEDIES[number]}" if number in _REMEDIES else text


class BrokerError(MetaError):
    """Base of every error that the broker raises on purpose."""


class ConfigError(BrokerError):
    """The configuration cannot be used. Nothing was started."""


class CannotListen(BrokerError):
    """The address cannot be bound."""
