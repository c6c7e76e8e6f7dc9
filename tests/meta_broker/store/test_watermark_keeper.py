"""The saved watermark follows the high watermark, once a second at most, and a disk that takes none stops nothing."""

import errno
import logging
from random import Random

import pytest

from journal.errors import StorageFailed
from journal.records.header import Lsn
from journal.wal.flush_mode import SYNC, FlushMode
from journal.wal.high_watermark import HighWatermark
from journal.wal.marks import SavedWatermark, read_watermark, write_watermark
from journal.wal.reserve import Reserve
from journal.wal.storage_file import Buffer
from meta_broker.store import watermark_keeper
from meta_broker.store.watermark_keeper import WatermarkKeeper, write_first_watermark
from tests.fixtures.faulty_storage import FaultyStorage
from tests.fixtures.loops import in_loop, until


class DiskWith(FaultyStorage):
    """Replaces no file while *error* is set, or as long as a full disk's reserve is held."""

    error: int | None = None

    def replace(self, name: str, data: Buffer) -> None:
        if self.error is not None and (self.error != errno.ENOSPC or self.files):
            raise StorageFailed(f"{name}: no") from OSError(self.error, "no")
        super().replace(name, data)


@pytest.mark.parametrize(
    ("flush", "before", "after"),
    [
        (SYNC, None, SavedWatermark(Lsn(0), is_whole=False)),
        (SYNC, SavedWatermark(Lsn(7), is_whole=True), SavedWatermark(Lsn(7), is_whole=True)),
        (FlushMode(50), SavedWatermark(Lsn(7), is_whole=True), SavedWatermark(Lsn(7), is_whole=False)),
    ],
)
def test_the_first_one_uses_the_reserve_of_a_full_disk(
    flush: FlushMode, before: SavedWatermark | None, after: SavedWatermark
) -> None:
    storage = DiskWith(Random(0))
    if before is not None:
        write_watermark(storage, before)
    Reserve(storage, 1000).make()
    storage.error = errno.ENOSPC
    write_first_watermark(storage, flush)
    assert read_watermark(storage) == after
    assert not storage.files
    storage.error = errno.EIO
    with pytest.raises(StorageFailed):
        write_first_watermark(storage, flush)


def test_a_full_disk_without_a_reserve_ends_the_start() -> None:
    storage = DiskWith(Random(0))
    storage.create("segment", 10, b"")
    storage.error = errno.ENOSPC
    with pytest.raises(StorageFailed):
        write_first_watermark(storage, SYNC)


@in_loop
async def test_it_follows_and_a_failure_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watermark_keeper, "WRITE_S", 0.0)
    storage, high = DiskWith(Random(0)), HighWatermark(Lsn(5))
    keeper = WatermarkKeeper(storage, high, SYNC, is_whole=True)
    keeper.tick()
    await keeper.stop()
    assert read_watermark(storage) is None, "nothing has changed"
    high.advance(8)
    keeper.tick()
    keeper.tick()
    keeper.close()  # the write under way is right
    await keeper.stop()
    assert read_watermark(storage) == (8, True)
    await until(lambda: keeper._writing is None)
    storage.error = errno.EIO
    for lsn in (9, 10):
        high.advance(lsn)
        keeper.tick()
        await keeper.stop()
        await until(lambda: keeper._writing is None)
    keeper.close()
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert errors == ["watermark not written, a restart would show less error=watermark: no"]
    storage.error = None
    keeper.close()
    assert read_watermark(storage) == (10, True)
