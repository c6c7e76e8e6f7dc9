"""Index files as the audit reads them: every entry of a broker's, and what is wrong with one that is not as named."""

from collections.abc import Callable
from pathlib import Path

import pytest

from journal.records.record import PartitionName
from journal.state.checkpoint import FORMAT, Checkpoint, IndexFileEntry, PartitionEntry, encode_checkpoint
from meta_broker.store.index_layout import CHUNK_BYTES, CHUNK_ENTRIES, file_name
from meta_broker.store.partition_index import PartitionIndex
from spark_jobs.audit.checkpoint_files import read_checkpoints
from spark_jobs.audit.index_files import IndexFileRow, entry_batches, index_file_rows, index_tasks, lsn_of, read_files
from spark_jobs.audit.index_files import file_name as audited_name

ENTRIES = 65 * CHUNK_ENTRIES + 3  # more chunks than are read at once, and an open one
RUN = 100  # bytes, of five messages
LSN = 7  # LSN of an entry: so many times its offset


def written(directory: Path, topic: str = "orders", entries: int = ENTRIES) -> IndexFileRow:
    """Write an index file as a broker does; return what its checkpoint would say."""
    name = PartitionName(topic, 0)
    index = PartitionIndex(directory / file_name(name))
    index.publish_runs(0, [(RUN * number * LSN, RUN, 5, number) for number in range(entries)])
    spill = index.spill()
    assert spill is not None
    mark = index.write(spill).mark
    assert mark is not None
    return IndexFileRow(topic, 0, audited_name(topic, 0), mark.entries, mark.crc, 0)


def rows(directory: Path, row: IndexFileRow) -> list[tuple[int, int, int, str | None]]:
    """Number, start, LSN and problem of each entry."""
    return [
        (each["number"], each["start"], each["lsn"], each["problem"])
        for batch in entry_batches(directory, row)
        for each in batch.to_pylist()
    ]


def test_every_entry_of_a_brokers_file(tmp_path: Path) -> None:
    row = written(tmp_path)
    found = rows(tmp_path, row)
    assert found == [(number, RUN * number, RUN * number * LSN, None) for number in range(ENTRIES)]
    (tmp_path / row.file).rename(tmp_path / f"{row.file}.new")  # renewed, and not in its place yet
    assert rows(tmp_path, row) == found


def shorter(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(CHUNK_BYTES * 64 + 32)


def flipped(chunk: int) -> Callable[[Path], None]:
    def flip(path: Path) -> None:
        with path.open("r+b") as file:
            file.seek(CHUNK_BYTES * chunk + 40)
            file.write(b"\xff\xff")

    return flip


def replaced_by_a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("change", "entries_before", "why"),
    [
        (Path.unlink, 0, "there is no such file"),
        (replaced_by_a_directory, 0, "Is a directory"),
        (shorter, 0, f"it ends at entry {64 * CHUNK_ENTRIES + 1} of"),
        (flipped(65), 0, "its last chunk is not the one that the checkpoint names"),
        (flipped(1), 0, "chunk 1 is damaged"),
        (flipped(64), 64 * CHUNK_ENTRIES, "chunk 64 is damaged"),
    ],
)
def test_one_row_tells_what_is_wrong_and_from_which_entry_on(
    tmp_path: Path, change: Callable[[Path], None], entries_before: int, why: str
) -> None:
    row = written(tmp_path)
    change(tmp_path / row.file)
    found = rows(tmp_path, row)
    assert {problem for *_, problem in found[:-1]} <= {None}
    assert len(found) == entries_before + 1
    assert why in str(found[-1][-1])


def test_where_the_message_at_an_offset_stands(tmp_path: Path) -> None:
    row = written(tmp_path)
    for number in (0, CHUNK_ENTRIES - 1, CHUNK_ENTRIES, ENTRIES - 1):
        assert lsn_of(tmp_path, row, RUN * number + 1) == RUN * number * LSN
    flipped(1)(tmp_path / row.file)
    assert lsn_of(tmp_path, row, RUN * CHUNK_ENTRIES) == 0
    assert lsn_of(tmp_path / "elsewhere", row, RUN) == 0


def write_checkpoint(directory: Path, *partitions: PartitionEntry) -> None:
    content = Checkpoint(
        format=FORMAT, lsn=1, epoch=1, incarnation=1, time_ms=1, partitions=list(partitions), branches=[]
    )
    (directory / "checkpoint.4").write_bytes(encode_checkpoint(content))


def partition_entry(topic: str, start: int, end: int, index: IndexFileEntry | None) -> PartitionEntry:
    return PartitionEntry(topic=topic, partition=0, start=start, end=end, index=index)


def test_a_plan_has_each_file_of_a_checkpoint_once(tmp_path: Path) -> None:
    (tmp_path / "index").mkdir()
    topics = ["orders", "t" * 300]  # the second's file has a shorter name
    files = [written(tmp_path / "index", topic, 3) for topic in topics]
    write_checkpoint(
        tmp_path,
        *(partition_entry(each.topic, 0, 300, IndexFileEntry(entries=3, crc=each.crc)) for each in files),
        partition_entry("without", 0, 300, None),
        partition_entry("empty", 300, 300, IndexFileEntry(entries=3, crc=0)),
    )
    read = [
        (row["topic"], row["number"], row["problem"])
        for task in index_tasks(index_file_rows(read_checkpoints(tmp_path).valid[4]))
        for batch in read_files(tmp_path / "index", task)
        for row in batch.to_pylist()
    ]
    assert read == [(topic, number, None) for topic in topics for number in range(3)]


def test_a_number_of_entries_that_no_file_has(tmp_path: Path) -> None:
    row = written(tmp_path, entries=3)
    for entries in (0, 2**63 - 1):
        ((_, _, _, problem),) = rows(tmp_path, row._replace(entries=entries))
        assert problem is not None
        assert lsn_of(tmp_path, row._replace(entries=entries), 0) == 0
