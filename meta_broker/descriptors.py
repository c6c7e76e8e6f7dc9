"""Room for connections among the file descriptors that the system allows this process."""

import logging
import resource

log = logging.getLogger(__name__)

OTHERS = 1024  # segments, index files, ZooKeeper, the event loop: with room to grow


def room_for(connections_max: int) -> int:
    """How many connections can be open, *connections_max* at most; the soft limit is raised as far as that takes.

    At the system's limit accepting fails before anybody could be told why: fewer connections are the better bound.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections_max + OTHERS
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return connections_max
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed == wanted:
        return connections_max
    room = max(allowed - OTHERS, allowed // 2)
    log.warning("too few open files for connections_max=%d room=%d: raise the limit (ulimit -n)", connections_max, room)
    return room
