"""The file `watermark` survives whatever happens to a directory, or says less."""

import contextlib
from random import Random

import pytest

from journal.errors import StorageFailed
from journal.records.header import Lsn
from journal.state.truncation import clear, truncate
from journal.wal.marks import (
    WATERMARK,
    SavedWatermark,
    lower_watermark,
    read_watermark,
    remove_watermark,
    write_watermark,
)
from tests.fixtures.copies import copy_of, end_of, open_follower
from tests.fixtures.faulty_storage import FaultyStorage, PowerCut
from tests.fixtures.histories import entries_of, write_history
from tests.fixtures.journals import IDENTITY, INTERVAL, ORDERS, Index, open_store

NOW_MS = 1_700_000_000_123


@pytest.fixture
def storage() -> FaultyStorage:
    return FaultyStorage(Random(1))


@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize("lsn", [0, 1, 2**63 - 1])
def test_it_reads_back(storage: FaultyStorage, lsn: int, *, is_whole: bool) -> None:
    watermark = SavedWatermark(Lsn(lsn), is_whole)
    write_watermark(storage, watermark)
    assert read_watermark(storage) == watermark
    remove_watermark(storage)
    assert read_watermark(storage) is None
    remove_watermark(storage)


def test_it_stands_in_one_line_that_its_checksum_covers(storage: FaultyStorage) -> None:
    write_watermark(storage, SavedWatermark(Lsn(4711), is_whole=True))
    content = storage.read(WATERMARK)
    assert content == b"8a66c14e 4711 whole\n"
    for at in range(len(content)):
        for bit in range(8):
            storage.blobs[WATERMARK] = content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :]
            assert read_watermark(storage) == SavedWatermark(Lsn(0), is_whole=False)
    for damaged in (b"", content[:-1], content + b"\n", content.replace(b"whole", b"unsure")):
        storage.blobs[WATERMARK] = damaged
        assert read_watermark(storage) == SavedWatermark(Lsn(0), is_whole=False)


def test_a_crash_while_it_is_written_leaves_the_one_before(storage: FaultyStorage) -> None:
    before, after = SavedWatermark(Lsn(1), is_whole=True), SavedWatermark(Lsn(2), is_whole=False)
    write_watermark(storage, before)
    storage.fail_at = len(storage.calls)
    with pytest.raises(StorageFailed):
        write_watermark(storage, after)
    assert {read_watermark(storage.after_power_cut(how, Random(n))) for how in PowerCut for n in range(9)} == {
        before,
        after,
    }


@pytest.mark.parametrize("as_copy", [False, True], ids=["master", "slave"])
def test_an_open_that_finds_less_lowers_it_before_other_bytes_can_stand_there(
    storage: FaultyStorage, *, as_copy: bool
) -> None:
    """A power cut in flush mode interval: what was acknowledged last is gone, and other records take its LSNs."""
    store = open_store(storage, flush=INTERVAL)
    store.journal.wait_flushed(store.journal.end)
    flushed = store.journal.end
    acknowledged = store.put(ORDERS, [b"x" * 100], 100, 1).lsn
    write_watermark(storage, SavedWatermark(acknowledged, is_whole=True))
    after = storage.after_power_cut(PowerCut.DROPPED, Random(0))
    with pytest.raises(StorageFailed):
        store.close()
    if as_copy:
        open_follower(after).close()
        assert end_of(after) == flushed
    else:
        open_store(after).close()
        assert end_of(after) > flushed
    assert read_watermark(after) == SavedWatermark(flushed, is_whole=False)


def test_a_truncation_lowers_it_before_it_truncates_whenever_the_power_goes(storage: FaultyStorage) -> None:
    write_history(storage).close()
    ends = [entry.header.end for entry, _ in entries_of(storage)]
    write_watermark(storage, SavedWatermark(ends[-1], is_whole=True))
    middle = ends[len(ends) // 2]
    whole = copy_of(storage)
    calls = len(whole.calls)
    truncate(whole, IDENTITY, middle, NOW_MS)
    for call in range(len(whole.calls) - calls):
        broken = copy_of(storage)
        broken.fail_at = len(broken.calls) + call
        with contextlib.suppress(StorageFailed):  # a checkpoint that can't be read is dropped, and nothing else goes on
            truncate(broken, IDENTITY, middle, NOW_MS)
        assert broken.fault_fired
        broken = broken.after_power_cut(PowerCut.KEPT, Random(call))
        watermark, end = read_watermark(broken), end_of(broken)
        assert watermark is not None
        assert watermark.lsn <= end
    assert read_watermark(whole) == SavedWatermark(middle, is_whole=False)
    clear(whole, IDENTITY, None, NOW_MS)
    assert read_watermark(whole) == SavedWatermark(Lsn(0), is_whole=False)


def test_a_shorter_one_is_left_alone(storage: FaultyStorage) -> None:
    write_watermark(storage, SavedWatermark(Lsn(5), is_whole=True))
    calls = len(storage.calls)
    lower_watermark(storage, 5)
    assert not {call for call, _ in storage.calls[calls:]} & {"replace", "remove"}
    assert read_watermark(storage) == SavedWatermark(Lsn(5), is_whole=True)


def test_at_every_place_it_may_stand_a_start_tells_what_is_below_and_keeps_the_rest(storage: FaultyStorage) -> None:
    write_history(storage).close()
    for name in [name for name in storage.blobs if name.startswith("checkpoint.")]:
        storage.remove(name)  # or they would say it
    ends = [entry.header.end for entry, _ in entries_of(storage)]
    whole = Index()
    open_store(copy_of(storage), sink=whole).close()
    for lsn in [0, *ends]:
        told = Index()
        store = open_store(copy_of(storage), sink=told, publish_below=lsn)
        assert all(said.lsn > lsn for said in store.recovered.waiting)
        for said in store.recovered.waiting:
            told.publish_all(said.updates)
            for partition, start in said.starts:
                told.trim(partition, start)
        assert told.entries == whole.entries
        assert told.starts == whole.starts
        store.close()
