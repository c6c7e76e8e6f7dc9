"""Judges the measurements: what is wrong, what is unknown, and what rates to expect. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final

from meta_broker.selftest.disk_test import BATCH_BYTES, DiskReport
from meta_broker.selftest.machine import MachineReport

IMPLAUSIBLE_S: Final = 10e-6  # no bus carries a flush and its answer in less
ROTATION_S: Final = 2e-3  # half a turn at 15,000 a minute: no disk with heads is quicker
SLOW_S: Final = 20e-3
STALL_S: Final = 1.0
BATCH_RATE_MAX: Final = 30e9  # bytes a second: quicker than any disk, hence memory
STEP_S: Final = 0.1
DESCRIPTORS_MIN: Final = 65_536
MEMORY_MIN: Final = 1 << 30
FREE_MIN: Final = 1 << 30  # some segments, the reserve, and retention's room
CLIENT_S: Final = 150e-6  # of a send besides its fsync, client and broker together
MESSAGES_MAX: Final = 20_000  # small messages a second, sent one by one by many threads: Python's bound
PARALLEL: Final = 64

_MEMORY: Final = frozenset({"tmpfs", "ramfs", "devtmpfs"})
_REMOTE: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "glusterfs", "9p", "virtiofs", "afs", "lustre"}
)
_KNOWN: Final = frozenset({"ext4", "xfs", "btrfs", "ext3", "f2fs"})
_LYING: Final = frozenset({"nobarrier", "barrier=0", "volatile", "fsync=nobarrier", "nofsync", "fsync_mode=nobarrier"})


class Grade(StrEnum):
    OK = "ok"
    WARNING = "warning"  # works, and less well
    UNKNOWN = "unknown"  # it can't be seen from here, and counts
    BAD = "bad"  # not for a broker


@dataclass(frozen=True, slots=True)
class SelfTestFinding:
    severity: Grade
    what: str
    text: str


ok: Final = partial(SelfTestFinding, Grade.OK)
warning: Final = partial(SelfTestFinding, Grade.WARNING)
unknown: Final = partial(SelfTestFinding, Grade.UNKNOWN)
bad: Final = partial(SelfTestFinding, Grade.BAD)


@dataclass(frozen=True, slots=True)
class Expectation:
    """Messages a second by the measured fsync: of one producer that waits for each, and of PARALLEL at once."""

    one_by_one: float
    parallel: float


def expect(disk: DiskReport) -> Expectation:
    """Return the rates to expect of small messages in flush mode `sync`."""
    one = 1 / (disk.small.at(0.5) + CLIENT_S)
    return Expectation(one, min(PARALLEL / (disk.small.at(0.5) + CLIENT_S), MESSAGES_MAX))


def judge(disk: DiskReport, machine: MachineReport) -> list[SelfTestFinding]:
    """Return findings about disk and machine, in the order of their subjects."""
    return [*_file_system(disk), *_flush(disk), *_times(disk), *_files(disk), *_clock(machine), *_limits(machine)]


def _file_system(disk: DiskReport) -> Iterator[SelfTestFinding]:
    what, mount = "file system", disk.mount
    if mount is None:
        yield unknown(what, "; ".join(disk.unknown))
        return
    where = f"{mount.kind} at {mount.point}"
    if mount.kind in _MEMORY:
        yield bad(what, f"{where} is memory: a restart of the machine loses everything")
    elif mount.kind in _REMOTE:
        yield unknown(what, f"{where} is on another machine: what its fsync means, and its locks, is up to that")
    elif mount.kind == "overlay":
        yield warning(what, f"{where} is a container's layer, gone with the container: mount a volume for --data")
    elif mount.kind.startswith("fuse"):
        yield unknown(what, f"{where} is a program's: what its fsync means is up to that program")
    elif mount.kind in _KNOWN:
        yield ok(what, where)
    else:
        yield unknown(what, f"{where} was never tried with metaq")
    if lying := sorted(_LYING & mount.options):
        yield bad(what, f"mounted with {', '.join(lying)}: an fsync does not reach the disk")


def _flush(disk: DiskReport) -> Iterator[SelfTestFinding]:
    what, device, half = "flush", disk.device, disk.small.at(0.5)
    if device is None:
        yield unknown(what, "the kernel shows no disk below this file system: its cache is unknown")
    elif device.is_virtual:
        yield warning(
            what,
            f"{device.name} is virtual, {device.write_cache or 'write cache unknown'}: its host decides whether a "
            f"flush reaches a disk",
        )
    else:
        yield ok(what, f"{device.name}, {device.write_cache or 'write cache unknown'}")
    if half < IMPLAUSIBLE_S:
        yield bad(what, f"half of all fsyncs take less than {half * 1e6:.2g} us: no disk does that")
    elif device is not None and device.is_rotational and not device.is_virtual and half < ROTATION_S:
        yield bad(
            what,
            f"half of all fsyncs take less than {half * 1e3:.1f} ms, and {device.name} rotates: a cache answers; make "
            f"sure that it has a battery, or switch it off",
        )
    if (rate := BATCH_BYTES / disk.large.at(0.5)) > BATCH_RATE_MAX:
        yield bad(what, f"{rate / 1e9:.0f} GB a second are fsynced: that is memory, no disk")


def _times(disk: DiskReport) -> Iterator[SelfTestFinding]:
    small, what = disk.small, "fsync"
    text = (
        f"{len(small.seconds)} of 4 KiB: {_ms(small.at(0.5))} ms median, {_ms(small.at(0.95))} at 95 %, "
        f"{_ms(small.at(0.99))} at 99 %, {_ms(small.seconds[-1])} at most; of 256 KiB {_ms(disk.large.at(0.5))} median"
    )
    worst = max(small.seconds[-1], disk.large.seconds[-1])
    if worst > STALL_S:
        yield warning(what, f"{text}: one stalled for {worst:.1f} s, and everybody waits meanwhile")
    elif small.at(0.5) > SLOW_S:
        yield warning(what, f"{text}: slow; a disk with flash, or more producers at once")
    else:
        yield ok(what, text)


def _files(disk: DiskReport) -> Iterator[SelfTestFinding]:
    if not disk.is_preallocated:
        yield warning("preallocation", "files are not allocated ahead: a full disk may stop a write half way")
    if disk.directory_sync_s is None:
        yield bad("directory", "; ".join(disk.unknown))
    match disk.reads_back:
        case True:
            yield ok("read back", "what was fsynced is read back past the page cache")
        case False:
            yield bad("read back", "what was fsynced reads back differently past the page cache")
        case None:
            yield unknown("read back", "; ".join(disk.unknown))
    if disk.free_bytes < FREE_MIN:
        yield warning("free space", f"{disk.free_bytes >> 20} MiB: see docs on planning the disk")


def _clock(machine: MachineReport) -> Iterator[SelfTestFinding]:
    clock, what = machine.clock, "clock"
    if abs(machine.stepped_s) > STEP_S:
        yield warning(what, f"the wall clock was set by {machine.stepped_s:+.1f} s during the test")
    if clock.is_synchronized is None:
        yield unknown(what, "the kernel can't be asked whether something keeps the clock right")
    elif not clock.is_synchronized:
        yield warning(what, "nothing keeps the clock right: run an NTP client; retention goes by it")
    else:
        bound = "" if clock.error_s is None else f", within {clock.error_s:.1f} s"
        yield ok(what, f"kept right{bound}; source {clock.source or 'unknown'}")


def _limits(machine: MachineReport) -> Iterator[SelfTestFinding]:
    hard = machine.descriptors_hard
    count = "no limit" if hard < 0 else str(hard)
    if 0 <= hard < DESCRIPTORS_MIN:
        yield warning("descriptors", f"{count} at most: one a connection, a partition and a segment; raise LimitNOFILE")
    else:
        yield ok("descriptors", f"{count} at most, {machine.descriptors_soft} now: a broker raises it")
    memory = f"{machine.memory_bytes >> 20} MiB, {machine.processors} processors"
    severity = Grade.WARNING if machine.memory_bytes < MEMORY_MIN else Grade.OK
    yield SelfTestFinding(severity, "memory", memory)
    yield ok("kernel", machine.kernel)
    if machine.is_optimized:
        yield ok("python", machine.python)
    else:
        yield warning("python", f"{machine.python}: built for debugging, several times slower")


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3g}"
