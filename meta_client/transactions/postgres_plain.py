"""PostgreSQL through psycopg2 or pg8000. Doesn't import either: a connection implies an imported module."""

import functools
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from meta_client.coordinator.errors import CannotEnlist
from meta_client.transactions.dbapi import Ask, Connect, Driver, DriverState, Known
from meta_client.transactions.dialects import POSTGRES, Dialect
from meta_client.transactions.postgres_table import (
    LOST_HOST,
    READ_MARK,
    RECORDED,
    RECORDING,
    has_rolled_back,
    look_up,
    quoted,
    says,
)

CONNECT_TIMEOUT_S: Final = 5


class _Kind:
    """PostgreSQL; errors by SQLSTATE."""

    dialect: Dialect = POSTGRES
    own: Sequence[str] = ()
    brokers = RECORDING
    says = staticmethod(says)
    has_rolled_back = staticmethod(has_rolled_back)

    def state(self, ask: Ask) -> DriverState:
        ask("SELECT 1")
        return DriverState()

    def holds(self, ask: Ask, prefix: str, gtrid: str) -> bool:
        del prefix, gtrid
        return bool(ask(READ_MARK)[0][0] == RECORDED)

    def look_up(self, ask: Ask, schema: str | None = None) -> Known:
        identity, schema = look_up(ask, schema)
        return Known(identity, f"{quoted(schema)}.".replace("%", "%%"), schema)


def driver_of(connection: Any) -> Driver | None:
    """Return the driver of *connection*; None if it is neither. Raises CannotEnlist."""
    psycopg2, pg8000 = sys.modules.get("psycopg2.extensions"), sys.modules.get("pg8000")
    if psycopg2 is not None and isinstance(connection, psycopg2.connection):
        if connection.async_:
            raise CannotEnlist("the database connection is asynchronous: make it without async_")
        return _psycopg2(sys.modules["psycopg2"])
    if pg8000 is not None and isinstance(connection, (pg8000.dbapi.Connection, pg8000.legacy.Connection)):
        return _pg8000(pg8000)
    return None


@functools.cache
def _psycopg2(module: Any) -> Driver:
    def connect_as(connection: Any, known: Known) -> Connect:
        del known
        how = LOST_HOST | connection.info.dsn_parameters | {"password": connection.info.password}
        how |= {"connect_timeout": CONNECT_TIMEOUT_S, "application_name": "metaq resolver"}
        return functools.partial(module.connect, **how)

    return Driver(
        kind=_Kind(),
        error=module.Error,
        closed=module.InterfaceError,
        mark="%s",
        code=lambda error: getattr(error, "pgcode", None),
        cursor=lambda connection: connection.cursor(cursor_factory=module.extensions.cursor),
        is_autocommit=lambda connection: bool(connection.autocommit),
        make_own=functools.partial(_make_own_psycopg2, module),
        abandon=functools.partial(_abandon, module),
        connect_as=connect_as,
        is_always_in_step=True,
    )


@functools.cache
def _pg8000(module: Any) -> Driver:
    def code(error: Exception) -> object:
        said = error.args[0] if error.args else None
        return said.get("C") if isinstance(said, dict) else None

    return Driver(
        kind=_Kind(),
        error=module.Error,
        closed=module.InterfaceError,
        mark="%s",
        code=code,
        cursor=lambda connection: connection.cursor(),
        is_autocommit=lambda connection: bool(connection.autocommit),
        make_own=_make_own,
        abandon=functools.partial(_abandon, module),
        connect_as=lambda connection, known: None,
    )


def _make_own_psycopg2(module: Any, connection: Any) -> None:
    connection.cursor_factory = module.extensions.cursor
    connection.autocommit = True


def _make_own(connection: Any) -> None:
    connection.autocommit = True


def _abandon(module: Any, connection: Any) -> None:
    with suppress(module.Error):  # it may be closed already
        connection.close()
