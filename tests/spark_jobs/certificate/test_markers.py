"""Types of marker columns, and rows that a policy hides, on a real PostgreSQL."""

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from spark_jobs.certificate.database import DatabaseProblem, Marker, read_column, rows_now, snapshot
from tests.fixtures.postgres import Database

SOLD = Marker.parse("sold.gtrid")


@pytest.mark.parametrize("kind", ["numeric(20)", "bytea", "text[]"])
def test_a_column_that_names_no_transaction_is_refused(database: Database, kind: str) -> None:
    """Its values would fit no gtrid: every transaction would be an orphan."""
    with database.connect() as connection:
        connection.execute(f"CREATE TABLE sold (gtrid {kind})")
    with (
        pytest.raises(DatabaseProblem, match=r"sold.gtrid holds .*: use text for gtrids, bigint for message ids"),
        snapshot(database.dsn, [SOLD], may_lack_table=True),
    ):
        pass


def test_padding_is_no_part_of_a_name(database: Database) -> None:
    with database.connect() as connection:
        connection.execute("CREATE TABLE sold (gtrid char(20))")
        connection.execute("INSERT INTO sold VALUES ('a.1')")
    with snapshot(database.dsn, [SOLD], may_lack_table=True) as found:
        (batch,) = read_column(database.dsn, found.name, found.markers[0], 1, 0)
    assert batch.column("text").to_pylist() == ["a.1"]
    assert rows_now(database.dsn, SOLD, ["a.1"]) == ["a.1"]


def test_a_marker_that_is_named_twice_is_one(database: Database) -> None:
    """Else each of its rows would be a duplicate."""
    with database.connect() as connection:
        connection.execute("CREATE TABLE sold (gtrid text)")
    with snapshot(database.dsn, [SOLD, Marker.parse("sold.gtrid")], may_lack_table=True) as found:
        assert [info.marker for info in found.markers] == [SOLD]


def test_rows_that_a_policy_hides_are_not_passed_over(database: Database) -> None:
    """Hidden rows would be missing in no certificate."""
    with database.connect() as connection:
        connection.execute("CREATE TABLE sold (gtrid text)")
        connection.execute("INSERT INTO sold VALUES ('a.1')")
        connection.execute("ALTER TABLE sold ENABLE ROW LEVEL SECURITY")
        connection.execute("DROP ROLE IF EXISTS clerk")
        connection.execute("CREATE ROLE clerk LOGIN PASSWORD 'a clerk'")
        connection.execute("GRANT SELECT ON sold TO clerk")
    url = make_conninfo(database.dsn, user="clerk", password="a clerk")
    with psycopg.connect(url) as clerk:
        assert clerk.execute("SELECT count(*) FROM sold").fetchone() == (0,)
    with (
        pytest.raises(DatabaseProblem, match="row-level security policy"),
        snapshot(url, [SOLD], may_lack_table=True),
    ):
        pass
    with pytest.raises(DatabaseProblem, match="row-level security policy"):
        rows_now(url, SOLD, ["a.1"])
    with database.connect() as connection:
        connection.execute("DROP OWNED BY clerk")
        connection.execute("DROP ROLE clerk")
