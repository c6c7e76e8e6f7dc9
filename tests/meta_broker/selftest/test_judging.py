"""Findings of the self-test about disks and machines of any kind."""

from dataclasses import replace

import pytest

from meta_broker.selftest.disk_test import BlockDevice, DiskReport, Mount, SyncTimes, parse_mount
from meta_broker.selftest.judging import MESSAGES_MAX, Grade, expect, judge
from meta_broker.selftest.machine import ClockState, MachineReport

MOUNT = Mount("ext4", "/var/lib", "/dev/nvme0n1p1", frozenset({"rw", "relatime"}), "259:1")
DEVICE = BlockDevice("nvme0n1", is_rotational=False, write_cache="write back", is_virtual=False)
GOOD = DiskReport(
    directory="/var/lib/metaq",
    free_bytes=1 << 40,
    mount=MOUNT,
    device=DEVICE,
    small=SyncTimes((0.0004, 0.0005, 0.0006, 0.002)),
    large=SyncTimes((0.001, 0.001)),
    directory_sync_s=0.001,
    is_preallocated=True,
    reads_back=True,
    unknown=(),
)
MACHINE = MachineReport(
    clock=ClockState(True, 0.01, "tsc"),
    stepped_s=0.0,
    descriptors_soft=1024,
    descriptors_hard=1 << 20,
    memory_bytes=8 << 30,
    processors=4,
    kernel="Linux 6.1 x86_64",
    python="CPython 3.11.2, GCC 12",
    is_optimized=True,
)


def severities(disk: DiskReport, machine: MachineReport = MACHINE) -> dict[str, set[Grade]]:
    found: dict[str, set[Grade]] = {}
    for one in judge(disk, machine):
        found.setdefault(one.what, set()).add(one.severity)
    return found


def test_a_good_disk_and_machine_have_nothing_against_them() -> None:
    assert {severity for found in severities(GOOD).values() for severity in found} == {Grade.OK}


@pytest.mark.parametrize(
    ("disk", "what", "severity"),
    [
        (replace(GOOD, mount=replace(MOUNT, kind="tmpfs"), device=None), "file system", Grade.BAD),
        (replace(GOOD, mount=replace(MOUNT, kind="nfs4"), device=None), "file system", Grade.UNKNOWN),
        (replace(GOOD, mount=replace(MOUNT, kind="overlay"), device=None), "file system", Grade.WARNING),
        (replace(GOOD, mount=replace(MOUNT, kind="fuse.sshfs"), device=None), "file system", Grade.UNKNOWN),
        (replace(GOOD, mount=replace(MOUNT, kind="zfs"), device=None), "file system", Grade.UNKNOWN),
        (replace(GOOD, mount=None, unknown=("no mounts",)), "file system", Grade.UNKNOWN),
        (replace(GOOD, mount=replace(MOUNT, options=frozenset({"nobarrier"}))), "file system", Grade.BAD),
        (
            replace(GOOD, mount=replace(MOUNT, kind="overlay", options=frozenset({"volatile"}))),
            "file system",
            Grade.BAD,
        ),
        (replace(GOOD, device=None), "flush", Grade.UNKNOWN),
        (replace(GOOD, device=replace(DEVICE, is_virtual=True)), "flush", Grade.WARNING),
        (replace(GOOD, device=replace(DEVICE, is_rotational=True)), "flush", Grade.BAD),
        (replace(GOOD, small=SyncTimes((2e-6,) * 5)), "flush", Grade.BAD),
        (replace(GOOD, large=SyncTimes((1e-6,) * 5)), "flush", Grade.BAD),
        (replace(GOOD, small=SyncTimes((0.001, 1.5))), "fsync", Grade.WARNING),
        (replace(GOOD, small=SyncTimes((0.03,) * 5)), "fsync", Grade.WARNING),
        (replace(GOOD, is_preallocated=False), "preallocation", Grade.WARNING),
        (replace(GOOD, directory_sync_s=None), "directory", Grade.BAD),
        (replace(GOOD, reads_back=False), "read back", Grade.BAD),
        (replace(GOOD, reads_back=None), "read back", Grade.UNKNOWN),
        (replace(GOOD, free_bytes=5), "free space", Grade.WARNING),
    ],
)
def test_each_kind_of_trouble_is_told(disk: DiskReport, what: str, severity: Grade) -> None:
    assert severity in severities(disk)[what]


@pytest.mark.parametrize(
    ("machine", "what", "severity"),
    [
        (replace(MACHINE, clock=ClockState(None, None, None)), "clock", Grade.UNKNOWN),
        (replace(MACHINE, clock=ClockState(False, None, "tsc")), "clock", Grade.WARNING),
        (replace(MACHINE, stepped_s=-5.0), "clock", Grade.WARNING),
        (replace(MACHINE, descriptors_hard=1024), "descriptors", Grade.WARNING),
        (replace(MACHINE, memory_bytes=1 << 20), "memory", Grade.WARNING),
        (replace(MACHINE, is_optimized=False), "python", Grade.WARNING),
    ],
)
def test_each_limit_of_a_machine_is_told(machine: MachineReport, what: str, severity: Grade) -> None:
    assert severity in severities(GOOD, machine)[what]


def test_rates_follow_the_median_fsync_up_to_what_python_does() -> None:
    slow = expect(replace(GOOD, small=SyncTimes((0.01,) * 3)))
    assert 90 < slow.one_by_one < 100
    assert 60 * slow.one_by_one < slow.parallel < MESSAGES_MAX
    assert expect(replace(GOOD, small=SyncTimes((1e-5,) * 3))).parallel == MESSAGES_MAX


def test_mounts_are_parsed_and_what_is_none_is_passed_over() -> None:
    line = r"36 35 98:0 /mnt1 /var/lib/my\040data rw,noatime master:1 - ext3 /dev/root rw,errors=continue"
    found = parse_mount(line)
    assert found == Mount(
        "ext3", "/var/lib/my data", "/dev/root", frozenset({"rw", "noatime", "errors=continue"}), "98:0"
    )
    assert parse_mount("") is parse_mount("nonsense - x") is None
