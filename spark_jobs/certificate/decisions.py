"""Decisions of a decision table and of coordinators, as one table for Spark. Pure."""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from meta_client.transactions.table import parse_brokers
from spark_jobs.certificate.coordinator_side import CoordinatedDecision
from spark_jobs.certificate.database import DecisionRow

_SCHEMA: Final = pa.schema(
    [
        ("gtrid", pa.string()),  # in hexadecimal
        ("outcome", pa.string()),
        ("named", pa.list_(pa.field("element", pa.int64()))),  # brokers of a commit, null if they can't be read
        ("database", pa.string()),
        ("is_early", pa.bool_()),
    ]
)
_SAYS: Final = {"commit": "committed", "rollback": "rolled back"}  # a decision row is written where its rows are


def decision_table(rows: list[DecisionRow], coordinated: list[CoordinatedDecision]) -> pa.Table:
    """Return the decisions as classes.py has them."""
    found = [*_of_rows(rows), *((one.gtrid.hex(), *one[1:]) for one in coordinated)]
    columns = [[one[number] for one in found] for number in range(len(_SCHEMA))]
    return pa.Table.from_arrays(
        [pa.array(one, field.type) for one, field in zip(columns, _SCHEMA, strict=True)], schema=_SCHEMA
    )


def _of_rows(rows: list[DecisionRow]) -> Iterator[tuple[object, ...]]:
    for one in rows:
        named = parse_brokers(one.brokers) if one.outcome == "commit" else ()
        yield one.gtrid.encode().hex(), one.outcome, named, _SAYS.get(one.outcome), True
