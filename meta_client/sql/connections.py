"""Choice of the executor for a caller's connection, and the check that it is in a transaction."""

import sys
from typing import TYPE_CHECKING, Any, Final

from meta_client.errors import NotInTransaction

if TYPE_CHECKING:
    from meta_client.sql.executor import Executor

_IN_TRANS: Final = 1  # SERVER_STATUS_IN_TRANS of MySQL's protocol


def executor_of(connection: Any) -> "Executor":
    """Return what executes on *connection*: of a PEP 249 driver, or a Connection or Session of SQLAlchemy. Raises
    NoDatabase."""
    return _executor(connection, _sqlalchemy_connection(connection))


def executor_in_transaction(connection: Any) -> "Executor":
    """Return the same, for what is to commit or roll back with the caller's rows. Raises NotInTransaction, too."""
    own = _sqlalchemy_connection(connection)
    found = _executor(connection, own)
    _check_in_transaction(connection if own is None else _begun_by(own.connection))
    return found


def _executor(connection: Any, own: Any) -> "Executor":
    if own is not None:
        from meta_client.sql.executor import SqlAlchemyExecutor

        return SqlAlchemyExecutor(own)
    from meta_client.sql.dbapi_executor import DbapiExecutor

    return DbapiExecutor(connection)


def _begun_by(pooled: Any) -> Any:
    """Return the connection that knows its mode: the driver's. asyncpg's leaves that to SQLAlchemy's around it."""
    driver = pooled.driver_connection
    return pooled.dbapi_connection if hasattr(driver, "is_in_transaction") else driver


def _check_in_transaction(connection: Any) -> None:
    """Raise NotInTransaction if *connection*, of any driver, would commit the next statement by itself."""
    if getattr(connection, "in_transaction", False) is True:  # sqlite3, mysql.connector
        return
    if getattr(getattr(connection, "info", None), "transaction_status", 0):  # psycopg: 0 is IDLE
        return
    if getattr(connection, "_in_transaction", False) is True:  # pg8000
        return
    if getattr(connection, "server_status", 0) & _IN_TRANS:  # PyMySQL
        return
    autocommit = getattr(connection, "autocommit", False)
    if callable(autocommit):  # PyMySQL, mysqlclient: this one is the setter
        autocommit = connection.get_autocommit()
    is_manual = hasattr(connection, "in_transaction") and getattr(connection, "isolation_level", "") is None  # sqlite3
    if autocommit is True or is_manual:
        raise NotInTransaction(
            f"{type(connection).__module__}.{type(connection).__name__} is in autocommit mode, outside of a "
            "transaction: this would be stored without your rows; begin one first"
        )


def _sqlalchemy_connection(given: Any) -> Any:
    """Return *given* as a Connection of SQLAlchemy, that of a Session included; None for anything else."""
    if "sqlalchemy" not in sys.modules:
        return None  # not imported: it can't be one
    from sqlalchemy import Connection

    if isinstance(given, Connection):
        return given
    if "sqlalchemy.orm" in sys.modules:
        from sqlalchemy.orm import Session, scoped_session

        if isinstance(given, Session | scoped_session):
            return given.connection()
    return None
