"""A partition's index against a dumb model: published, spilled, crashed, damaged and rebuilt in any order."""

import functools
import os
import resource
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from journal.errors import StorageFailed
from journal.records.extents import Extent, ExtentList
from journal.records.header import Lsn, Offset
from journal.records.index_updates import IndexUpdate
from journal.records.record import PartitionName
from journal.state.checkpoint import IndexFileEntry
from journal.wal.open_file import OpenFile
from meta_broker.store import index_file, index_layout, partition_index
from meta_broker.store.index_file import IndexCold, IndexDamaged, IndexFile
from meta_broker.store.index_layout import CHUNK_ENTRIES, ENTRY_BYTES, Spill, file_name
from meta_broker.store.index_survey import IndexSurvey
from meta_broker.store.partition_index import JournalSlice, PartitionIndex
from tests.fixtures.thoroughness import examples
from tests.fixtures.warm import warm, warm_places

ORDERS = PartitionName("orders", 0)
COUNTED_FILED = index_file.COUNTED_READS_MAX, index_file.COUNTED_CHUNKS_MAX
COUNTED_TAIL = partition_index.COUNTED_ENTRIES_MAX


def publication(base: int, size: int, lsn: int) -> IndexUpdate:
    return IndexUpdate(ORDERS, Offset(base), Extent(Lsn(lsn), size, 1 + size % 3, 1_700_000_000_000 + base))


def slices(places: Iterable[JournalSlice]) -> list[tuple[int, int]]:
    return [(place.lsn, place.bytes) for place in places]


def set_chunk(entries: int) -> None:
    index_layout.CHUNK_BYTES, index_layout.CHUNK_ENTRIES = (entries + 1) * ENTRY_BYTES, entries


@pytest.fixture
def small_chunks() -> Iterator[None]:
    """Two entries a chunk, so that few entries have many chunks."""
    set_chunk(2)
    yield
    set_chunk(CHUNK_ENTRIES)


def file_bytes(entries: int) -> int:
    return (entries + entries // index_layout.CHUNK_ENTRIES) * ENTRY_BYTES


def spilled(index: PartitionIndex) -> Spill:
    spill = index.spill()
    assert spill is not None
    return spill


def checkpoint(index: PartitionIndex) -> IndexFileEntry:
    spill = spilled(index)
    file = index.write(spill)
    assert file is not None
    index.filed(spill, file)
    return file.mark


class IndexMachine(RuleBasedStateMachine):
    """Compares an index with the list of all publications; a crash keeps what a checkpoint covered.

    A file that is lost or too short is noticed at the restart, other damage by the first reader; the index is rebuilt
    then.
    """

    def __init__(self) -> None:
        super().__init__()
        set_chunk(3)
        index_file.COUNTED_READS_MAX, index_file.COUNTED_CHUNKS_MAX = 1, 2
        partition_index.COUNTED_ENTRIES_MAX = 2
        self.directory = Path(tempfile.mkdtemp())
        self.path = self.directory / "orders-0.index"
        self.index = PartitionIndex(self.path)
        self.published: list[IndexUpdate] = []
        self.mark: IndexFileEntry | None = None
        self.marked = 0  # publications that the newest checkpoint covers
        self.pending: tuple[Spill, int] | None = None
        self.is_damaged = False  # what the mark covers, and a start sees it; until a checkpoint writes it again
        self.is_hidden = False  # the same, and a start does not see it

    def teardown(self) -> None:
        set_chunk(CHUNK_ENTRIES)
        index_file.COUNTED_READS_MAX, index_file.COUNTED_CHUNKS_MAX = COUNTED_FILED
        partition_index.COUNTED_ENTRIES_MAX = COUNTED_TAIL
        shutil.rmtree(self.directory)

    @property
    def end(self) -> int:
        return sum(each.extent.bytes for each in self.published)

    @initialize()
    def fresh(self) -> None:
        assert self.index.restore(0, 0, None)

    @rule(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=5), gap=st.integers(0, 100))
    def publish(self, sizes: list[int], gap: int) -> None:
        for size in sizes:
            last = self.published[-1].extent if self.published else Extent(Lsn(128), 0, 0, 0)
            new = publication(self.end, size, last.lsn + last.bytes + gap)
            self.published.append(new)
            self.index.publish(new)

    @rule(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=5), seen=st.integers(0, 5))
    def publish_block(self, sizes: list[int], seen: int) -> None:
        """The runs of a branch, of which the index may have the first ones already."""
        start, block = self.end, list[IndexUpdate]()
        for number, size in enumerate(sizes):
            last = block[-1].extent if block else Extent(Lsn(1 << 40 | start << 8), 0, 0, 0)
            block.append(publication(start, size, last.lsn + last.bytes))
            start += size
            self.published.append(block[-1])
            if number < seen:
                self.index.publish(block[-1])
        self.index.publish_runs(block[0].base, ExtentList(each.extent for each in block).numbers())

    @rule(data=st.data())
    def publish_again(self, data: st.DataObject) -> None:
        if self.published:
            self.index.publish(data.draw(st.sampled_from(self.published)))

    @precondition(lambda self: self.pending is None)
    @rule()
    def begin_checkpoint(self) -> None:
        spill = self.index.spill()
        if spill is not None:
            self.pending = spill, len(self.published)
        elif not self.index.is_damaged:
            assert self.index.mark == (self.mark or IndexFileEntry(entries=0, crc=0))

    @precondition(lambda self: self.pending is not None)
    @rule(is_written=st.booleans())
    def finish_checkpoint(self, is_written: bool) -> None:
        """The index file first, then the checkpoint; a crash in between leaves entries that no mark covers."""
        assert self.pending is not None
        spill, covered = self.pending
        self.pending = None
        file = self.index.write(spill)
        assert file is not None
        assert file.mark.entries == covered
        if spill.first == 0:
            self.is_damaged = self.is_hidden = False
        if is_written:
            self.mark, self.marked = file.mark, covered
            self.index.filed(spill, file)
        else:
            self.crash_and_restart("nothing", 0.0)

    @precondition(lambda self: self.pending is None)
    @rule()
    def checkpoint(self) -> None:
        self.begin_checkpoint()
        if self.pending is not None:
            self.finish_checkpoint(is_written=True)

    @rule(
        damage=st.sampled_from(["nothing", "lost", "short", "flipped", "longer", "another", "directory"]),
        where=st.floats(0, 1, exclude_max=True),
    )
    def crash_and_restart(self, damage: str, where: float) -> None:
        self.pending = None
        if self.marked and not self.is_damaged and not self.is_hidden:
            self.do_damage(damage, where)
        is_whole = self.marked == 0 or not self.is_damaged
        self.index = PartitionIndex(self.path)
        end = sum(each.extent.bytes for each in self.published[: self.marked])
        assert self.index.restore(0, end, self.mark) is is_whole
        assert self.index.is_damaged is not is_whole
        for each in self.published[self.marked :]:
            self.index.publish(each)
        if damage == "directory" and self.path.is_dir():
            self.path.rmdir()

    def do_damage(self, damage: str, where: float) -> None:
        """Damage the file somewhere in what the checkpoint covers."""
        covered = file_bytes(self.marked)
        content = bytearray(self.path.read_bytes())
        match damage:
            case "lost":
                self.path.unlink()
            case "short":
                self.path.write_bytes(content[: covered - 1])
            case "flipped":
                position = int(covered * where)
                content[position] ^= 1
                self.path.write_bytes(content)
            case "another":
                self.path.write_bytes(bytes(len(content)))
            case "directory":
                self.path.unlink()
                self.path.mkdir()
            case "longer":
                self.path.write_bytes(content + b"\xff" * 40)
        self.is_damaged = damage in ("lost", "short", "directory")
        self.is_hidden = damage in ("flipped", "another")

    def places(self, offset: int, bytes_max: int) -> list[JournalSlice]:
        return warm_places(self.index, offset, bytes_max)

    def rebuild(self) -> None:
        """Rebuild as a broker does after a start or a reader found damage."""
        assert self.is_hidden or self.is_damaged
        assert self.index.is_damaged
        assert self.index.mark is None
        assert self.index.spill() is None
        fresh, end = self.index.rebuilding()
        for each in self.published:
            if each.base < end:
                fresh.publish(each)
        self.index.rebuilt(fresh)

    def notice(self) -> None:
        """Read everything: damage is noticed before anything wrong is told, and the index is rebuilt."""
        try:
            for offset in range(self.end):
                assert sum(place.bytes for place in self.places(offset, 1)) == 1
        except IndexDamaged:
            self.rebuild()

    @invariant()
    def agrees_with_the_model(self) -> None:
        self.notice()
        assert self.index.end == self.end
        assert len(self.index) == len(self.published)
        place = [lsn for each in self.published for lsn in range(each.extent.lsn, each.extent.lsn + each.extent.bytes)]
        bases = [each.base for each in self.published for _ in range(each.extent.bytes)]
        for offset in {0, self.end // 3, self.end // 2, self.end - 1} & set(range(self.end)):
            for bytes_max in (1, 7, 60, self.end):
                found = list[int]()
                while len(found) < min(bytes_max, self.end - offset):
                    more = self.places(offset + len(found), bytes_max - len(found))
                    found += [lsn for at, size, _ in more for lsn in range(at, at + size)]
                assert found == place[offset : offset + bytes_max]
            assert warm(functools.partial(self.index.nearest, offset)) == bases[offset]
        assert self.index.nearest(self.end) == self.index.nearest(2**63 - 1) == self.end
        assert self.index.nearest(-1) == 0

    @invariant()
    def counts_in_pieces(self) -> None:
        """From inside of any run, as many messages as were published; an answer covers a bounded number of entries."""
        self.notice()
        for number, each in enumerate(self.published):
            for offset in {each.base, each.base + each.extent.bytes - 1}:
                before = each.extent._replace(bytes=offset - each.base)
                messages, at = 0, offset
                while at < self.end:
                    counted = warm(functools.partial(self.index.count, at))
                    if at == offset and before.bytes:
                        assert counted.before == (each.base, before.lsn, before.bytes, before.messages)
                    else:
                        assert counted.before is None
                    assert at < counted.next_offset
                    messages, at = messages + counted.messages, counted.next_offset
                assert messages == sum(later.extent.messages for later in self.published[number:])

    @invariant()
    def reads_on_where_it_stopped(self) -> None:
        """Readers follow one another; each goes through the whole partition with its own step, and counts each message
        once."""
        self.notice()
        for step in (3, 11, 1000):
            offset, read, messages = 0, 0, 0
            while offset < self.end:
                places = self.places(offset, step)
                got = sum(place.bytes for place in places)
                assert 0 < got <= min(step, self.end - offset)
                offset, read = offset + got, read + got
                messages += sum(place.messages for place in places)
            assert read == self.end
            assert messages == sum(each.extent.messages for each in self.published)


TestIndex = IndexMachine.TestCase
TestIndex.settings = settings(max_examples=examples(60), stateful_step_count=20, deadline=None)


def test_an_empty_partition_needs_no_file(tmp_path: Path) -> None:
    index = PartitionIndex(tmp_path / "x.index")
    assert index.restore(500, 500, None)
    assert (index.start, index.end, len(index), index.spill()) == (500, 500, 0, None)
    assert [index.nearest(offset) for offset in (-1, 499, 500, 501)] == [500] * 4


def test_a_checkpoint_without_a_mark_means_rebuilding(tmp_path: Path) -> None:
    index = PartitionIndex(tmp_path / "x.index")
    assert not index.restore(0, 10, None)
    assert not index.restore(0, 10, IndexFileEntry(entries=0, crc=0))
    assert (index.start, index.end, index.is_damaged) == (0, 10, True)
    index.publish(publication(10, 5, 300))
    assert slices(index.places(10, 5)) == [(300, 5)]  # what is published now is no worse for it
    for ask in (lambda: list(index.places(9, 5)), lambda: index.nearest(3), lambda: index.at_time(0)):
        with pytest.raises(IndexDamaged):
            ask()
    fresh, end = index.rebuilding()
    fresh.publish(publication(0, 10, 200))
    assert fresh.end == end
    index.rebuilt(fresh)
    assert slices(index.places(3, 9)) == [(203, 7), (300, 2)]


def test_a_whole_file_of_another_end_is_refused(tmp_path: Path) -> None:
    index = PartitionIndex(tmp_path / "x.index")
    index.publish(publication(0, 10, 200))
    entry = checkpoint(index)
    assert index.restore(0, 10, entry)
    assert slices(warm_places(index, 0, 10)) == [(200, 10)]
    assert index.restore(0, 11, entry)
    with pytest.raises(IndexDamaged, match="lost or damaged"):
        warm_places(index, 0, 10)
    assert index.is_damaged


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_every_flipped_byte_is_noticed(count: int, tmp_path: Path) -> None:
    """A flipped byte is found by the first reader of the file in the last chunk, of the chunk in an older one; in
    seals, too."""
    path = tmp_path / "x.index"
    index, entry = PartitionIndex(path), IndexFileEntry(entries=0, crc=0)
    for number in range(count):  # as many checkpoints: each adds to the file of the one before
        index.publish(publication(10 * number, 10, 200 + 10 * number))
        entry = checkpoint(index)
    content, end = path.read_bytes(), 10 * count
    assert len(content) == file_bytes(count)
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 0x40
        path.write_bytes(damaged)
        told = list[int]()
        again = PartitionIndex(path, functools.partial(told.append, position))
        is_last = position // index_layout.CHUNK_BYTES == (count - 1) // 2
        assert again.restore(0, end, entry)
        for _ in range(2):
            what = "(chunk|lost or damaged)" if is_last else f"chunk {position // 96} at byte"
            with pytest.raises(IndexDamaged, match=rf"x\.index: {what}"):
                warm_places(again, position // 96 * 20, 5)
        assert told == [position]
        with pytest.raises(IndexDamaged):
            list(again.covered_with(None).filed.blocks(0))
    path.write_bytes(content)
    again = PartitionIndex(path)
    assert again.restore(0, end, entry)
    assert slices(warm_places(again, 5, 10)) == [(205, 5), (210, 5)]
    assert b"".join(again.covered_with(None).filed.blocks(0)) == b"".join(index.covered_with(None).filed.blocks(0))


@pytest.mark.usefixtures("small_chunks")
def test_a_chunk_of_another_partition_or_place_does_not_pass(tmp_path: Path) -> None:
    marks = {}
    for name in "xy":
        index = PartitionIndex(tmp_path / f"{name}.index")
        for number in range(5):
            index.publish(publication(10 * number, 10, 200 + 10 * number))
        marks[name] = checkpoint(index)
    x, y = ((tmp_path / f"{name}.index").read_bytes() for name in "xy")
    for content in (y[:96] + x[96:], x[96:192] + x[96:], x[:96] + x[:96] + x[192:]):
        (tmp_path / "x.index").write_bytes(content)
        index = PartitionIndex(tmp_path / "x.index")
        assert index.restore(0, 50, marks["x"])
        with pytest.raises(IndexDamaged):
            [warm_places(index, offset, 10) for offset in range(0, 50, 10)]


@pytest.mark.usefixtures("small_chunks")
def test_a_start_reads_nothing_and_the_first_reader_proves_the_end_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.index"
    index = PartitionIndex(path)
    for number in range(1000):
        index.publish(publication(10 * number, 10, 200 + 10 * number))
    entry, read = checkpoint(index), list[int]()
    check = IndexFile._read

    def counted(index: IndexFile, file: OpenFile, chunk: int) -> bytes:
        read.append(chunk)
        return check(index, file, chunk)

    monkeypatch.setattr(IndexFile, "_read", counted)
    again = PartitionIndex(path)
    assert again.restore(0, 10_000, entry)
    assert read == []
    for _ in range(2):
        assert slices(warm_places(again, 5000, 10)) == [(5200, 10)]
    assert read[0] == 499
    assert len(set(read)) == len(read) <= 13  # and a bisect's worth, each once


def restored(path: Path) -> tuple[PartitionIndex, list[str]]:
    """An index of six entries as a start has it, which nobody has read, and what it tells of damage."""
    index = PartitionIndex(path)
    for number in range(6):
        index.publish(publication(10 * number, 10, 200 + 10 * number))
    entry, told = checkpoint(index), list[str]()
    again = PartitionIndex(path, lambda: told.append("damaged"))
    assert again.restore(0, 60, entry)
    assert (again.is_damaged, again.is_unopened) == (False, True)
    return again, told


def flip_the_end(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-ENTRY_BYTES - 8] ^= 1
    path.write_bytes(content)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("damage", [flip_the_end, lambda path: os.truncate(path, 0), Path.unlink])
@pytest.mark.parametrize(
    "first",
    [
        lambda index: warm_places(index, 0, 10),  # a reader
        lambda index: index.write(spilled(index)),  # a checkpoint
        lambda index: IndexSurvey(index.covered_with(None)).lowest_kept(0),  # retention
    ],
)
def test_damage_that_no_start_saw_is_noticed_by_the_first_reader(
    first: Callable[[PartitionIndex], object], damage: Callable[[Path], object], tmp_path: Path
) -> None:
    """Before it is added to, and before the journal is cut by what it says; what came since reads on meanwhile."""
    path = tmp_path / "x.index"
    index, told = restored(path)
    damage(path)  # after the start has seen its size
    index.publish(publication(60, 10, 300))
    before = path.read_bytes() if path.exists() else None
    with pytest.raises(IndexDamaged, match=r"x\.index: (chunk 2 .* is damaged|lost or damaged)"):
        first(index)
    index.damaged()  # as who catches it in a worker says
    assert told == ["damaged"]
    assert (path.read_bytes() if path.exists() else None) == before
    assert index.spill() is None
    assert index.mark is None
    assert slices(index.places(60, 10)) == [(300, 10)]
    fresh, end = index.rebuilding()
    for number in range(6):
        fresh.publish(publication(10 * number, 10, 200 + 10 * number))
    assert fresh.end == end
    index.rebuilt(fresh)
    entry = checkpoint(index)
    again = PartitionIndex(path)
    assert again.restore(0, 70, entry)
    assert slices(warm_places(again, 0, 70)) == [*((200 + 10 * number, 10) for number in range(6)), (300, 10)]


@pytest.mark.usefixtures("small_chunks")
def test_a_file_that_nobody_wanted_is_added_to(tmp_path: Path) -> None:
    path = tmp_path / "x.index"
    index, told = restored(path)
    index.publish(IndexUpdate(ORDERS, Offset(60), Extent(Lsn(300), 10, 1, 5)))  # the clock was set back
    entry = checkpoint(index)
    index = PartitionIndex(path)
    assert index.restore(0, 70, entry)
    assert slices(warm_places(index, 0, 70)) == [*((200 + 10 * number, 10) for number in range(6)), (300, 10)]
    assert warm(lambda: index.at_time(1_700_000_000_050)) == 50
    assert warm(lambda: index.at_time(6)) == 0
    assert told == []


@pytest.mark.usefixtures("small_chunks")
def test_want_of_descriptors_is_no_damage(tmp_path: Path) -> None:
    index, told = restored(tmp_path / "x.index")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(StorageFailed, match="Too many open files: raise the limit"):
            warm_places(index, 0, 10)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert slices(warm_places(index, 0, 10)) == [(200, 10)]
    assert told == []


@pytest.mark.usefixtures("small_chunks")
def test_a_renumbered_index_never_mixes_with_the_old_file(tmp_path: Path) -> None:
    """Rebuilt after retention an index has other numbers: an older checkpoint must not believe in a mixture."""
    path = tmp_path / "x.index"
    index = PartitionIndex(path)
    for number in range(6):
        index.publish(publication(10 * number, 10, 200 + 10 * number))
    old = checkpoint(index)
    shifted = PartitionIndex(path)
    assert not shifted.restore(20, 60, None)
    fresh, _ = shifted.rebuilding()
    for number in range(2, 6):
        fresh.publish(publication(10 * number, 10, 200 + 10 * number))
    shifted.rebuilt(fresh)
    new = checkpoint(shifted)
    assert len(path.read_bytes()) == file_bytes(4)
    assert list(path.parent.iterdir()) == [path]
    assert not PartitionIndex(path).restore(0, 60, old)
    assert PartitionIndex(path).restore(20, 60, new)


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    index = PartitionIndex(tmp_path / "absent" / "x.index")
    index.publish(publication(0, 10, 200))
    with pytest.raises(StorageFailed, match=r"absent/x\.index: No such file or directory"):
        index.write(spilled(index))


def test_a_file_that_is_taken_away_while_it_grows(tmp_path: Path) -> None:
    """The next write notices, and makes none in its place; what is open can still be read, until it is rebuilt."""
    path = tmp_path / "x.index"
    index = PartitionIndex(path)
    index.publish(publication(0, 10, 200))
    checkpoint(index)
    path.unlink()
    index.publish(publication(10, 10, 210))
    with pytest.raises(IndexDamaged, match="deleted"):
        checkpoint(index)
    assert not path.exists()
    assert slices(warm_places(index, 0, 20)) == [(200, 10), (210, 10)]


def test_every_topic_has_a_file_of_its_own(tmp_path: Path) -> None:
    names = ["a", "a-0", "a%2D0", "!" * 200, "!" * 199 + "?", "é" * 100, "é" * 99 + "e", "x" * 200, "x" * 199 + "y"]
    files = {file_name(PartitionName(topic, partition)) for topic in names for partition in (0, 65_535)}
    assert len(files) == 2 * len(names)
    for file in files:
        (tmp_path / file).write_bytes(b"")  # the file system takes the name
    assert file_name(ORDERS) == "orders-0.index"


@settings(deadline=None)  # it waits for a disk
@given(times=st.lists(st.integers(0, 50), max_size=20), asked=st.integers(-1, 51), split=st.integers(0, 20))
def test_an_offset_for_a_time(
    tmp_path_factory: pytest.TempPathFactory, times: list[int], asked: int, split: int
) -> None:
    """Times never fall from one publication to the next, through a restart too, so that a bisect finds a time."""
    path = tmp_path_factory.mktemp("index") / "orders-0.index"
    index = PartitionIndex(path)
    assert index.restore(0, 0, None)
    latest, expected = 0, None
    for number, time_ms in enumerate(times):
        if number == split and number:
            entry = checkpoint(index)
            index = PartitionIndex(path)
            assert index.restore(0, number * 10, entry)
        index.publish(IndexUpdate(ORDERS, Offset(number * 10), Extent(Lsn(number), 10, 1, time_ms)))
        latest = max(latest, time_ms)
        if expected is None and latest >= asked:
            expected = number * 10
    assert warm(lambda: index.at_time(asked)) == (index.end if expected is None else expected)


def test_a_gap_at_the_beginning_is_in_front_of_the_first_run(tmp_path: Path) -> None:
    """A restored partition that had no message begins at 0, and its first run is far behind."""
    for is_filed in (False, True):
        index = PartitionIndex(tmp_path / f"{is_filed}.index")
        assert index.restore(0, 0, None)
        index.publish(IndexUpdate(PartitionName("orders", 0), Offset(1000), Extent(Lsn(128), 0, 0, 1)))
        index.publish(publication(1000, 50, 256))
        if is_filed:
            checkpoint(index)
        for offset in (0, 999):
            assert list(index.places(offset, 100)) == []
            assert index.resumes(offset) == 1000
            assert [run.offset for run in index.runs(offset) if run.bytes] == [1000]
            assert index.nearest(offset) == 1000
        assert list(index.places(1000, 100)) == [JournalSlice(Lsn(256), 50, 1 + 50 % 3)]


def test_a_count_of_a_cold_index_loads_a_bounded_part_of_it(
    small_chunks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection is paused meanwhile, and looks up again after each part."""
    del small_chunks
    monkeypatch.setattr(index_file, "COUNTED_READS_MAX", 4)
    monkeypatch.setattr(OpenFile, "read_cached", lambda self, position, size: None)
    index, entries = PartitionIndex(tmp_path / "orders-0.index"), 400
    for number in range(entries):
        index.publish(publication(10 * number, 10, 100 * number + 1))
    mark = checkpoint(index)
    index.restore(0, 10 * entries, mark)
    runs: list[IndexCold] = []
    run = IndexCold.run

    def counted(cold: IndexCold) -> bytes:
        runs.append(cold)
        return run(cold)

    monkeypatch.setattr(IndexCold, "run", counted)
    offset = messages = 0
    while offset < index.end:
        runs.clear()
        found = warm(functools.partial(index.count, offset))
        assert len(runs) <= 12, "a bisect's chunks, then those it counts"
        offset, messages = found.next_offset, messages + found.messages
    assert messages == 2 * entries


def test_a_look_up_reads_one_chunk_however_long_the_index_is(
    small_chunks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers at many places would else read a chunk for each step of a search through the file."""
    del small_chunks
    monkeypatch.setattr(index_file, "CACHED_CHUNKS_MAX", 1)
    index, entries = PartitionIndex(tmp_path / "orders-0.index"), 400
    for number in range(entries):
        index.publish(publication(10 * number, 10, 100 * number + 1))
    index.restore(0, 10 * entries, checkpoint(index))
    reads: list[int] = []
    read = IndexFile.read

    def counted(file: IndexFile, chunk: int) -> bytes:
        reads.append(chunk)
        return read(file, chunk)

    everywhere = [10 * number + 3 for number in range(entries)]
    for offset in everywhere:
        assert slices(warm_places(index, offset, 7)) == [(10 * offset - 30 + 1 + 3, 7)]
    monkeypatch.setattr(IndexFile, "read", counted)
    for offset in reversed(everywhere):
        reads.clear()
        assert slices(warm_places(index, offset, 7)) == [(10 * offset - 30 + 1 + 3, 7)]
        assert reads in ([offset // 20], []), "the last one is still in memory"


def test_a_read_ends_where_the_index_is_not_in_memory_and_goes_on_there(
    small_chunks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del small_chunks
    monkeypatch.setattr(OpenFile, "read_cached", lambda self, position, size: None)
    index = PartitionIndex(tmp_path / "orders-0.index")
    for number in range(8):
        index.publish(publication(10 * number, 10, 100 * number + 1))
    index.restore(0, 80, checkpoint(index))
    found, cold = list[JournalSlice](), 0
    while (offset := sum(place.bytes for place in found)) < 80:
        try:
            found += index.places(offset, 80)
        except IndexCold as error:
            cold += 1
            error.run()
    assert slices(found) == [(100 * number + 1, 10) for number in range(8)]
    assert cold >= 4, "each chunk, when a read begins there"


def test_what_lies_in_front_of_a_gap_is_no_part_of_it(tmp_path: Path) -> None:
    index = PartitionIndex(tmp_path / "orders-0.index")
    index.publish(publication(0, 10, 100))
    index.publish(IndexUpdate(ORDERS, Offset(50), Extent(Lsn(0), 0, 0, 1)))
    index.publish(publication(50, 10, 300))
    assert [run.offset for run in index.runs(20) if run.bytes] == [50]
    assert index.count(20)[:2] == (1 + 10 % 3, 60)
    assert index.resumes(20) == 50


def test_times_of_a_tail_are_raised_as_far_as_they_are_earlier_than_the_file(tmp_path: Path) -> None:
    """A start does not know the file's last time, until somebody opens it."""

    def put(index: PartitionIndex, number: int, time_ms: int) -> None:
        index.publish(IndexUpdate(ORDERS, Offset(10 * number), Extent(Lsn(100 * number + 1), 10, 1, time_ms)))

    index = PartitionIndex(tmp_path / "orders-0.index")
    put(index, 0, 1000)
    index.restore(0, 10, checkpoint(index))
    for number, time_ms in enumerate((500, 600, 1200, 1300), 1):
        put(index, number, time_ms)
    assert [warm(functools.partial(index.at_time, ms)) for ms in (999, 1001, 1201, 1301)] == [0, 30, 40, 50]


def test_a_file_found_damaged_while_it_is_added_to_stays_so(tmp_path: Path) -> None:
    index = PartitionIndex(tmp_path / "orders-0.index")
    index.publish(publication(0, 10, 100))
    spill = spilled(index)
    file = index.write(spill)
    index.damaged()
    index.filed(spill, file)
    assert index.is_damaged
    assert len(index) == 1, "the entry stays in memory until those before it are rebuilt"
