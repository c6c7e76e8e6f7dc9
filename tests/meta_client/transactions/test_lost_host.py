"""A database whose host is lost: our own connections give it up within a minute, where the system waits two hours."""

import os
import socket
from contextlib import closing
from typing import Any

import psycopg
import psycopg2
import pytest
from psycopg.conninfo import make_conninfo

from meta_client.outbox.engines import engine_at
from meta_client.transactions.databases import init, session_of, table_at
from meta_client.transactions.table import KEEP_S
from tests.fixtures.postgres import Database, connect_plain

NAMES = socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT


def limits(connection: Any) -> tuple[int, ...]:
    with socket.socket(fileno=os.dup(connection.fileno())) as it:
        return tuple(it.getsockopt(socket.IPPROTO_TCP, name) for name in NAMES)


@pytest.mark.parametrize(
    ("given", "expected"), [({}, (30, 10, 3, 60_000)), ({"keepalives_idle": 7}, (7, 10, 3, 60_000))]
)
def test_a_url_s_own_limits_count(database: Database, given: dict[str, int], expected: tuple[int, ...]) -> None:
    dsn = make_conninfo(database.dsn, **given)
    init(dsn, KEEP_S)
    with closing(table_at(dsn)) as table:
        assert limits(table._connection) == expected  # type: ignore[attr-defined]
    with closing(engine_at(dsn).raw_connection()) as pooled:
        assert limits(pooled.driver_connection) == expected
        pooled.detach()


@pytest.mark.parametrize("driver", [psycopg, psycopg2])
def test_a_resolver_s_connection_beside_a_caller_s_has_them(database: Database, driver: Any) -> None:
    init(database.dsn, KEEP_S)
    is_plain = driver is psycopg2
    with closing(connect_plain(driver, database.dsn) if is_plain else driver.connect(database.dsn)) as connection:
        session = session_of(connection)
        session.begin()
        with closing(session.opener()()) as table:
            assert limits(table._connection) == (30, 10, 3, 60_000)  # type: ignore[attr-defined]
        session.rollback()
