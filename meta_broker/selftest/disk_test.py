"""Measures one directory's disk: how long an fsync takes, and what can be seen of whether it is true.

All writing goes to an unnamed file, which is gone when the process ends, however it ends.
"""

import mmap
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
FILE_BYTES: Final = 32 * MIB
SAMPLES_MIN: Final = 10
SAMPLES_MAX: Final = 100_000
RECORD_BYTES: Final = 4 * KIB  # of a small commit
BATCH_BYTES: Final = 256 * KIB  # of a large one
_MOUNTS: Final = Path("/proc/self/mountinfo")
_DEVICES: Final = Path("/sys/dev/block")


@dataclass(frozen=True, slots=True)
class SyncTimes:
    """Durations of fdatasync after one write, in seconds, sorted."""

    seconds: tuple[float, ...]

    def at(self, share: float) -> float:
        """Return the duration that *share* of all do not exceed."""
        return self.seconds[min(int(share * len(self.seconds)), len(self.seconds) - 1)]


@dataclass(frozen=True, slots=True)
class Mount:
    """The mounted file system of a directory. *device*: MAJOR:MINOR."""

    kind: str
    point: str
    source: str
    options: frozenset[str]
    device: str


@dataclass(frozen=True, slots=True)
class BlockDevice:
    """The kernel's view of a disk; None: it does not say. *write_cache*: `write back` means that a flush is needed."""

    name: str
    is_rotational: bool | None
    write_cache: str | None
    is_virtual: bool


@dataclass(frozen=True, slots=True)
class DiskReport:
    """Measurements of one directory. None: unknown; the reason is in `unknown`."""

    directory: str
    free_bytes: int
    mount: Mount | None
    device: BlockDevice | None
    small: SyncTimes
    large: SyncTimes
    directory_sync_s: float | None
    is_preallocated: bool
    reads_back: bool | None  # past the page cache
    unknown: tuple[str, ...]


def measure_disk(directory: Path, seconds: float, on_step: Callable[[str], None]) -> DiskReport:
    """Measure the disk of *directory* for about *seconds*; calls *on_step* with what is done next. Leaves nothing
    there. Raises OSError, with *directory*."""
    try:
        return _measured(directory, seconds, on_step)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(directory)) from error


def _measured(directory: Path, seconds: float, on_step: Callable[[str], None]) -> DiskReport:
    unknown: list[str] = []
    on_step("mounts")
    mount = find_mount(directory, unknown)
    device = None if mount is None else find_device(mount, unknown)
    with tempfile.TemporaryFile(dir=directory) as file:
        fd = file.fileno()
        on_step("preallocation")
        os.posix_fallocate(fd, 0, FILE_BYTES)
        _fill(fd)
        is_preallocated = os.fstat(fd).st_blocks * 512 >= FILE_BYTES
        on_step("fsync of 4 KiB")
        small = _sync_times(fd, RECORD_BYTES, seconds * 0.6)
        on_step("fsync of 256 KiB")
        large = _sync_times(fd, BATCH_BYTES, seconds * 0.4)
        on_step("reading back")
        reads_back = _reads_back(fd, unknown)
    on_step("fsync of the directory")
    found = os.statvfs(directory)
    return DiskReport(
        directory=str(directory.absolute()),
        free_bytes=found.f_frsize * found.f_bavail,
        mount=mount,
        device=device,
        small=small,
        large=large,
        directory_sync_s=_directory_sync_s(directory, unknown),
        is_preallocated=is_preallocated,
        reads_back=reads_back,
        unknown=tuple(unknown),
    )


def _fill(fd: int) -> None:
    """Write the file's zeros out, as the journal does, so that later writes change bytes alone."""
    zeros = bytes(4 * MIB)
    for position in range(0, FILE_BYTES, len(zeros)):
        os.pwrite(fd, zeros, position)
    os.fsync(fd)


def _sync_times(fd: int, size: int, seconds: float) -> SyncTimes:
    data = os.urandom(size)
    ends, position, times = time.monotonic() + seconds, 0, list[float]()
    while (time.monotonic() < ends and len(times) < SAMPLES_MAX) or len(times) < SAMPLES_MIN:
        os.pwrite(fd, data, position)
        began = time.perf_counter()
        os.fdatasync(fd)
        times.append(time.perf_counter() - began)
        position = (position + size) % FILE_BYTES
    return SyncTimes(tuple(sorted(times)))


def _directory_sync_s(directory: Path, unknown: list[str]) -> float | None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        began = time.perf_counter()
        os.fsync(fd)
        return time.perf_counter() - began
    except OSError as error:
        unknown.append(f"the directory can't be fsynced: {error.strerror}")
        return None
    finally:
        os.close(fd)


def _reads_back(fd: int, unknown: list[str]) -> bool | None:
    """Write, fsync, drop the cache, and read with O_DIRECT: True if the bytes come from below the page cache."""
    data = os.urandom(MIB)
    os.pwrite(fd, data, 0)
    os.fsync(fd)
    os.posix_fadvise(fd, 0, FILE_BYTES, os.POSIX_FADV_DONTNEED)
    try:
        direct = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_DIRECT)
    except OSError as error:
        unknown.append(f"past the page cache nothing can be read there: {error.strerror}")
        return None
    try:
        with mmap.mmap(-1, MIB) as buffer:  # aligned, as O_DIRECT wants it
            count = os.preadv(direct, [buffer], 0)
            return count == MIB and buffer[:] == data
    except OSError as error:
        unknown.append(f"reading past the page cache failed: {error.strerror}")
        return None
    finally:
        os.close(direct)


def find_mount(directory: Path, unknown: list[str]) -> Mount | None:
    device = directory.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    path, found = directory.resolve(), list[Mount]()
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        unknown.append(f"{_MOUNTS}: {error.strerror}: the file system's kind and options are unknown")
        return None
    for line in lines:
        if (mount := parse_mount(line)) is not None and path.is_relative_to(mount.point):
            found.append(mount)
    # The innermost one; of a file system mounted over another, the one whose device it is.
    found.sort(key=lambda mount: (len(mount.point), mount.device == wanted))
    if not found:
        unknown.append(f"no mount of {path} is listed: the file system's kind and options are unknown")
    return found[-1] if found else None


def parse_mount(line: str) -> Mount | None:
    """Parse a line of /proc/self/mountinfo; None if it is none."""
    left, _, right = line.partition(" - ")
    words, rest = left.split(), right.split()
    if len(words) < 6 or len(rest) < 3:
        return None
    point = words[4].encode().decode("unicode_escape", errors="replace")  # \040 is a blank
    options = {*words[5].split(","), *rest[2].split(",")}
    return Mount(rest[0], point, rest[1], frozenset(options), words[2])


def find_device(mount: Mount, unknown: list[str]) -> BlockDevice | None:
    """Return the disk below *mount*; None if it has none that the kernel shows."""
    place = _DEVICES / mount.device
    try:
        real = place.resolve(strict=True)
    except OSError:
        if mount.source.startswith("/dev/"):
            unknown.append(f"{mount.source} is not in {_DEVICES}: its write cache is unknown")
        return None
    disk = real.parent if (real / "partition").exists() else real
    name = disk.name
    is_virtual = name.startswith(("vd", "xvd", "loop", "ubd", "nbd", "rbd")) or "/virtual/" in str(disk)
    rotational, cache = _word(disk / "queue/rotational"), _word(disk / "queue/write_cache")
    if cache is None:
        unknown.append(f"{name}: the kernel does not say whether it has a write cache")
    return BlockDevice(name, None if rotational is None else rotational == "1", cache, is_virtual)


def _word(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
