"""`spark.read.format("metaq-journal")` on a real Spark: what it reads, and what it lets Spark push down."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, In, LessThan, Not, StringContains

from journal.records.header import RecordType
from journal.records.record import NO_BRANCH, Decision
from spark_jobs.audit.checksums import record_findings
from spark_jobs.source.data_source import PARTITION_BYTES, FilteringJournalReader, JournalPartition, packed
from spark_jobs.source.directory import SegmentSlice
from tests.spark_jobs.journals import ORDERS, T0, Pen, flip, key, records_of, segment_bases


def read(spark: SparkSession, path: Path, **options: Any) -> DataFrame:
    return spark.read.format("metaq-journal").options(path=str(path), **options).load()


def test_every_record_is_a_row_in_its_place(spark: SparkSession, honest: Path) -> None:
    rows = read(spark, honest).where(F.col("kind") != "PAD").orderBy("lsn").collect()
    records = records_of(honest)
    assert [(row.lsn, row.end, row.kind, row.time_ms) for row in rows] == [
        (entry.header.lsn, entry.header.end, RecordType(entry.header.record_type).name, entry.header.time_ms)
        for entry in records
    ]
    assert {row.segment for row in rows} == set(segment_bases(honest))
    assert {row.frames for row in rows} == {None}, "frames are counted only when asked for"
    commit = next(row for row in rows if row.kind == "COMMIT" and len(row.assignments) == 2)
    assert [(each.topic, each.bytes, each.messages) for each in commit.assignments] == [
        ("orders", 400, 4),
        ("refunds", 200, 2),
    ]


def test_filters_give_what_filtering_afterwards_gives(spark: SparkSession, tmp_path: Path) -> None:
    with Pen(tmp_path) as pen:  # one record a second, from T0 + 1 s on
        for number in range(60):
            pen.put(ORDERS, number * 300, 3)
            if number % 10 == 0:
                pen.tx_put(f"b{number}", NO_BRANCH, ORDERS, 1)
    flip(tmp_path, records_of(tmp_path)[3].header.lsn)
    everything = read(spark, tmp_path).collect()
    assert len(everything) > 60
    middle = everything[len(everything) // 2].lsn
    moment = datetime.fromtimestamp(T0 / 1000, UTC) + timedelta(seconds=20)
    keys = [str(key("b20")), str(key("b30"))]
    queries: list[tuple[Any, Any]] = [
        (
            (F.col("lsn") < middle) & (F.col("end") > middle - 2000),
            lambda row: row.lsn < middle and row.end > middle - 2000,
        ),
        (
            (F.col("time") >= moment) & (F.col("topic") == "orders"),
            lambda row: row.time_ms is not None and row.time_ms >= T0 + 20_000 and row.topic == "orders",
        ),
        (F.col("key").isin(keys), lambda row: row.key in keys),
        (
            F.col("key").isNull() & F.col("kind").startswith("B") & ~F.col("kind").contains("X"),
            lambda row: row.kind == "BAD",
        ),
    ]
    for condition, expected in queries:
        wanted = [row.lsn for row in everything if expected(row)]
        assert wanted, condition
        for pushes in (True, False):
            rows = read(spark, tmp_path, pushFilters=pushes).where(condition).collect()
            assert [row.lsn for row in rows] == wanted
    assert read(spark, tmp_path, pushFilters=True).where(F.col("lsn") > 2**40).count() == 0, "in no segment"


def test_queries_of_one_dataframe_have_their_own_rows(spark: SparkSession, honest: Path) -> None:
    """Spark keeps what one of them has pushed down for all others."""
    frame = read(spark, honest)
    count = frame.count()
    assert 0 < frame.where("kind = 'PUT'").count() < count
    assert frame.count() == count
    both = frame.where("kind = 'PUT'").union(frame.where("kind = 'COMMIT'"))
    assert {row.kind for row in both.select("kind").distinct().collect()} == {"PUT", "COMMIT"}


def reader(path: Path, *pushed: Filter) -> tuple[FilteringJournalReader, list[Filter]]:
    made = FilteringJournalReader(path, with_frames=False)
    return made, list(made.pushFilters(list(pushed)))


def test_what_is_not_applied_exactly_goes_back_to_spark(honest: Path) -> None:
    returned: list[Filter] = [
        Not(EqualTo(("lsn",), 5)),
        StringContains(("topic",), "x"),
        EqualTo(("assignments", "topic"), "x"),
        EqualTo(("lsn",), "5"),
        In(("lsn",), (5, "6")),
        EqualTo(("one_phase",), True),
        GreaterThan(("time",), datetime(2024, 1, 1)),
    ]
    taken: list[Filter] = [EqualTo(("lsn",), 5), In(("topic",), ("a", None)), LessThan(("time_ms",), 7)]
    _, left = reader(honest, *returned, *taken)
    assert left == returned
    assert [id(one) for one in left] == [id(one) for one in returned], "Spark knows its filters by identity"


def test_segments_that_cannot_match_are_not_read(honest: Path) -> None:
    bases = segment_bases(honest)

    def planned(*pushed: Filter) -> list[int]:
        made, _ = reader(honest, *pushed)
        parts = [part for part in made.partitions() if isinstance(part, JournalPartition)]
        return [segment.base for part in parts for segment in part.segments]

    assert planned() == bases
    assert planned(LessThan(("lsn",), bases[1])) == bases[:1]
    assert planned(GreaterThan(("lsn",), bases[1] - 1)) == bases[1:]
    assert planned(In(("lsn",), (bases[2] + 500, None))) == [bases[2]]
    assert planned(GreaterThan(("end",), bases[1])) == bases[1:]
    assert planned(EqualTo(("end",), bases[1])) == bases[:1], "the first segment's last record ends there"


@pytest.mark.parametrize(
    ("sizes", "pieces"),
    [
        ([], []),
        ([1, 2, 3], [[1, 2, 3]]),
        ([PARTITION_BYTES, 1], [[PARTITION_BYTES], [1]]),
        ([1, PARTITION_BYTES - 1, 1, 0, 0], [[1, PARTITION_BYTES - 1], [1, 0, 0]]),
        ([2 * PARTITION_BYTES, 3 * PARTITION_BYTES], [[2 * PARTITION_BYTES], [3 * PARTITION_BYTES]]),
        ([0, 2 * PARTITION_BYTES, 0], [[0], [2 * PARTITION_BYTES], [0]]),
    ],
)
def test_small_segments_share_a_task(sizes: list[int], pieces: list[list[int]]) -> None:
    slices = [SegmentSlice(number, number + 1, size, False) for number, size in enumerate(sizes)]
    found = list(packed(slices))
    assert [[segment.size for segment in piece] for piece in found] == pieces
    assert [segment for piece in found for segment in piece] == slices


def test_a_coordinators_record_is_no_brokers(spark: SparkSession, tmp_path: Path) -> None:
    with Pen(tmp_path) as pen:
        lsn = pen.write(Decision(key("a"), "")).lsn
    (found,) = record_findings(read(spark, tmp_path)).collect()
    assert (found.problem, found.lsn) == ("foreign", lsn)
    assert found.detail == "is a DECISION record in a broker's journal"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, 'needs option "path"'),
        ({"path": "/nowhere", "frames": "maybe"}, "use true or false"),
        ({"path": "/nowhere"}, "name the data directory of a broker"),
    ],
)
def test_wrong_options_say_what_to_do(spark: SparkSession, options: dict[str, str], message: str) -> None:
    with pytest.raises(PySparkException, match=message):
        spark.read.format("metaq-journal").options(**options).load().collect()
