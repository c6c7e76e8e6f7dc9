"""Pushed filters, compared with what they mean, on every row of a segment; what can't be applied is left to Spark."""

import operator
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from journal.records.dead_letters import DeadLetter, DeadLetterState
from journal.records.header import Offset
from journal.records.record import PutRecord, Record
from journal.records.topic_changes import TopicChange, TopicState
from spark_jobs.source.directory import SegmentSlice
from spark_jobs.source.filters import RowFilter, compile_test
from spark_jobs.source.rows import check_numbers, record_row
from spark_jobs.source.schemas import RecordRow
from tests.spark_jobs.journals import ORDERS
from tests.spark_jobs.source.test_rows import entry

SEGMENT = SegmentSlice(0, 1024, 1024, is_last=False)
LSNS = range(128, 900, 80)
COMPARE: dict[type[Any], Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
}


def row(lsn: int, record: Record) -> RecordRow:
    return record_row(0, entry(record, lsn=lsn), with_frames=False)


ROWS = [row(lsn, PutRecord(ORDERS, Offset(0), 1)) for lsn in LSNS]
LETTER = DeadLetter("orders", 0, 1, 100, 200, 5, 1, DeadLetterState.TRIED, "no")


@pytest.mark.parametrize("column", ["lsn", "end"])
@pytest.mark.parametrize("kind", COMPARE)
@pytest.mark.parametrize("value", [0, 128, 300, 368, 848, 928, 1024, 1100])
def test_numbers(column: str, kind: type[Any], value: int) -> None:
    pushed = kind((column,), value)
    wanted = [one for one in ROWS if COMPARE[kind](getattr(one, column), value)]
    filters = RowFilter()
    assert filters.push_filter(pushed)
    assert list(filter(filters.compiled(), ROWS)) == wanted
    segment = SEGMENT
    assert filters.may_match(segment) or not wanted


@pytest.mark.parametrize(
    ("pushed", "count"),
    [
        (In(("lsn",), (128, None, 208, 5)), 2),
        (In(("lsn",), (5, None)), 0),
        (StringStartsWith(("topic",), "ord"), len(ROWS)),
        (StringStartsWith(("topic",), "x"), 0),
        (IsNull(("key",)), len(ROWS)),
        (IsNotNull(("key",)), 0),
        (EqualTo(("key",), "k"), 0),
    ],
)
def test_others(pushed: Filter, count: int) -> None:
    filters = RowFilter()
    assert filters.push_filter(pushed)
    assert sum(map(filters.compiled(), ROWS)) == count
    assert filters.may_match(SEGMENT) or not count


@pytest.mark.parametrize(
    "pushed",
    [
        Not(EqualTo(("lsn",), 1)),
        EqualTo(("lsn",), "1"),
        EqualTo(("lsn", "x"), 1),
        EqualTo(("colour",), 1),
        In(("lsn",), (1, "2")),
        StringStartsWith(("topic",), None),  # type: ignore[arg-type]  # whatever Spark sends
    ],
)
def test_what_cannot_be_applied_is_left_to_spark(pushed: Filter) -> None:
    filters = RowFilter()
    assert compile_test(pushed) is None
    assert not filters.push_filter(pushed)
    assert all(map(filters.compiled(), ROWS))


def test_rare_records_have_rows() -> None:
    check_numbers(entry(LETTER).header, LETTER)
    letter = row(128, LETTER)
    assert (letter.topic, letter.partition, letter.base_offset, letter.reason) == ("orders", 1, 100, "TRIED")
    change = row(128, TopicChange(topic="orders", state=TopicState.DELETED))
    assert (change.topic, change.reason) == ("orders", "DELETED")
