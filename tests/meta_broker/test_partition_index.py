"""A partition's index against a dumb model: published, spilled, crashed, damaged and rebuilt in any order."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from journal.checkpoint import IndexMark
from journal.errors import StorageFailed
from journal.fold import Publication, Run
from journal.frame import Lsn, Offset
from journal.records import PartitionName
from meta_broker.store.partition_index import ENTRY_BYTES, PartitionIndex, Spill, file_name

ORDERS = PartitionName("orders", 0)


def publication(base: int, size: int, lsn: int) -> Publication:
    return Publication(ORDERS, Offset(base), Run(Lsn(lsn), size, 1 + size % 3, 1_700_000_000_000 + base))


class IndexMachine(RuleBasedStateMachine):
    """The model is the list of all publications; what a checkpoint covered of it survives a crash."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = Path(tempfile.mkdtemp())
        self.path = self.directory / "orders-0.index"
        self.index = PartitionIndex(self.path)
        self.published: list[Publication] = []
        self.mark: IndexMark | None = None
        self.marked = 0  # publications that the newest checkpoint covers
        self.pending: tuple[Spill, IndexMark, int] | None = None
        self.is_damaged = False  # what the mark covers; until a checkpoint writes it anew

    def teardown(self) -> None:
        shutil.rmtree(self.directory)

    @property
    def end(self) -> int:
        return sum(each.run.bytes for each in self.published)

    @initialize()
    def fresh(self) -> None:
        assert self.index.restore(0, 0, None)

    @rule(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=5), gap=st.integers(0, 100))
    def publish(self, sizes: list[int], gap: int) -> None:
        for size in sizes:
            last = self.published[-1].run if self.published else Run(Lsn(128), 0, 0, 0)
            new = publication(self.end, size, last.lsn + last.bytes + gap)
            self.published.append(new)
            self.index.publish(new)

    @rule(data=st.data())
    def publish_again(self, data: st.DataObject) -> None:
        if self.published:
            self.index.publish(data.draw(st.sampled_from(self.published)))

    @precondition(lambda self: self.pending is None)
    @rule()
    def begin_checkpoint(self) -> None:
        spill = self.index.spill()
        mark = self.index.mark_after(spill)
        assert mark.entries == len(self.published)
        if spill is not None:
            self.pending = spill, mark, len(self.published)

    @precondition(lambda self: self.pending is not None)
    @rule(is_written=st.booleans())
    def finish_checkpoint(self, is_written: bool) -> None:
        """The index file first, then the checkpoint; a crash in between leaves entries that no mark covers."""
        assert self.pending is not None
        spill, mark, covered = self.pending
        self.pending = None
        self.index.write(spill)
        self.is_damaged = False
        if is_written:
            self.mark, self.marked = mark, covered
            self.index.filed(spill)
        else:
            self.crash_and_restart("nothing")

    @precondition(lambda self: self.pending is None)
    @rule()
    def checkpoint(self) -> None:
        self.begin_checkpoint()
        if self.pending is not None:
            self.finish_checkpoint(is_written=True)

    @rule(damage=st.sampled_from(["nothing", "lost", "short", "flipped", "longer", "another", "directory"]))
    def crash_and_restart(self, damage: str) -> None:
        self.pending = None
        if self.marked and not self.is_damaged:
            self.is_damaged = self.do_damage(damage)
        is_whole = self.marked == 0 or not self.is_damaged
        self.index = PartitionIndex(self.path)
        end = sum(each.run.bytes for each in self.published[: self.marked])
        assert self.index.restore(0, end, self.mark) is is_whole
        for each in self.published[self.marked if is_whole else 0 :]:
            self.index.publish(each)
        if damage == "directory" and self.path.is_dir():
            self.path.rmdir()

    def do_damage(self, damage: str) -> bool:
        """Damage the file; whether what the checkpoint covers was hit."""
        covered = self.marked * ENTRY_BYTES
        content = bytearray(self.path.read_bytes())
        match damage:
            case "nothing":
                return False
            case "lost":
                self.path.unlink()
            case "short":
                self.path.write_bytes(content[: covered - 1])
            case "flipped":
                content[min(covered, len(content)) // 2] ^= 1
                self.path.write_bytes(content)
            case "longer":
                self.path.write_bytes(content + b"\xff" * 40)
                return False
            case "another":
                self.path.write_bytes(bytes(len(content)))
            case "directory":
                self.path.unlink()
                self.path.mkdir()
        return True

    @invariant()
    def agrees_with_the_model(self) -> None:
        assert self.index.end == self.end
        assert len(self.index) == len(self.published)
        place = [lsn for each in self.published for lsn in range(each.run.lsn, each.run.lsn + each.run.bytes)]
        bases = [each.base for each in self.published for _ in range(each.run.bytes)]
        for offset in {0, self.end // 3, self.end // 2, self.end - 1} & set(range(self.end)):
            for bytes_max in (1, 7, 60, self.end):
                found = [lsn for at, size in self.index.places(offset, bytes_max) for lsn in range(at, at + size)]
                assert found == place[offset : offset + bytes_max]
            assert self.index.nearest(offset) == bases[offset]
        assert self.index.nearest(self.end) == self.index.nearest(2**63 - 1) == self.end
        assert self.index.nearest(-1) == 0

    @invariant()
    def reads_on_where_it_stopped(self) -> None:
        """Readers follow one another; each goes through the whole partition with its own step."""
        for step in (3, 11, 1000):
            offset, read = 0, 0
            while offset < self.end:
                got = sum(size for _, size in self.index.places(offset, step))
                assert got == min(step, self.end - offset)
                offset, read = offset + got, read + got
            assert read == self.end


TestIndex = IndexMachine.TestCase
TestIndex.settings = settings(max_examples=100, stateful_step_count=20, deadline=None)


def test_an_empty_partition_needs_no_file(tmp_path: Path) -> None:
    index = PartitionIndex(tmp_path / "x.index")
    assert index.restore(500, 500, None)
    assert (index.start, index.end, len(index), index.spill()) == (500, 500, 0, None)
    assert [index.nearest(offset) for offset in (-1, 499, 500, 501)] == [500] * 4


def test_a_checkpoint_without_a_mark_means_rebuilding(tmp_path: Path) -> None:
    index = PartitionIndex(tmp_path / "x.index")
    assert not index.restore(0, 10, None)
    assert not index.restore(0, 10, IndexMark(entries=-1, crc=0))
    assert not index.restore(0, 10, IndexMark(entries=0, crc=0))
    assert (index.start, index.end, len(index)) == (0, 0, 0)


def test_a_whole_file_of_another_end_is_refused(tmp_path: Path) -> None:
    index = PartitionIndex(tmp_path / "x.index")
    index.publish(publication(0, 10, 200))
    spill = index.spill()
    assert spill is not None
    index.write(spill)
    mark = index.mark_after(spill)
    assert index.restore(0, 10, mark)
    assert not index.restore(0, 11, mark)


def test_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    index = PartitionIndex(tmp_path / "x.index")
    mark = IndexMark(entries=0, crc=0)
    for base in (0, 10, 20):  # three checkpoints: each adds to the file of the one before
        index.publish(publication(base, 10, 200 + base))
        spill = index.spill()
        assert spill is not None
        mark = index.mark_after(spill)
        index.write(spill)
        index.filed(spill)
    content = (tmp_path / "x.index").read_bytes()
    assert len(content) == 3 * ENTRY_BYTES
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 0x40
        (tmp_path / "x.index").write_bytes(damaged)
        assert not PartitionIndex(tmp_path / "x.index").restore(0, 30, mark)
    (tmp_path / "x.index").write_bytes(content)
    again = PartitionIndex(tmp_path / "x.index")
    assert again.restore(0, 30, mark)
    assert list(again.places(5, 10)) == [(205, 5), (210, 5)]


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    index = PartitionIndex(tmp_path / "absent" / "x.index")
    index.publish(publication(0, 10, 200))
    spill = index.spill()
    assert spill is not None
    with pytest.raises(StorageFailed, match=r"absent/x\.index: No such file or directory"):
        index.write(spill)


def test_entries_stay_in_memory_when_their_file_is_taken_away(tmp_path: Path) -> None:
    index = PartitionIndex(tmp_path / "x.index")
    index.publish(publication(0, 10, 200))
    spill = index.spill()
    assert spill is not None
    index.filed(spill)  # somebody deleted it between `write` and this
    assert list(index.places(0, 10)) == [(200, 10)]
    assert index.spill() == spill


def test_every_topic_has_a_file_of_its_own(tmp_path: Path) -> None:
    names = ["a", "a-0", "a%2D0", "!" * 200, "!" * 199 + "?", "é" * 100, "é" * 99 + "e", "x" * 200, "x" * 199 + "y"]
    files = {file_name(PartitionName(topic, partition)) for topic in names for partition in (0, 65_535)}
    assert len(files) == 2 * len(names)
    for file in files:
        (tmp_path / file).write_bytes(b"")  # the file system takes the name
    assert file_name(ORDERS) == "orders-0.index"


@given(times=st.lists(st.integers(0, 50), max_size=20), asked=st.integers(-1, 51), split=st.integers(0, 20))
def test_an_offset_for_a_time(
    tmp_path_factory: pytest.TempPathFactory, times: list[int], asked: int, split: int
) -> None:
    """What comes later counts as no earlier, through a restart too: the rule that makes time a bisect."""
    path = tmp_path_factory.mktemp("index") / "orders-0.index"
    index = PartitionIndex(path)
    assert index.restore(0, 0, None)
    latest, expected = 0, None
    for number, time_ms in enumerate(times):
        if number == split and (spill := index.spill()) is not None:
            index.write(spill)
            mark = index.mark_after(spill)
            index = PartitionIndex(path)
            assert index.restore(0, number * 10, mark)
        index.publish(Publication(ORDERS, Offset(number * 10), Run(Lsn(number), 10, 1, time_ms)))
        latest = max(latest, time_ms)
        if expected is None and latest >= asked:
            expected = number * 10
    assert index.at_time(asked) == (index.end if expected is None else expected)
