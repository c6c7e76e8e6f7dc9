"""Engine for a database that is named as for `metaq txn`, with time limits for its connections."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from meta_client.coordinator.errors import Unreachable
from meta_client.outbox.errors import outbox_errors
from meta_client.sql.core import Connection, Engine, NullPool, create_engine
from meta_client.transactions.databases import place_of_url
from meta_client.transactions.table import DATABASE

CONNECT_TIMEOUT_S: Final = 5
LOCK_TIMEOUT_S: Final = 10  # for another relay
SILENCE_S: Final = 60  # of the database, and of a relay that holds its lock and whose host is lost
IDLE_IN_BLOCK: Final = "idle_in_transaction_session_timeout"
PROGRAM: Final = "metaq-relay"  # in listings of the database and of brokers


def engine_at(url: str) -> Engine:
    """Return an engine for the database at *url*. Does not connect. Raises CannotEnlist."""
    kind, where = place_of_url(url)
    match kind:
        case "sqlite":
            return create_engine("sqlite://", creator=functools.partial(_sqlite, where), poolclass=NullPool)
        case "mysql":
            return create_engine("mysql+pymysql://", creator=functools.partial(_mysql, where))
    return create_engine("postgresql+psycopg://", creator=functools.partial(_postgres, where))


@contextmanager
def opened(url: str) -> Iterator[Connection]:
    """Yield a connection to the database at *url*. Raises CannotEnlist (NoOutbox), Unreachable."""
    engine = engine_at(url)
    try:
        with outbox_errors(), engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def _sqlite(path: str) -> Any:
    import sqlite3

    if not Path(path).is_file():  # it would be made
        raise Unreachable(DATABASE, f"{path} is not there")
    return sqlite3.connect(path, timeout=LOCK_TIMEOUT_S, check_same_thread=False)


def _mysql(url: str) -> Any:
    from pymysql.constants import CLIENT  # PyMySQL: metaq-broker[mysql]

    from meta_client.transactions.mysql import connect

    return connect(url, client_flag=CLIENT.FOUND_ROWS, program_name=PROGRAM)  # counts rows as other databases do


def _postgres(dsn: str) -> Any:
    import psycopg

    from meta_client.transactions.postgres import bounded

    connection = psycopg.connect(
        bounded(dsn), connect_timeout=CONNECT_TIMEOUT_S, application_name=PROGRAM, autocommit=True
    )
    for setting in ("lock_timeout", LOCK_TIMEOUT_S), ("statement_timeout", SILENCE_S), (IDLE_IN_BLOCK, SILENCE_S):
        connection.execute(f"SET {setting[0]} = '{setting[1]}s'")
    connection.execute("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE")
    connection.autocommit = False
    return connection
