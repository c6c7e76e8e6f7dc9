"""Memory a broker can count on: the machine's, or the limit of its control group."""

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_ROOT = Path("/sys/fs/cgroup")


def memory_bytes(proc: Path = Path("/proc/self/cgroup"), root: Path = _ROOT) -> int:
    """Return physical memory, or the smallest limit of this process's control group and its parents, if that is
    less.
    """
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *_limits(proc, root)])


def _limits(proc: Path, root: Path) -> Iterator[int]:
    for line in _text(proc).splitlines():
        _, controllers, group = line.split(":", 2)
        if not controllers:  # version 2
            folder, name = root, "memory.max"
        elif "memory" in controllers.split(","):
            folder, name = root / "memory", "memory.limit_in_bytes"
        else:
            continue
        path = PurePosixPath(group)
        for parent in (path, *path.parents):
            # A container sees its own group at the root, whatever the line says.
            if (limit := _text(folder / str(parent).lstrip("/") / name).strip()).isdecimal():
                yield int(limit)


def _text(path: Path) -> str:
    """Return the file's text; blank if it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
