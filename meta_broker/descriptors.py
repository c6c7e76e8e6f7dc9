"""File descriptors: as many as the system allows this process, and how many of them may be connections."""

import errno
import logging
import os
import resource
from pathlib import Path

from journal.errors import StorageFailed
from meta_broker.refusal import REFUSED_MAX

log = logging.getLogger(__name__)

OTHERS = 1024  # that may be opened later: segments, new index files, ZooKeeper, connections that are being refused
_OPEN = Path("/proc/self/fd")


def allow_all() -> None:
    """Raise the soft limit to the hard one. Before anything is opened: a segment takes two and a partition's index one,
    so that a few hundred of each would not find room under the soft limit that is usual."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def check_room(directory: Path, files: int) -> None:
    """Raises StorageFailed unless *files* in *directory* can be open beside what is open now."""
    if (left := _left()) is not None and left < files:
        raise StorageFailed(f"{directory}: {os.strerror(errno.EMFILE)}: raise the limit (ulimit -n)")


def _left() -> int | None:
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if allowed == resource.RLIM_INFINITY else allowed - len(list(_OPEN.iterdir()))


def room_for(connections_max: int, files: int = 0) -> int:
    """Number of connections that can be open beside what is open now and *files* more, *connections_max* at most.

    At the system's limit accepting fails before anybody could be told why, and so does the next segment, with which the
    journal stops: fewer connections are the better bound.
    """
    if (left := _left()) is None or (left := left - files) >= connections_max + OTHERS:
        return connections_max
    room = max(left - OTHERS, (left - REFUSED_MAX) // 2, 1)
    log.warning("too few open files for connections_max=%d room=%d: raise the limit (ulimit -n)", connections_max, room)
    return room
