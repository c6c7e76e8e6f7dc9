"""An index file gives back what retention has let go of, and whatever the power cuts short, a start finds the rest."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from journal.records.extents import Extent
from journal.records.header import Lsn, Offset
from journal.records.index_updates import IndexUpdate
from journal.records.record import PartitionName
from journal.state.checkpoint import IndexFileEntry
from meta_broker.store import index_layout, partition_index
from meta_broker.store.index_file import IndexDamaged
from meta_broker.store.index_layout import ENTRY_BYTES
from meta_broker.store.partition_index import PartitionIndex
from tests.fixtures.thoroughness import examples
from tests.fixtures.warm import warm, warm_places

ORDERS = PartitionName("orders", 0)
SIZES = index_layout.CHUNK_BYTES, index_layout.CHUNK_ENTRIES, partition_index.RENEWED_ENTRIES_MIN
SMALL = 4 * ENTRY_BYTES, 3, 2
RUN_BYTES = 10


def set_sizes(chunk_bytes: int, chunk_entries: int, renewed_entries_min: int) -> None:
    index_layout.CHUNK_BYTES, index_layout.CHUNK_ENTRIES = chunk_bytes, chunk_entries
    partition_index.RENEWED_ENTRIES_MIN = renewed_entries_min


@pytest.fixture
def small() -> Iterator[None]:
    set_sizes(*SMALL)
    yield
    set_sizes(*SIZES)


def publication(number: int) -> IndexUpdate:
    return IndexUpdate(ORDERS, Offset(number * RUN_BYTES), Extent(Lsn(128 + 100 * number), RUN_BYTES, 1, number))


def content(index: PartitionIndex) -> list[int]:
    """The LSN of everything there is, run by run, as a reader finds it."""
    found = []
    for offset in range(index.start, index.end, RUN_BYTES):
        ((lsn, size, count),) = warm_places(index, offset, RUN_BYTES)
        assert (size, count) == (RUN_BYTES, 1)
        found.append(lsn)
    return found


class RenewalMachine(RuleBasedStateMachine):
    """The model: so many runs were published, and the first so many of those are gone."""

    def __init__(self) -> None:
        super().__init__()
        set_sizes(*SMALL)
        self.directory = Path(tempfile.mkdtemp())
        self.path = self.directory / "orders-0.index"
        self.index = PartitionIndex(self.path)
        self.count = self.gone = 0
        self.mark: IndexFileEntry | None = None
        self.marked = 0, 0  # how many were gone, and published, as of the newest checkpoint

    def teardown(self) -> None:
        set_sizes(*SIZES)
        shutil.rmtree(self.directory)

    @initialize()
    def fresh(self) -> None:
        assert self.index.restore(0, 0, None)

    @rule(count=st.integers(1, 12))
    def publish(self, count: int) -> None:
        for number in range(self.count, self.count + count):
            self.index.publish(publication(number))
        self.count += count

    @rule(share=st.floats(0, 1))
    def trim(self, share: float) -> None:
        self.gone += round((self.count - self.gone) * share)
        self.index.trim(self.gone * RUN_BYTES)

    @rule(power_goes=st.sampled_from(["never", "before the checkpoint", "before it is installed", "at the end"]))
    def checkpoint(self, power_goes: str) -> None:
        spill, marked = self.index.spill(), (self.gone, self.count)
        if spill is None:
            assert self.index.mark is not None
            self.mark, self.marked = self.index.mark, marked
            return
        file = self.index.write(spill)
        assert file is not None
        if power_goes != "before the checkpoint":
            self.mark, self.marked = file.mark, marked
            if power_goes != "before it is installed":
                self.index.install(spill, file)
                self.index.filed(spill, file)
        if power_goes != "never":
            self.restart()

    @rule()
    def restart(self) -> None:
        gone, count = self.marked
        self.index = PartitionIndex(self.path)
        assert self.index.restore(gone * RUN_BYTES, count * RUN_BYTES, self.mark)
        for number in range(count, self.count):
            self.index.publish(publication(number))
        self.index.trim(self.gone * RUN_BYTES)

    @invariant()
    def agrees_with_the_model(self) -> None:
        assert not self.index.is_damaged
        assert (self.index.start, self.index.end) == (self.gone * RUN_BYTES, self.count * RUN_BYTES)
        assert content(self.index) == [publication(number).extent.lsn for number in range(self.gone, self.count)]
        assert warm(lambda: self.index.at_time(self.gone)) == self.gone * RUN_BYTES


TestRenewal = RenewalMachine.TestCase
TestRenewal.settings = settings(max_examples=examples(100), stateful_step_count=20, deadline=None)


def filed(path: Path, count: int) -> PartitionIndex:
    index = PartitionIndex(path)
    for number in range(count):
        index.publish(publication(number))
    write(index)
    return index


def write(index: PartitionIndex) -> None:
    spill = index.spill()
    assert spill is not None
    file = index.write(spill)
    assert file is not None
    index.install(spill, file)
    index.filed(spill, file)


@pytest.mark.usefixtures("small")
def test_what_is_damaged_is_noticed_and_not_copied(tmp_path: Path) -> None:
    path = tmp_path / "orders-0.index"
    entry = filed(path, 60).mark
    noticed: list[str] = []
    index = PartitionIndex(path, lambda: noticed.append("damage"))
    assert index.restore(0, 600, entry)
    with path.open("r+b") as file:  # in chunk 17 of 20, which is needed and which looking for the start passes by
        file.seek(17 * SMALL[0] + 8)
        file.write(b"\xff")
    index.trim(400)
    spill = index.spill()
    assert spill is not None
    with pytest.raises(IndexDamaged):
        index.write(spill)
    index.damaged()
    assert noticed == ["damage"]
    assert index.is_damaged
    assert not path.with_name(path.name + ".new").exists()


@pytest.mark.usefixtures("small")
def test_a_file_shrinks_by_what_is_below_the_start(tmp_path: Path) -> None:
    path = tmp_path / "orders-0.index"
    index = filed(path, 300)
    before = path.stat().st_size
    index.trim(140 * RUN_BYTES)
    write(index)
    assert path.stat().st_size == before  # less than half
    assert index.spill() is None
    index.trim(290 * RUN_BYTES)
    write(index)
    assert path.stat().st_size < before / 20
    assert content(index) == [publication(number).extent.lsn for number in range(290, 300)]
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
