"""The faults of a failing device, one by one, with plain files: what the other tests on it rely on."""

import errno
import mmap
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.device_server import SECTOR_BYTES, loop_devices, mounts
from tests.fixtures.failing_device import FailingDevice, failing_device, why_none

ROOT = Path(__file__).parents[2]
PAGE = 4096
PAGES = 64


@pytest.fixture
def device(tmp_path: Path) -> Iterator[FailingDevice]:
    with failing_device(tmp_path / "device", 16) as made:
        yield made


def stored(device: FailingDevice) -> Path:
    """A file whose bytes are on the device."""
    file = device.directory / "file"
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT)
    os.write(descriptor, b"old!" * (PAGES * PAGE // 4))
    os.fsync(descriptor)
    os.close(descriptor)
    return file


def overwrite(file: Path, data: bytes, position: int, *, synced: bool = True) -> None:
    descriptor = os.open(file, os.O_RDWR)
    try:
        os.pwrite(descriptor, data, position)
        if synced:
            os.fdatasync(descriptor)
    finally:
        os.close(descriptor)


def page(file: Path, number: int) -> bytes:
    with file.open("rb") as opened:
        return os.pread(opened.fileno(), PAGE, number * PAGE)


def test_what_was_flushed_outlives_a_power_cut_and_nothing_else_need(device: FailingDevice) -> None:
    file = stored(device)
    overwrite(file, b"new!" * 1024, PAGE)
    overwrite(file, b"gone" * 1024, 2 * PAGE, synced=False)
    (device.directory / "name").touch()  # its directory was not fsynced
    device.cut_power()
    device.power_on()
    assert (page(file, 1), page(file, 2)) == (b"new!" * 1024, b"old!" * 1024)
    assert not (device.directory / "name").exists()


@pytest.mark.parametrize("kept", [0.0, 0.5, 1.0])
def test_of_what_the_device_has_not_flushed_a_power_cut_keeps_some_sectors(kept: float, device: FailingDevice) -> None:
    file = stored(device)
    descriptor = os.open(file, os.O_RDWR | os.O_DIRECT)  # past the page cache
    with mmap.mmap(-1, PAGE * PAGES) as aligned:
        aligned[:] = b"new!" * (len(aligned) // 4)
        os.pwrite(descriptor, aligned, 0)
    os.close(descriptor)
    device.cut_power(kept, seed=1)
    device.power_on()
    found = file.read_bytes()
    sectors = [found[start : start + SECTOR_BYTES] for start in range(0, len(found), SECTOR_BYTES)]
    new, old = (sectors.count(word * (SECTOR_BYTES // 4)) for word in (b"new!", b"old!"))
    assert new + old == len(sectors)
    assert abs(new / len(sectors) - kept) < 0.2


def test_a_write_that_was_refused_stays_in_memory_and_the_next_fsync_says_nothing(device: FailingDevice) -> None:
    """A start must not trust what it reads from the page cache."""
    file = stored(device)
    device.refuse_writes()
    with pytest.raises(OSError, match="Input/output error") as raised:
        overwrite(file, b"lost" * 1024, PAGE)
    assert raised.value.errno == errno.EIO
    assert device.refused
    device.heal()
    overwrite(file, b"new!" * 1024, 2 * PAGE)
    assert page(file, 1) == b"lost" * 1024
    device.cut_power()
    device.power_on()
    assert (page(file, 1), page(file, 2)) == (b"old!" * 1024, b"new!" * 1024)


def test_writing_again_what_was_refused_does_not_store_it_where_blocks_were_only_allocated(
    device: FailingDevice,
) -> None:
    """Linux 6.18: the cached page takes its block for a written one, and ext4 never says so on the disk, where it reads
    as zeros, though fsync succeeds. A page that was dropped first is stored, and so is a write past the page cache."""
    file = device.directory / "file"
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT)
    os.posix_fallocate(descriptor, 0, PAGES * PAGE)
    os.fsync(descriptor)
    os.close(descriptor)
    device.refuse_writes()
    for number in (1, 2, 3):
        with pytest.raises(OSError, match="Input/output error"):
            overwrite(file, b"new!" * 1024, number * PAGE)
    device.heal()
    overwrite(file, page(file, 1), PAGE)
    descriptor = os.open(file, os.O_RDWR)
    os.posix_fadvise(descriptor, 2 * PAGE, PAGE, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    overwrite(file, b"new!" * 1024, 2 * PAGE)
    descriptor = os.open(file, os.O_RDWR | os.O_DIRECT)
    with mmap.mmap(-1, PAGE) as aligned:
        aligned[:] = b"new!" * 1024
        os.pwrite(descriptor, aligned, 3 * PAGE)
    os.fdatasync(descriptor)
    os.close(descriptor)
    device.cut_power()
    device.power_on()
    assert page(file, 1) in (bytes(PAGE), b"new!" * 1024)
    assert [page(file, number) for number in (2, 3)] == [b"new!" * 1024] * 2


def test_writes_to_one_file_alone_are_refused(device: FailingDevice) -> None:
    file = stored(device)
    device.refuse_writes([file])
    with pytest.raises(OSError, match="Input/output error"):
        overwrite(file, b"lost", 0)
    other = device.directory / "other"
    other.touch()
    overwrite(other, b"else", 0)
    device.cut_power()
    device.power_on()
    assert (other.read_bytes(), page(file, 0)) == (b"else", b"old!" * 1024)


def test_a_flush_that_is_refused_may_forget_what_it_was_for(device: FailingDevice) -> None:
    file = stored(device)
    device.refuse_flushes(forgets=True)
    with pytest.raises(OSError, match="Input/output error"):
        overwrite(file, b"lost" * 1024, PAGE)
    device.heal()
    overwrite(file, b"new!" * 1024, 2 * PAGE)
    assert page(file, 1) == b"lost" * 1024
    device.remount()
    assert (page(file, 1), page(file, 2)) == (b"old!" * 1024, b"new!" * 1024)


def test_a_sector_is_unreadable_until_it_is_written(device: FailingDevice) -> None:
    file = stored(device)
    device.make_unreadable(file, 3 * PAGE + 1000)
    with pytest.raises(OSError, match="Input/output error"):
        page(file, 3)
    assert [page(file, number) for number in (2, 4)] == [b"old!" * 1024] * 2
    overwrite(file, b"new!" * 1024, 3 * PAGE)
    device.remount()
    assert page(file, 3) == b"new!" * 1024


def test_a_slow_flush(device: FailingDevice) -> None:
    file = stored(device)
    device.slow_down(0.1)
    began = time.monotonic()
    overwrite(file, b"new!", 0)
    assert time.monotonic() - began >= 0.1


KILLED = """
import sys, time
from pathlib import Path
from tests.fixtures.failing_device import failing_device
with failing_device(Path(sys.argv[1]), 16) as device, (device.directory / "file").open("wb", 0) as file:
    file.write(b"unsynced")
    print(device._server.pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("whom", ["test", "device"])
def test_nothing_stays_mounted_of_a_test_that_was_killed(whom: str, tmp_path: Path) -> None:
    if (reason := why_none()) is not None:
        pytest.skip(reason)
    words = [sys.executable, "-c", KILLED, str(tmp_path / "killed")]
    test = subprocess.Popen(words, stdout=subprocess.PIPE, cwd=ROOT)
    assert test.stdout is not None
    server = int(test.stdout.readline())
    if whom == "device":
        os.kill(server, signal.SIGKILL)
    test.kill()
    test.communicate()
    if whom == "device":  # the next one clears up
        with failing_device(tmp_path / "next", 16):
            assert left(tmp_path / "killed") == []
    deadline = time.monotonic() + 30
    while left(tmp_path / "killed"):
        assert time.monotonic() < deadline, left(tmp_path / "killed")
        time.sleep(0.01)


def left(folder: Path) -> list[str]:
    """Bytes stored on its device."""
    paths = [path for _, path in [*loop_devices(), *mounts()]]
    return [path for path in paths if path.startswith(f"{folder}/")]
