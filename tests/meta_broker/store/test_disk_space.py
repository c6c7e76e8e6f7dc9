"""Room on the disk, as numbers of free bytes tell it: refusals, a copy that waits, the reserve. No disk is filled."""

import errno
import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from journal.errors import StorageFailed
from journal.state.wall_clock import wall_clock_ms
from meta_broker.config.broker_config import BrokerConfig
from meta_broker.config.broker_section import BrokerSection
from meta_broker.store import disk_space
from meta_broker.store.disk_space import DiskSpace
from meta_broker.store.message_store import MessageStore
from tests.fixtures.loops import in_loop

SEGMENT = 1 << 20
LOW = 8 * SEGMENT


class Disk:
    free: int | StorageFailed = 64 * SEGMENT

    def __call__(self, path: str) -> int:
        assert path
        if isinstance(self.free, StorageFailed):
            raise self.free
        return self.free


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    found = Disk()
    monkeypatch.setattr(disk_space, "_free_bytes", found)
    return found


@pytest.fixture
def space(tmp_path: Path, disk: Disk) -> Iterator[DiskSpace]:
    section = BrokerSection(segment_bytes=SEGMENT, message_bytes_max=65536, disk_free_bytes_min=LOW)
    config = BrokerConfig(data=tmp_path, broker_id=0, port=0, broker=section)
    store = MessageStore.open(config, "test", lambda: None, wall_clock_ms)
    yield store.space
    store.close()


async def tick(space: DiskSpace, worker: ThreadPoolExecutor) -> bool:
    """A check that is due; return whether retention must run."""
    space._next_check_at = 0.0
    is_pressed = space.tick(worker)
    await space.stop()
    return is_pressed


@in_loop
async def test_messages_are_refused_below_the_watermark_until_an_eighth_more_is_free(
    space: DiskSpace, disk: Disk
) -> None:
    with ThreadPoolExecutor(1) as worker:
        assert not await tick(space, worker)
        assert space.why_full == ""
        disk.free = LOW - 1
        await tick(space, worker)
        assert f"{LOW - 1} bytes free, and broker.disk_free_bytes_min is {LOW}" in space.why_full
        assert not space.is_out_of_room
        disk.free = LOW
        assert await tick(space, worker), "retention is to make room"
        assert space.is_full
        disk.free = LOW + LOW // 8
        assert not await tick(space, worker), "once in half a minute"
        assert not space.is_full


@in_loop
async def test_a_copy_waits_until_a_segment_more_is_free(
    space: DiskSpace, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    free = [LOW, LOW - 1, LOW, LOW + SEGMENT - 1, LOW + SEGMENT, LOW]
    told = []
    for disk.free in free:
        told.append(space.has_room_to_copy())
    assert told == [True, False, False, False, True, True]
    changes = [record.getMessage().split(" free=")[0] for record in caplog.records]
    assert changes == ["disk low, the copy waits until more is free", "disk has room, the copy goes on"]


def failed(number: int) -> StorageFailed:
    error = StorageFailed(f"no reserve: {errno.errorcode[number]}")
    error.__cause__ = OSError(number, "no")
    return error


@in_loop
async def test_a_check_that_fails_is_a_full_disk_or_a_warning(
    space: DiskSpace, disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    with ThreadPoolExecutor(1) as worker:
        disk.free = failed(errno.EIO)
        await tick(space, worker)
        assert [record.levelno for record in caplog.records] == [logging.WARNING]
        assert not space.is_full
        disk.free = failed(errno.ENOSPC)
        await tick(space, worker)
        assert "the disk is full (no reserve: ENOSPC)" in space.why_full
        assert space.is_out_of_room
        assert space.why_at_end == "", "the reserve is still there"
        disk.free = LOW
        space.give_up_reserve()
        await tick(space, worker)
        assert space.is_full
        space.give_up_reserve()  # there is none
        disk.free = 64 * SEGMENT
        await tick(space, worker)
        assert not space.is_full
