"""The mark is there once BEGIN is answered, and ends with the transaction."""

from contextlib import closing
from typing import Any

import psycopg
import pytest

from meta_client.transactions.postgres_block import TaskBlock, ThreadBlock
from meta_client.transactions.postgres_table import GUARDED_COMMIT, MARK
from tests.fixtures.loops import in_loop
from tests.fixtures.postgres import Database

ASK = "SELECT current_setting('metaq.block', true), current_setting('transaction_isolation')"


@pytest.mark.parametrize("level", [psycopg.IsolationLevel.SERIALIZABLE, None])
def test_of_a_thread(database: Database, level: psycopg.IsolationLevel | None) -> None:
    with closing(psycopg.connect(database.dsn)) as connection:
        connection.isolation_level = level
        with ThreadBlock(connection) as block:
            assert block.is_marked
            assert connection.execute(ASK).fetchone() == ("open", "serializable" if level else "read committed")
        assert connection.execute("SELECT current_setting('metaq.block')").fetchone() == ("",)


@pytest.mark.parametrize("level", [psycopg.IsolationLevel.SERIALIZABLE, None])
@in_loop
async def test_of_a_task(database: Database, level: psycopg.IsolationLevel | None) -> None:
    connection: psycopg.AsyncConnection[Any]
    async with await psycopg.AsyncConnection.connect(database.dsn) as connection:
        await connection.set_isolation_level(level)
        async with TaskBlock(connection) as block:
            assert block.is_marked
            asked = await connection.execute(ASK)
            assert await asked.fetchone() == ("open", "serializable" if level else "read committed")


@pytest.mark.parametrize("was_marked", [True, False])
def test_commit_is_refused_without_a_row_also_in_a_session_that_never_had_the_mark(
    database: Database, was_marked: bool
) -> None:
    """A pooler in transaction mode may lend another session, once a transaction was ended and another one begun."""
    with closing(psycopg.connect(database.dsn)) as connection:
        connection.execute("CREATE TABLE numbers (n int)")
        if was_marked:
            connection.execute(MARK)
        connection.commit()
        connection.execute("INSERT INTO numbers VALUES (1)")
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute(GUARDED_COMMIT)
    assert database.value("SELECT count(*) FROM numbers") == 0
