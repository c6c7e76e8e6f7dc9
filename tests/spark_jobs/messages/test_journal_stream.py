"""`readStream` of journals: every message in one batch, whatever its size; journals that grow, shrink or are others."""

import json
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes

from journal.errors import StorageFailed
from journal.records.header import Lsn, Offset
from journal.records.record import PutRecord
from journal.wal.marks import SavedWatermark, write_watermark
from journal.wal.segments import segment_name
from journal.wal.storage import DirectoryStorage
from meta_client.protocol.id_layout import BIRTH_MS
from spark_jobs.messages.batches import TIME_AT
from spark_jobs.messages.journal import plan_tasks, read_task
from spark_jobs.messages.journal_stream import JournalStream
from spark_jobs.messages.options import InvalidOption, read_options
from spark_jobs.messages.segments import DataLost
from spark_jobs.messages.selection import Selection
from tests.spark_jobs.conftest import SmallCluster
from tests.spark_jobs.journals import ORDERS, SEGMENT_BYTES, T0, Pen, body, flip, records_of, segment_bases

COLUMNS = ("topic", "partition", "offset", "id", "payload", "xid")
WAIT_S = 120
Row = dict[str, Any]
ALL = ReadAllAvailable()


def stream_of(path: Path | str, **options: str) -> JournalStream:
    given = {"path": str(path), "startingOffsets": "earliest"} | options
    return JournalStream(read_options(given, is_stream=True), COLUMNS)


def read(stream: JournalStream, start: Any, end: Any) -> list[Row]:
    return [row for task in stream.partitions(start, end) for batch in stream.read(task) for row in batch.to_pylist()]


def batches(stream: JournalStream, limit: ReadLimit = ALL, start: Any = None) -> Iterator[tuple[Any, list[Row]]]:
    """Yield the end and the rows of each batch, through a checkpoint's JSON, until there are no more."""
    start = start or json.loads(json.dumps(stream.initialOffset()))
    while (end := json.loads(json.dumps(stream.latestOffset(start, limit)))) != start:
        yield end, read(stream, start, end)
        start = end


def whole(path: Path) -> list[Row]:
    rows: list[Row] = []
    for task in plan_tasks([str(path)], Selection()):
        for batch in read_task(task, Selection(), COLUMNS, fail_on_data_loss=True):
            rows += batch.to_pylist()
    return rows


@pytest.mark.parametrize("limit", [1, 700, 5_000, 40_000, None])
def test_batches_of_any_size_have_each_message_once_and_in_order(honest: Path, limit: int | None) -> None:
    stream = stream_of(honest)
    found = [rows for _, rows in batches(stream, ALL if limit is None else ReadMaxBytes(limit))]
    assert [row for rows in found for row in rows] == whole(honest)
    assert (len(found) > 1) == (limit is not None)
    seen = stream.reportLatestOffset()
    assert seen is not None
    assert seen["3"]["lsn"] == max(one.header.end for one in records_of(honest))


def test_a_journal_that_grows_between_records_of_a_transaction(tmp_path: Path, honest: Path) -> None:
    """Read a copy that ended anywhere when it was looked at: in a record, behind one, or at a segment's end."""
    expected, copied = whole(honest), tmp_path / "growing"
    copied.mkdir()
    stream = stream_of(copied)
    start: Any = None
    found: list[Row] = []
    ends = [one.header.end for one in records_of(honest)]
    for end in [*ends[::5], ends[-1] - 8, ends[-1]]:
        for base in segment_bases(honest):
            if base < end:
                data = (honest / segment_name(base)).read_bytes()
                kept = data[: max(end - base, 128)]
                (copied / segment_name(base)).write_bytes(kept.ljust(len(data), b"\0"))
        for reached, rows in batches(stream, start=start or stream.initialOffset()):
            start = reached
            found += rows
    assert found == expected


def orders(pen: Pen, first: int, after: int) -> None:
    for number in range(first, after):
        pen.write(PutRecord(ORDERS, Offset(number * 100), 1), body(1, first_id=number))


def numbers(rows: list[Row]) -> list[int]:
    return [row["offset"] // 100 for row in rows]


def test_what_is_not_acknowledged_waits(tmp_path: Path) -> None:
    path = tmp_path / "sync"
    with Pen(path) as pen:
        orders(pen, 0, 5)
        pen.journal.wait_flushed(pen.journal.end)
        acknowledged = pen.journal.end
        orders(pen, 5, 9)
        pen.journal.wait_flushed(pen.journal.end)
    storage = DirectoryStorage.open_for_reading(path)
    write_watermark(storage, SavedWatermark(Lsn(acknowledged), is_whole=True))
    stream = stream_of(path)
    ((end, rows),) = batches(stream)
    assert numbers(rows) == [0, 1, 2, 3, 4]
    write_watermark(storage, SavedWatermark(Lsn(acknowledged + 20), is_whole=True))
    assert list(batches(stream, start=end)) == [], "half a record is none"
    write_watermark(storage, SavedWatermark(Lsn(0), is_whole=False))
    assert list(batches(stream, start=end)) == [], "nothing is known, and nothing lost"
    (path / "watermark").unlink()
    ((_, rows),) = batches(stream, start=end)
    assert numbers(rows) == [5, 6, 7, 8]
    (path / "slave.json").write_text("{}")
    with pytest.raises(StorageFailed, match="is a slave's, which may be truncated: stream its master's"):
        stream.latestOffset(end, ALL)


def test_latest_begins_behind_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Pen(path) as pen:
        orders(pen, 0, 5)
        pen.journal.wait_flushed(pen.journal.end)
        stream = stream_of(path, startingOffsets="latest")
        start = stream.initialOffset()
        assert list(batches(stream, start=start)) == []
        orders(pen, 5, 300)
        pen.journal.wait_flushed(pen.journal.end)
        ((_, rows),) = batches(stream, start=start)
    assert numbers(rows) == list(range(5, 300))
    at = stream_of(path, startingOffsets='{"orders": {"3-0": 29000}}')
    assert numbers([row for _, rows in batches(at, ReadMaxBytes(9000)) for row in rows]) == list(range(290, 300))
    with pytest.raises(InvalidOption, match="can't be -1 for one partition"):
        stream_of(path, startingOffsets='{"orders": {"3-0": -1}}')


def test_a_new_query_begins_at_a_time(tmp_path: Path) -> None:
    path, born = tmp_path / "journal", (T0 - BIRTH_MS) << TIME_AT
    with Pen(path) as pen:
        for number in range(10):
            pen.write(PutRecord(ORDERS, Offset(number * 100), 1), body(1, first_id=born + (number * 1000 << TIME_AT)))
        pen.journal.wait_flushed(pen.journal.end)
        options = {"path": str(path), "startingTimestamp": str(T0 + 6000)}
        stream = JournalStream(read_options(options, is_stream=True), COLUMNS)
        assert numbers([row for _, rows in batches(stream) for row in rows]) == [6, 7, 8, 9]


@pytest.mark.parametrize("option", ['{"orders": {"3-0": 29000}}', "latest"])
def test_where_a_query_begins_says_its_checkpoint(tmp_path: Path, option: str) -> None:
    """Restart with any place: nothing is left out between the checkpoint and it."""
    path = tmp_path / "journal"
    with Pen(path) as pen:
        orders(pen, 0, 300)
    begun = stream_of(path, startingOffsets='{"orders": {"3-0": 1000}}')
    found = list(batches(begun, ReadMaxBytes(5_000)))
    (end, rows), *later = found
    rest = [row for _, rows in later for row in rows]
    assert numbers(rows + rest) == list(range(10, 300))
    for again in (stream_of(path, startingOffsets=option), stream_of(path)):
        assert [row for _, rows in batches(again, start=end) for row in rows] == rest
        assert read(again, begun.initialOffset(), end) == rows, "a batch that is repeated is the same"


def test_retention_has_deleted_what_was_not_read(honest: Path) -> None:
    stream = stream_of(honest)
    first, *others = batches(stream, ReadMaxBytes(5_000))
    bases = segment_bases(honest)
    for base in bases[:-2]:
        (honest / segment_name(base)).unlink()
    with pytest.raises(DataLost, match=rf"begins at LSN {bases[-2]}, and was read up to .*read it from the archive"):
        stream.latestOffset(first[0], ALL)
    with pytest.raises(DataLost, match="retention has deleted what comes between"):
        stream.partitions(first[0], others[-1][0])
    careless = stream_of(honest, failOnDataLoss="false")
    ((_, rows),) = batches(careless, start=first[0])
    ends = [row for _, some in others for row in some]
    assert rows
    assert rows == ends[-len(rows) :]


def test_retention_deletes_meanwhile_what_was_read(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Pen(path) as pen:
        for number in range(300):
            pen.write(PutRecord(ORDERS, Offset(number * 9020), 1), body(1, b"x" * 9000))
    stream = stream_of(path)
    *_, (end, _) = batches(stream)

    def retain() -> None:
        for base in segment_bases(path)[:-2]:
            (path / segment_name(base)).unlink()
            time.sleep(0.002)

    with ThreadPoolExecutor(1) as meanwhile:
        retaining = meanwhile.submit(retain)
        while not retaining.done():
            assert stream.latestOffset(end, ALL) == end
        retaining.result()


def test_another_journal_is_not_taken_for_the_one_that_was_read(tmp_path: Path) -> None:
    """A promoted slave, or a restored directory, may have other records at the same LSNs."""
    path, other = tmp_path / "journal", tmp_path / "other"
    with Pen(path) as pen:
        orders(pen, 0, 5)
        pen.journal.wait_flushed(pen.journal.end)
        shutil.copytree(path, other)
        orders(pen, 5, 9)
    stream = stream_of(path)
    ((end, _),) = batches(stream)
    shutil.rmtree(path)
    other.rename(path)
    remedy = "was truncated, restored or promoted since; .* start with another checkpoint"
    with pytest.raises(DataLost, match=remedy):  # shorter
        stream.latestOffset(end, ALL)
    shutil.rmtree(path)
    with Pen(path, incarnation=2) as pen:
        orders(pen, 20, 40)
    with pytest.raises(DataLost, match=remedy):  # longer
        stream.latestOffset(end, ALL)
    with pytest.raises(DataLost, match=remedy):
        stream.partitions(stream.initialOffset(), end)
    others: list[Any] = [{"orders": {"3-0": 5}}, 5, [5], None]
    for found in others:
        with pytest.raises(DataLost, match="not of a stream from journals"):
            stream.latestOffset(found, ALL)
    with pytest.raises(DataLost, match="broker 7, which the checkpoint names, has no journal"):
        stream.partitions({"7": {"lsn": 0, "mark": ""}}, {"7": {"lsn": 9, "mark": ""}})


@pytest.mark.parametrize("size", [6000, 9000])
def test_another_journal_with_payloads_that_are_alike(tmp_path: Path, size: int) -> None:
    """The last bytes are the same in both: of a long payload, or of a segment whose rest took no record."""
    path = tmp_path / "journal"

    def write(first_id: int, count: int, incarnation: int) -> None:
        with Pen(path, incarnation=incarnation) as pen:
            for number in range(count):
                pen.write(PutRecord(ORDERS, Offset(number * (size + 20)), 1), body(1, b"x" * size, first_id=first_id))

    write(1, 3, incarnation=1)
    ends = [end for end, _ in batches(stream_of(path), ReadMaxBytes(1))]
    assert SEGMENT_BYTES in [end["3"]["lsn"] for end in ends]
    shutil.rmtree(path)
    write(2, 4, incarnation=2)
    for end in ends:
        with pytest.raises(DataLost, match="is not the journal that was read"):
            stream_of(path).latestOffset(end, ALL)


def test_a_damaged_header_of_the_last_segment_is_no_end(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Pen(path) as pen:
        orders(pen, 0, 200)
    flip(path, segment_bases(path)[-1])
    with pytest.raises(DataLost, match="do not read back: no segment header"):
        list(batches(stream_of(path)))
    rows = [row for _, rows in batches(stream_of(path, failOnDataLoss="false")) for row in rows]
    assert numbers(rows) == list(range(200)), "the records behind it are sound"


@pytest.mark.parametrize("size", [0, 100, 6000])
def test_a_last_segment_that_is_too_short_is_no_end(tmp_path: Path, size: int) -> None:
    """A broker gives a segment its name when it has its full size: a copy was interrupted."""
    path = tmp_path / "journal"
    with Pen(path) as pen:
        orders(pen, 0, 300)
    last = segment_bases(path)[-1]
    with (path / segment_name(last)).open("r+b") as file:
        file.truncate(size)
    found = batches(stream_of(path))
    assert numbers(next(found)[1]) == list(range(263 if size < 6000 else 294)), "what is there comes first"
    with pytest.raises(DataLost, match=r"LSNs \d+ to \d+ of the journal do not read back"):
        next(found)
    ((_, rows),) = batches(stream_of(path, failOnDataLoss="false"))
    assert len(rows) >= 263


def test_a_restored_journal_goes_on_with_what_is_written_next(tmp_path: Path) -> None:
    """With failOnDataLoss=false, and looked at before it is longer than the one that was read."""
    path = tmp_path / "journal"
    with Pen(path) as pen:
        orders(pen, 0, 200)
    stream = stream_of(path, failOnDataLoss="false")
    *_, (end, _) = batches(stream)
    shutil.rmtree(path)
    with Pen(path, incarnation=2) as pen:
        orders(pen, 0, 20)
        pen.journal.wait_flushed(pen.journal.end)
        found = list(batches(stream, start=end))
        assert [row for _, rows in found for row in rows] == []
        orders(pen, 20, 400)
        pen.journal.wait_flushed(pen.journal.end)
        rows = [row for _, rows in batches(stream, start=found[-1][0]) for row in rows]
    assert numbers(rows) == list(range(20, 400))


def test_live_and_dead_brokers_on_a_real_spark(
    spark: SparkSession, cluster: SmallCluster, topic: str, tmp_path: Path
) -> None:
    """Two brokers that go on writing, available now, a restart from the checkpoint, and one broker that is killed."""
    folder = cluster.brokers[0].data.parent

    def send(first: int, after: int) -> None:
        producer = cluster.client.producer()
        for number in range(first, after):
            producer.send_async(topic, b"%d" % number, partition=f"{number % 2}-{number // 2 % 4}")
        producer.flush(30)

    def run(**options: Any) -> list[Any]:
        source = spark.readStream.format("metaq").option("path", str(folder)).option("subscribe", topic)
        source = source.options(startingOffsets="earliest", **options).schema("payload BINARY")
        written = source.load().selectExpr("string(payload) AS number").writeStream.format("json")
        query = (
            written.option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(WAIT_S)
        assert query.exception() is None
        return list(query.recentProgress)

    def rows() -> list[int]:
        lines = [line for part in (tmp_path / "out").glob("part-*") for line in part.read_text().split()]
        return sorted(int(json.loads(line)["number"]) for line in lines)

    send(0, 3000)
    progress = run(maxOffsetsPerTrigger=20_000)
    assert rows() == list(range(3000))
    assert len([one for one in progress if one.numInputRows]) > 1
    send(3000, 3010)
    run()
    assert rows() == list(range(3010)), "also the newest, though no record tells that they are durable"
    with ThreadPoolExecutor(1) as meanwhile:
        sending = meanwhile.submit(send, 3010, 9000)
        run(maxOffsetsPerTrigger=20_000)
        sending.result()
    run()
    assert rows() == list(range(9000)), "also those that came meanwhile"
    send(9000, 9020)
    cluster.brokers[1].kill()
    try:
        run()
        assert rows() == list(range(9020))
        (source,) = json.loads(run()[-1].json)["sources"]
        assert source["latestOffset"] == source["endOffset"]
    finally:
        cluster.brokers[1].start()
