"""Rows of a decision table that nothing of metaq wrote: named and left alone, by doctor and resolver."""

from contextlib import closing
from typing import Any

import pytest

from meta_client.coordinator.errors import Unreachable
from meta_client.transactions import NoDecisionTable
from meta_client.transactions.databases import table_at
from tests.fixtures.broker_pool import BrokerPool
from tests.fixtures.forked import run_metaq
from tests.meta_client.doctor.conftest import Doctor
from tests.meta_client.doctor.test_rows import driver_of, kill_at
from tests.meta_client.transactions.conftest import do, make, running_world

BRACES = "0,2}', 'rollback', '', NULL, now()); --"


@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_rows_that_nobody_wrote(
    request: pytest.FixtureRequest, kind: str, broker_pool: BrokerPool, doctor: Doctor
) -> None:
    """One service's decision beside them is carried out."""
    with running_world(make(kind, request), broker_pool) as world:
        deciding, given = world.deciding, ("--database", world.deciding.url)
        kill_at(world, driver_of(world), 1, "DECIDED")
        named = [deciding.identity.name.new_gtrid() for _ in range(5)]
        rows: list[tuple[str, ...]] = [
            ("x'; DROP TABLE numbers; --\x1b[2J", "commit", "0"),
            (f"{named[0]}x", "commit", "0"),
            (named[0], "commit", BRACES),
            (named[1], "commit", "9" * 5000),
            (named[2], "commit", "4000000000"),
            (named[3], "perhaps\x1b[2J", "0"),
            (named[4], "commit", ""),
        ]
        with closing(deciding.connect()) as connection:
            if kind == "mariadb":
                do(connection, "SET SESSION check_constraint_checks = 0")
            else:
                do(connection, "ALTER TABLE metaq_decision DROP CONSTRAINT metaq_decision_outcome_check")
            insert: Any = "INSERT INTO metaq_decision (gtrid, outcome, brokers) VALUES (%s, %s, %s)"
            connection.cursor().executemany(insert, rows)
            connection.commit()
        with closing(deciding.table()) as table, pytest.raises(Unreachable, match="which is no outcome"):
            table.resolve(named[3])

        told = doctor(world.zookeeper, *given, "--apply")
        assert told.status == 1
        by_name = {row["transaction"]: row for row in told.rows if row["transaction"]}
        assert by_name.keys() == {*named[:3], named[4], *(set(deciding.rows()) - {row[0] for row in rows})}
        assert by_name[named[2]]["verdict"] == "unknown"
        assert {by_name[name]["verdict"] for name in (*named[:2], named[4])} == {"hazard"}
        (strange,) = (row for row in told.rows if "names in its decision table" in row["place"])
        assert "2 are not this table's transactions" in strange["reason"]
        assert world.messages() == [1]
        shown = run_metaq("txn", "doctor", "--zk", world.zookeeper, "--age", "0.1", *given)
        assert shown.returncode == 1
        assert shown.stdout.replace("\n", "").isprintable()

        resolving = ("txn", "resolver", "--once", "--age", "0.1", "--zk", world.zookeeper, *given)
        done = run_metaq(*resolving)
        assert (done.returncode, "Traceback" in done.stderr) == (1, False)
        assert deciding.rows().keys() >= {row[0] for row in rows}
        assert deciding.numbers() == [1]


@pytest.mark.parametrize("kind", ["postgres", "sqlite", "mariadb"])
def test_an_identity_that_nobody_wrote(request: pytest.FixtureRequest, kind: str) -> None:
    deciding = make(kind, request)
    deciding.execute("UPDATE metaq_decision_table SET table_id = 'shop'")
    with pytest.raises(NoDecisionTable, match="is damaged"):
        table_at(deciding.url)
