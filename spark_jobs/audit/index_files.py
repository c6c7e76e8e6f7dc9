"""Reads the index files of partitions as rows, on the workers, against what a checkpoint says of them.

Knows the layout by itself, as the other checks know their rules: the code that writes an index can't vouch for it.
16 KiB chunks of 511 entries of 32 bytes (first offset, LSN, milliseconds, bytes, messages) and a seal (CRC-32, number
of the chunk). The checksum begins with that of the file's name and the chunk's number.
"""

import hashlib
import os
import struct
import urllib.parse
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from journal.checksum import crc32
from journal.state.checkpoint import Checkpoint
from spark_jobs.audit.checkpoint_files import Checkpoints
from spark_jobs.source.schemas import Long, MaybeText, Text, arrow_schema, arrow_table, spark_schema
from spark_jobs.source.worker_rows import worker_rows

FORMAT: Final = "metaq-index"
_CHUNK_BYTES: Final = 16 * 1024
_ENTRY_BYTES: Final = 32
_SEAL: Final = struct.Struct("<IxxxxQ16x")
_CHUNK_ENTRIES: Final = _CHUNK_BYTES // _ENTRY_BYTES - 1
_QUOTED_MAX: Final = 200
_NAMES: Final = ("", ".new")  # of a file; and of one renewed that has not taken the other's place yet
_CHUNKS_AT_ONCE: Final = 64
TASK_ENTRIES: Final = 500_000
TASKS_MAX: Final = 1000
_COLUMN_MAX: Final = 2**63 - 1


class ChunkDiffers(Exception):
    """A chunk of an index file is not what a checkpoint says of it."""


class IndexFileRow(NamedTuple):
    """The index file of one partition by a checkpoint: its first *entries*, the CRC of the last chunk. The partition
    begins at offset *start*."""

    topic: Text
    partition: Long
    file: Text
    entries: Long
    crc: Long
    start: Long


class IndexEntryRow(NamedTuple):
    """One entry, or with *problem* what is wrong with a file from entry *number* on."""

    topic: Text
    partition: Long
    number: Long
    start: Long
    lsn: Long
    bytes: Long
    messages: Long
    problem: MaybeText


_SCHEMA: Final = arrow_schema(IndexEntryRow)
_COLUMNS: Final = np.dtype(
    [("start", "<u8"), ("lsn", "<u8"), ("time_ms", "<u8"), ("bytes", "<u4"), ("messages", "<u4")]
)
assert _COLUMNS.itemsize == _ENTRY_BYTES


class ReadIndexes(NamedTuple):
    """The index files as checkpoint *number*, taken at LSN *at*, names them: *files* (IndexFileRow), their *entries*
    (IndexEntryRow), None without any. *damaged*: files that are not what it says. *unknown*: what can't be compared."""

    number: int
    at: int
    files: DataFrame
    entries: DataFrame | None
    entry_count: int
    damaged: int
    unknown: list[str]


def read_indexes(
    spark: SparkSession, path: Path, checkpoints: Checkpoints, keep: Callable[[DataFrame], DataFrame]
) -> ReadIndexes:
    """Read the index files in the data directory *path*, which every worker must see there; *keep* persists them."""
    number = checkpoints.newest
    if number is None:
        nothing = spark.createDataFrame(arrow_table(IndexFileRow, []))
        return ReadIndexes(0, 0, nothing, None, 0, 0, ["no checkpoint names the index files"])
    checkpoint = checkpoints.valid[number]
    files = index_file_rows(checkpoint)
    without = sum(entry.start < entry.end for entry in checkpoint.partitions) - len(files)
    unknown = [f"{without:,} partitions have no index file in checkpoint.{number}: not compared"] if without else []
    listed = spark.createDataFrame(arrow_table(IndexFileRow, files))
    if not files:
        return ReadIndexes(number, checkpoint.lsn, listed, None, 0, 0, unknown)
    read = partial(read_files, path.absolute() / "index")
    entries = keep(worker_rows(spark, FORMAT, index_tasks(files), read, spark_schema(IndexEntryRow)))
    row = entries.agg(F.count("*").alias("all"), F.count("problem").alias("damaged")).first()
    assert row is not None
    return ReadIndexes(number, checkpoint.lsn, listed, entries, row["all"] - row["damaged"], row["damaged"], unknown)


def index_file_rows(checkpoint: Checkpoint) -> list[IndexFileRow]:
    """Return a row for each partition with messages and a file."""
    return [
        IndexFileRow(
            entry.topic,
            entry.partition,
            file_name(entry.topic, entry.partition),
            entry.index.entries,
            entry.index.crc,
            entry.start,
        )
        for entry in checkpoint.partitions
        if entry.index is not None and entry.start < entry.end
    ]


def index_tasks(files: Sequence[IndexFileRow]) -> list[list[IndexFileRow]]:
    """Deal *files* out, large ones first, so that the tasks have about as much to do."""
    tasks = min(len(files), TASKS_MAX, 1 + sum(row.entries for row in files) // TASK_ENTRIES)
    ordered = sorted(files, key=lambda row: row.entries, reverse=True)
    return [ordered[task::tasks] for task in range(tasks)]


def read_files(directory: Path, files: Sequence[IndexFileRow]) -> Iterator[pa.RecordBatch]:
    """Yield the entries of one task's files."""
    for row in files:
        yield from entry_batches(directory, row)


def file_name(topic: str, partition: int) -> str:
    """Return the name of the partition's file in the directory `index`."""
    quoted = urllib.parse.quote(topic, safe="")
    if len(quoted) > _QUOTED_MAX:
        quoted = f"{quoted[:100]}={hashlib.blake2b(topic.encode(), digest_size=16).hexdigest()}"
    return f"{quoted}-{partition}.index"


def entry_batches(directory: Path, row: IndexFileRow) -> Iterator[pa.RecordBatch]:
    """Yield the entries of one file, then, if it is not what the checkpoint says, one row that tells why."""
    reasons: list[str] = []
    for suffix in _NAMES:
        path = directory / (row.file + suffix)
        try:
            with path.open("rb") as file:
                _content(file, row, (row.entries - 1) // _CHUNK_ENTRIES)  # the last one tells whether it is the file
                yield from _chunks(file, row)
                return
        except FileNotFoundError:
            continue
        except ChunkDiffers as error:
            reasons.append(str(error))
        except OSError as error:
            reasons.append(str(error.strerror))
    yield _problem(row, 0, reasons[0] if reasons else "there is no such file")


def lsn_of(directory: Path, row: IndexFileRow, offset: int) -> int:
    """Return where the message at *offset* stands, or one before it; 0 if the file is not what the checkpoint says."""
    for suffix in _NAMES:
        try:
            with (directory / (row.file + suffix)).open("rb") as file:
                last = (row.entries - 1) // _CHUNK_ENTRIES
                _content(file, row, last)  # tells whether it is the file

                def entries(chunk: int) -> NDArray[np.void]:
                    return np.frombuffer(_content(file, row, chunk), dtype=_COLUMNS)

                chunk = max(
                    bisect_right(range(last + 1), offset, key=lambda each: int(entries(each)["start"][0])) - 1, 0
                )
                found = entries(chunk)
                at = int(np.searchsorted(found["start"], offset, side="right")) - 1
                return int(found["lsn"][at]) if at >= 0 and found["bytes"][at] else 0
        except (OSError, ChunkDiffers):
            continue
    return 0


def _content(file: BinaryIO, row: IndexFileRow, chunk: int) -> bytes:
    """Return the entries of a chunk. Raises ChunkDiffers."""
    first = chunk * _CHUNK_ENTRIES
    size = min(row.entries - first, _CHUNK_ENTRIES) * _ENTRY_BYTES
    is_sealed = size == _CHUNK_ENTRIES * _ENTRY_BYTES
    chunks, rest = divmod(os.fstat(file.fileno()).st_size, _CHUNK_BYTES)
    held = chunks * _CHUNK_ENTRIES + min(rest // _ENTRY_BYTES, _CHUNK_ENTRIES)
    if held < first + size // _ENTRY_BYTES:  # of any number that a checkpoint names: none is sought that no file has
        raise ChunkDiffers(f"it ends at entry {held} of {row.entries}")
    file.seek(chunk * _CHUNK_BYTES)
    content = file.read(_CHUNK_BYTES if is_sealed else size)
    crc = crc32(content[:size], crc32(b"%s %d" % (row.file.encode(), chunk)))
    if is_sealed and content[size:] != _SEAL.pack(crc, chunk):
        raise ChunkDiffers(f"chunk {chunk} is damaged")
    if first + _CHUNK_ENTRIES >= row.entries and crc != row.crc:
        raise ChunkDiffers("its last chunk is not the one that the checkpoint names")
    return content[:size]


def _chunks(file: BinaryIO, row: IndexFileRow) -> Iterator[pa.RecordBatch]:
    chunks = -(-row.entries // _CHUNK_ENTRIES)
    for first in range(0, chunks, _CHUNKS_AT_ONCE):
        parts: list[bytes] = []
        for chunk in range(first, min(first + _CHUNKS_AT_ONCE, chunks)):
            try:
                parts.append(_content(file, row, chunk))
            except ChunkDiffers as error:
                yield _problem(row, chunk * _CHUNK_ENTRIES, str(error))
                return
        yield _entries(row, first * _CHUNK_ENTRIES, b"".join(parts))


def _entries(row: IndexFileRow, first: int, data: bytes) -> pa.RecordBatch:
    """Return entries as columns. A number that no column holds shows as the largest one, and matches nothing."""
    table = np.frombuffer(data, dtype=_COLUMNS)
    count = len(table)
    columns = [
        pa.repeat(row.topic, count),
        pa.repeat(row.partition, count),
        pa.array(np.arange(first, first + count)),
        *(
            pa.array(np.minimum(table[name].astype(np.uint64), _COLUMN_MAX).astype(np.int64))
            for name in ("start", "lsn", "bytes", "messages")
        ),
        pa.nulls(count, pa.string()),
    ]
    return pa.RecordBatch.from_arrays(
        [column.cast(field.type) for column, field in zip(columns, _SCHEMA, strict=True)], schema=_SCHEMA
    )


def _problem(row: IndexFileRow, number: int, reason: str) -> pa.RecordBatch:
    values = IndexEntryRow(row.topic, row.partition, number, row.start, 0, 0, 0, reason)
    return pa.RecordBatch.from_pylist([values._asdict()], schema=_SCHEMA)
