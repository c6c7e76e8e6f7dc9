"""File descriptors: the process's limit, and how many of them may be connections."""

import errno
import logging
import os
import resource
from pathlib import Path

from journal.errors import StorageFailed

log = logging.getLogger(__name__)

RESERVED = 1024  # for later files: segments, new index files, ZooKeeper, connections being rejected
REJECTING_MAX = 256  # connections being rejected with a reason at a time; others are dropped
_OPEN = Path("/proc/self/fd")


def raise_soft_limit() -> None:
    """Raise the soft limit to the hard one. Call it before anything is opened.

    A segment takes two descriptors and a partition's index one: the usual soft limit is too low for a few hundred of
    each.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def check_available(directory: Path, files: int) -> None:
    """Raise StorageFailed unless *files* more files, in *directory*, can be open at once."""
    if (left := _available()) is not None and left < files:
        raise StorageFailed(f"{directory}: {os.strerror(errno.EMFILE)}: raise the limit (ulimit -n)")


def _available() -> int | None:
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if allowed == resource.RLIM_INFINITY else allowed - len(list(_OPEN.iterdir()))


def connections_allowed(connections_max: int, files: int = 0) -> int:
    """Return how many connections, at most *connections_max*, can be open besides *files* more files.

    At the system's limit connections fail without a reason, and so does the next segment, which stops the journal:
    fewer connections are the better limit.
    """
    if (left := _available()) is None or (left := left - files) >= connections_max + RESERVED:
        return connections_max
    room = max(left - RESERVED, (left - REJECTING_MAX) // 2, 1)
    log.warning("too few open files for connections_max=%d room=%d: raise the limit (ulimit -n)", connections_max, room)
    return room
