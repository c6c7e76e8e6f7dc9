"""Batches on their way to Spark: small ones joined, in order; a large one as it is."""

import pyarrow as pa

from spark_jobs.messages.batches import JOINED_BYTES, JOINED_ROWS, joined


def batch(*values: int | bytes) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values)], names=["value"])


def test_small_batches_are_joined_in_order() -> None:
    found = list(joined(batch(*range(first, first + 1000)) for first in range(0, 40_000, 1000)))
    assert [each.num_rows for each in found] == [17_000, 17_000, 6000]
    assert [value for each in found for value in each.column(0).to_pylist()] == list(range(40_000))
    assert -(-JOINED_ROWS // 1000) == 17


def test_a_large_one_is_not_copied_and_does_not_wait() -> None:
    small, large = batch(b"first"), batch(bytes(JOINED_BYTES))
    batches = joined([large, small, large, small])
    assert next(batches) is large
    assert [each.num_rows for each in batches] == [2, 1]
    assert list(joined([])) == []
