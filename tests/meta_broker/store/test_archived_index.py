"""An archived index has what partitions lost; damage anywhere in it is found."""

from itertools import pairwise
from pathlib import Path
from typing import Any
from zlib import crc32

import msgspec
import pytest

from journal.errors import InvalidContent, StorageFailed
from journal.records.extents import Extent
from journal.records.header import Lsn, Offset
from journal.records.index_updates import IndexUpdate
from journal.records.record import PartitionName
from journal.wal.segments import JournalIdentity
from meta_broker.store.archived_index import _MAGIC, _TRAILER, FORMAT, ArchivedIndexFile, write_archived_index
from meta_broker.store.index_file import IndexDamaged
from meta_broker.store.partition_index import JournalSlice, PartitionIndex
from tests.fixtures.warm import warm_places

OWNER = JournalIdentity("shop", 3)
ORDERS, STOCK = PartitionName("orders", 0), PartitionName("stock", 1)
RUN = 100  # bytes, of five messages
RUNS = 1_300  # three chunks


def published(path: Path, name: PartitionName, runs: int) -> PartitionIndex:
    index = PartitionIndex(path)
    for number in range(runs):
        update = IndexUpdate(name, Offset(number * RUN), Extent(Lsn(1_000 + number * 200), RUN, 5, 10 + number))
        index.publish(update)
    return index


def filed(path: Path, name: PartitionName, runs: int) -> PartitionIndex:
    index = published(path, name, runs)
    spill = index.spill()
    assert spill is not None
    index.filed(spill, index.write(spill))
    return index


@pytest.fixture
def written(tmp_path: Path) -> ArchivedIndexFile:
    """Of orders all but the last ten runs, most of them from a file; of stock the first three, from memory."""
    orders = filed(tmp_path / "orders-0.index", ORDERS, RUNS)
    stock = published(tmp_path / "stock-1.index", STOCK, 20)
    spill = stock.spill()
    taken = {ORDERS: (orders.covered_with(None), (RUNS - 10) * RUN), STOCK: (stock.covered_with(spill), 3 * RUN)}
    return write_archived_index(tmp_path / "archived", OWNER, 77_000, taken, {})


def test_it_gives_the_places_that_the_index_gave(tmp_path: Path, written: ArchivedIndexFile) -> None:
    again = ArchivedIndexFile.open(tmp_path / "archived" / written.name, OWNER)
    assert again.cut == 77_000
    index = again.partition(ORDERS)
    assert (index.start, index.end) == (0, (RUNS - 10) * RUN)
    for number in (0, 510, 511, 1_021, RUNS - 11):
        assert warm_places(index, number * RUN + 20, 200)[0] == JournalSlice(1_000 + number * 200 + 20, RUN - 20, 5)
    assert len(warm_places(index, 0, 10 * RUN * RUNS)) == RUNS - 10
    assert len(warm_places(again.partition(STOCK), 0, 10 * RUN * RUNS)) == 3


def test_the_next_one_continues_it_or_begins_again(tmp_path: Path, written: ArchivedIndexFile) -> None:
    stock = published(tmp_path / "stock-1.index", STOCK, 20)
    orders = published(tmp_path / "orders-0.index", ORDERS, RUNS)
    stock.trim(3 * RUN)
    orders.trim(RUNS * RUN)  # deleted
    orders.publish(IndexUpdate(ORDERS, Offset(RUNS * RUN), Extent(Lsn(900_000), RUN, 5, 5_000)))
    taken = {
        STOCK: (stock.covered_with(stock.spill()), 5 * RUN),
        ORDERS: (orders.covered_with(orders.spill()), (RUNS + 1) * RUN),
    }
    then = write_archived_index(tmp_path / "archived", OWNER, 88_000, taken, written.ranges)
    assert [(each.first, each.start, each.end) for each in (then.ranges[STOCK], then.ranges[ORDERS])] == [
        (0, 3 * RUN, 5 * RUN),
        (RUNS * RUN, RUNS * RUN, (RUNS + 1) * RUN),
    ]
    last = write_archived_index(tmp_path / "archived", OWNER, 99_000, {}, then.ranges)
    kept = last.ranges[STOCK]
    assert (kept.first, kept.start, kept.end, kept.entries) == (0, 5 * RUN, 5 * RUN, 0)


def test_every_changed_byte_is_found(tmp_path: Path, written: ArchivedIndexFile) -> None:
    path = tmp_path / "archived" / written.name
    whole = path.read_bytes()
    found = 0
    for at in [*range(0, len(whole) - 600, 997), *range(len(whole) - 600, len(whole))]:
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        try:
            again = ArchivedIndexFile.open(path, OWNER)
            for name in again.ranges:
                index = again.partition(name)
                places = warm_places(index, index.start, 10 * RUN * RUNS)
                assert all(after.lsn - before.lsn == 200 for before, after in pairwise(places))
        except (InvalidContent, IndexDamaged, StorageFailed):
            found += 1
    # Zeros that nobody reads: the ends of seals, and of the trailer.
    assert found > 560


def test_one_of_another_journal_and_none_at_all_are_refused(tmp_path: Path, written: ArchivedIndexFile) -> None:
    path = tmp_path / "archived" / written.name
    with pytest.raises(InvalidContent, match="belongs to broker 3 of cluster 'shop', not to broker 4"):
        ArchivedIndexFile.open(path, JournalIdentity("shop", 4))
    path.write_bytes(b"")
    with pytest.raises(InvalidContent, match="0 bytes are no archived index"):
        ArchivedIndexFile.open(path, OWNER)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"format": FORMAT + 1}, f"format {FORMAT + 1}, this version reads {FORMAT}"),
        ({"partitions": []}, "its table contradicts its size, or itself"),
        ({"cut": -1}, "cut"),
    ],
)
def test_a_table_that_no_broker_of_this_version_writes(
    tmp_path: Path, written: ArchivedIndexFile, changes: dict[str, Any], why: str
) -> None:
    path = tmp_path / "archived" / written.name
    raw = path.read_bytes()
    _, size, _ = _TRAILER.unpack(raw[-_TRAILER.size :])
    begin = len(raw) - _TRAILER.size - size
    text = msgspec.json.encode(msgspec.json.decode(raw[begin : begin + size]) | changes)
    path.write_bytes(raw[:begin] + text + _TRAILER.pack(_MAGIC, len(text), crc32(text)))
    with pytest.raises(InvalidContent, match=why):
        ArchivedIndexFile.open(path, OWNER)
