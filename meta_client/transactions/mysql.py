"""MySQL and MariaDB, with InnoDB, through PyMySQL.

The barrier: an insert locks its key in the primary index, at every isolation level, and every other insert of that key
waits until the transaction ends: a unique key is checked against the newest state, not the snapshot. The only file here
that imports PyMySQL; imported when a connection is enlisted.
"""
# ruff: noqa: S608 - statements consist of constants and of a quoted database name

import functools
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import pymysql
from pymysql.constants import CR, ER
from pymysql.cursors import Cursor

from meta_client.coordinator.errors import CannotEnlist
from meta_client.protocol.errors import one_line
from meta_client.transactions.dbapi import Ask, Connect, Driver, DriverState, Known, open_over
from meta_client.transactions.deciding import Says
from meta_client.transactions.dialects import MYSQL, Dialect
from meta_client.transactions.errors import CopiedTable, NoDecisionTable
from meta_client.transactions.statements import SqlTable, identity_of, reaching
from meta_client.transactions.table import IDENTITY, TABLE, TableIdentity

CONNECT_TIMEOUT_S: Final = 5
ANSWER_TIMEOUT_S: Final = 30  # of our own connections; exceeds the lock timeout
LOCK_TIMEOUT_S: Final = 1  # the shortest possible

_RECORD_CHANGED: Final = 1020  # MariaDB's serialization failure
_SP_DOES_NOT_EXIST: Final = 1305  # also raised for savepoints
_GROUP_ROLLED_BACK: Final = 3101
# Too many connections, server shutdown, network errors, connection killed, idle too long; and statements that were
# stopped by KILL QUERY, max_statement_time or max_execution_time, after which the transaction goes on.
_NO_ANSWER: Final = (1040, 1053, 1152, 1158, 1159, 1160, 1161, 1927, 4031, 1317, 1969, 3024)
_SAYS: Final[Mapping[object, Says]] = {
    ER.LOCK_DEADLOCK: Says.AGAIN,
    ER.LOCK_WAIT_TIMEOUT: Says.AGAIN,
    _RECORD_CHANGED: Says.AGAIN,
    ER.DUP_ENTRY: Says.DUPLICATE,
    ER.BAD_NULL_ERROR: Says.IS_NULL,
    ER.TABLEACCESS_DENIED_ERROR: Says.NO_RIGHT,
    ER.COLUMNACCESS_DENIED_ERROR: Says.NO_RIGHT,
    1792: Says.READ_ONLY,
    ER.TABLE_DEF_CHANGED: Says.MADE_AGAIN,  # the transaction's snapshot is older than the table
    _SP_DOES_NOT_EXIST: Says.NOT_THE_TRANSACTION,
    **dict.fromkeys(_NO_ANSWER, Says.NO_ANSWER),
}
_OFF: Final = (0, "0", "OFF")

_STATE: Final = """SELECT CONNECTION_ID(), UNIX_TIMESTAMP(), @@autocommit, @@unique_checks, @@read_only,
    @@innodb_flush_log_at_trx_commit, @@log_bin, @@sync_binlog"""
_SERVER: Final = """SHOW GLOBAL VARIABLES WHERE Variable_name IN ('version', 'server_uuid', 'server_id', 'wsrep_on',
    'wsrep_provider', 'group_replication_group_name', 'group_replication_single_primary_mode')"""
_FIND: Final = f"""SELECT table_name, engine, (
    SELECT GROUP_CONCAT(column_name) FROM information_schema.statistics AS one
    WHERE one.table_schema = DATABASE() AND one.table_name = t.table_name AND index_name = 'PRIMARY')
FROM information_schema.tables AS t WHERE table_schema = DATABASE() AND table_name IN ('{TABLE}', '{IDENTITY}')"""
# MariaDB has no identifier of the data directory; server_id differs among replicated servers.
_HOME: Final = {True: "CONCAT(@@server_id, '/', DATABASE())", False: "CONCAT(@@server_uuid, '/', DATABASE())"}

SECRET: Final = ("password", "ssl_key_password")
_OURS: Final[Mapping[str, Any]] = {
    "connect_timeout": CONNECT_TIMEOUT_S,
    "read_timeout": ANSWER_TIMEOUT_S,
    "write_timeout": ANSWER_TIMEOUT_S,
    "program_name": "metaq resolver",
}
_IN_URL: Final = ("unix_socket", "charset", "ssl_ca", "ssl_cert", "ssl_key", "ssl_key_password", "read_default_file")


class _Kind:
    """InnoDB behind MySQL or MariaDB."""

    dialect: Dialect = MYSQL
    brokers = "%s"
    # READ COMMITTED fails with statement-based binary logging.
    own: Sequence[str] = (
        f"SET SESSION autocommit = 1, innodb_lock_wait_timeout = {LOCK_TIMEOUT_S}, "
        f"lock_wait_timeout = {LOCK_TIMEOUT_S}, unique_checks = 1, time_zone = '+00:00'",
        "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ WRITE",
    )

    def state(self, ask: Ask) -> DriverState:
        ((session, now, is_autocommit, is_checked, is_read_only, flushes, has_log, syncs),) = ask(_STATE)
        if is_read_only not in _OFF:
            raise CannotEnlist(
                "the database server is read_only, as a replica is, and decides nothing: connect to the primary"
            )
        if flushes not in (1, "1"):
            raise CannotEnlist(
                "a COMMIT of this server may be lost after it was answered, and a decision must not be: SET GLOBAL "
                "innodb_flush_log_at_trx_commit = 1"
            )
        if has_log not in _OFF and syncs not in (1, "1"):
            raise CannotEnlist(
                "a COMMIT of this server may be lost with the power after it was answered, because its binary log "
                "decides and reaches the disk later: SET GLOBAL sync_binlog = 1"
            )
        if is_checked in _OFF:
            raise CannotEnlist(
                "with unique_checks = 0, which is for loading, a key may be inserted twice: SET unique_checks = 1"
            )
        return DriverState(session, (now,), may_commit_alone=is_autocommit not in _OFF)

    def look_up(self, ask: Ask, schema: str | None = None) -> Known:
        if schema is not None:  # of a connection of our own
            ask(f"USE {_quoted(schema)}")
        ((database, user),) = ask("SELECT DATABASE(), CURRENT_USER()")
        if database is None:
            raise CannotEnlist("the connection has no default database, in which the decision table would be: USE one")
        server = {str(name): str(value) for name, value in ask(_SERVER)}
        _check_server(server)
        found: dict[str, tuple[str | None, str | None]] = {str(name): (engine, key) for name, engine, key in ask(_FIND)}
        if found.keys() != {TABLE, IDENTITY}:
            raise NoDecisionTable(database, f"it has none that {user} may use (SELECT, INSERT, UPDATE, DELETE)")
        if found[TABLE][1] != "gtrid":
            raise CannotEnlist(
                f"{TABLE} of {database} has no primary key, so that both could be decided: ALTER TABLE {TABLE} ADD "
                f"PRIMARY KEY (gtrid)"
            )
        for name, (engine, _) in found.items():
            if engine != "InnoDB":
                raise CannotEnlist(
                    f"{name} of {database} is of the engine {engine}, whose insert has nobody wait for its "
                    f"transaction: ALTER TABLE {name} ENGINE = InnoDB"
                )
        rows = ask(f"SELECT table_id, home, keep_s FROM {_quoted(database)}.{IDENTITY}")
        if not rows:
            raise NoDecisionTable(database, f"{IDENTITY} is empty")
        ((table_id, home, keep_s),) = rows
        if home != (here := f"{server.get('server_uuid') or server['server_id']}/{database}"):
            raise CopiedTable(database, home, here)
        identity = identity_of(database, table_id, keep_s)
        return Known(identity, f"{_quoted(database)}.".replace("%", "%%"), database)

    def holds(self, ask: Ask, prefix: str, gtrid: str) -> bool:
        return bool(ask(f"SELECT count(*) FROM {prefix}{TABLE} WHERE gtrid = '{gtrid}' AND outcome = 'commit'")[0][0])

    def says(self, code: object) -> Says | None:
        return _SAYS.get(code)

    def has_rolled_back(self, code: object) -> bool:
        return code in (ER.LOCK_DEADLOCK, _GROUP_ROLLED_BACK)


class _Uncommitted(_Kind):
    """The same, for reads that see what is not committed."""

    own = (*_Kind.own, "SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED")


def _check_server(server: Mapping[str, str]) -> None:
    """Raise CannotEnlist for a server that looks like InnoDB and is no barrier."""
    is_galera = server.get("wsrep_on") == "ON" and server.get("wsrep_provider", "none") != "none"
    is_group = server.get("group_replication_group_name") and (
        server.get("group_replication_single_primary_mode") == "OFF"
    )
    if is_galera or is_group:
        raise CannotEnlist(
            "in a cluster that many may write to (Galera, or a group with several primaries) an insert at one node "
            "waits for none at another: use a server of its own, with replicas if you like"
        )
    if "TiDB" in server["version"]:
        raise CannotEnlist("a TiDB is no InnoDB, though it says so: use MySQL, MariaDB or PostgreSQL")


def _quoted(name: str) -> str:
    return "`{}`".format(name.replace("`", "``"))


def _code(error: Exception) -> object:
    """Return the server's error number; None for the driver's own errors (from 2000 on, or without a number)."""
    code = error.args[0] if error.args else None
    return code if isinstance(code, int) and code and not CR.CR_ERROR_FIRST <= code <= CR.CR_ERROR_LAST else None


def _make_own(connection: Any) -> None:
    connection.cursorclass = Cursor
    connection.autocommit(True)


def _connect_as(connection: Any, known: Known) -> Connect:
    how: dict[str, Any] = {
        "host": connection.host,
        "port": connection.port,
        "unix_socket": connection.unix_socket,
        "user": connection.user,
        "password": connection.password,
        "charset": connection.charset,
        "server_public_key": connection.server_public_key,
        "auth_plugin_map": connection._auth_plugin_map,
        "bind_address": connection.bind_address,
    }
    if not connection.ssl:
        how["ssl_disabled"] = True
    elif getattr(connection, "_ssl_required", True):
        how["ssl"] = connection.ctx
    return functools.partial(_connect, database=known.schema, **how)


def _connect(**how: Any) -> Any:
    try:
        return pymysql.connect(**{**_OURS, **how})
    except (OSError, LookupError, ValueError, AttributeError) as error:  # the driver trips over a parameter
        raise CannotEnlist(f"no connection can be made so: {type(error).__name__}: {one_line(error)}") from error


DRIVER: Final = Driver(
    kind=_Kind(),
    error=pymysql.Error,
    closed=pymysql.InterfaceError,
    mark="%s",
    code=_code,
    cursor=lambda connection: connection.cursor(Cursor),
    is_autocommit=lambda connection: False,
    make_own=_make_own,
    abandon=lambda connection: connection._force_close(),  # close() twice is an error of its
    connect_as=_connect_as,
)


def connect(url: str, **how: Any) -> Any:
    """Return a new connection to the database at *url*, made as *how* says, too. Raises CannotEnlist, pymysql.Error."""
    return _connect(**parameters(url), **how)


def open_table(url: str) -> SqlTable:
    """Open the decision table of the database at *url*. Raises Unreachable, NoDecisionTable, CopiedTable,
    CannotEnlist."""
    return open_over(DRIVER, functools.partial(connect, url))


def open_uncommitted(url: str) -> SqlTable:
    """Open the table like open_table; its reads show rows of transactions that have not ended, too."""
    return open_over(replace(DRIVER, kind=_Uncommitted()), functools.partial(connect, url))


def initialise(url: str, keep_s: int, change: str) -> TableIdentity:
    """Create the table if missing, then apply *change* (dialects). Raises Unreachable, CopiedTable, CannotEnlist."""
    with reaching(pymysql.Error), closing(connect(url)) as connection:
        ((version,),) = DRIVER.query(connection, "SELECT VERSION()")
        home = _HOME["MariaDB" in version]
        text = MYSQL.ddl(home, keep_s) + MYSQL.change(change, home)
        with closing(connection.cursor()) as cursor:
            for statement in filter(None, text.split(";\n")):
                cursor.execute(statement)
        connection.commit()
        return DRIVER.kind.look_up(functools.partial(DRIVER.query, connection)).identity


def ddl(url: str, keep_s: int) -> str:
    """Return the SQL that `initialise` executes, the same for every database of MySQL (mysql://...) or MariaDB
    (mariadb://...)."""
    return MYSQL.ddl(_HOME[url.startswith("mariadb")], keep_s)


def parameters(url: str) -> dict[str, Any]:
    """Return PyMySQL's parameters for a URL of SQLAlchemy's form. Raises CannotEnlist."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:  # its text may have a piece of a password with an unescaped character
        raise CannotEnlist("the database's URL can't be read: write / : @ ? # of a password as %2F %3A ...") from None
    database = unquote(parts.path)[1:]
    if not database:
        raise CannotEnlist(f"{parts.scheme}://{parts.hostname} names no database: give {parts.scheme}://user@host/name")
    how: dict[str, Any] = {"database": database, "host": parts.hostname or "localhost"}
    if port is not None:
        how["port"] = port
    if parts.username is not None:
        how["user"] = unquote(parts.username)
    if parts.password is not None:
        how["password"] = unquote(parts.password)
    for name, value in parse_qsl(parts.query):
        if name not in _IN_URL:
            raise CannotEnlist(
                f"{name!r} is not known behind the ? of a database URL: leave it out; {', '.join(_IN_URL)} are"
            )
        how[name] = value
    return how
