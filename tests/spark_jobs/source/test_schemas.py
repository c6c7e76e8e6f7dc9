"""One definition of a row, two schemas."""

from typing import Any

import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from spark_jobs.source import schemas

ROWS = [
    schemas.RecordRow,
    schemas.OffsetAssignmentRow,
    schemas.FindingRow,
    schemas.StartRow,
    schemas.CheckpointRow,
    schemas.PartitionRow,
    schemas.BranchRow,
]


@pytest.mark.parametrize("row", ROWS)
def test_arrow_is_what_spark_expects_of_its_schema(row: Any) -> None:
    assert schemas.arrow_schema(row).equals(to_arrow_schema(schemas.spark_schema(row), timezone="UTC"))


def test_only_columns_that_every_row_has_are_not_nullable() -> None:
    required = {field.name for field in schemas.RECORD_SCHEMA.fields if not field.nullable}
    assert required == {"segment", "lsn", "end", "kind"}


@pytest.mark.parametrize("rows", [[], [schemas.StartRow("orders", 0, 100), schemas.StartRow("refunds", 1, 0)]])
def test_a_table_of_rows(rows: list[Any]) -> None:
    table = schemas.arrow_table(schemas.StartRow, rows)
    assert table.to_pylist() == [row._asdict() for row in rows]
