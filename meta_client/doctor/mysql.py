"""Doctor's queries to MySQL and MariaDB: rows in flight, sessions that wait for one, XA RECOVER, and purge. Read only.

A read at READ UNCOMMITTED shows exactly the rows that a live transaction has written, to any role that reads the table.
Sessions and locks need PROCESS and only name who. Imported when a database of that kind is given: PyMySQL is
metaq-broker[mysql].
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote, urlencode

import pymysql

from journal.records.xid import InvalidXid, Xid
from meta_client.coordinator.errors import CannotEnlist, CoordinatorError
from meta_client.doctor.evidence import DatabaseEvidence, OpenSession, PreparedXact, one_of
from meta_client.protocol.errors import one_line
from meta_client.transactions.mysql import DRIVER, SECRET, connect, open_uncommitted, parameters
from meta_client.transactions.table import TABLE

PORT: Final = 3306
_EVERY_BYTE: Final = "latin1"  # decodes and encodes any bytes, as those of a foreign xid

# trx_started is in the server's time zone whatever the session's is.
_OWN: Final = "SET SESSION autocommit = 1, time_zone = 'SYSTEM', lock_wait_timeout = 1"
_HERE: Final = "SELECT DATABASE(), VERSION(), CONCAT(@@hostname, ':', @@port, @@datadir), CURRENT_USER()"
_OPEN: Final = """SELECT t.trx_id, t.trx_mysql_thread_id, TIMESTAMPDIFF(MICROSECOND, t.trx_started, NOW(6)) / 1000000,
    t.trx_rows_modified, t.trx_tables_locked, p.user, p.host, p.command
FROM information_schema.innodb_trx t LEFT JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id
WHERE t.trx_mysql_thread_id <> CONNECTION_ID() ORDER BY t.trx_started"""
_WAITS: Final = {  # by whether the server is a MariaDB: waiting and blocking transaction, quoted table, quoted key
    True: """SELECT w.requesting_trx_id, w.blocking_trx_id, l.lock_table, l.lock_data
FROM information_schema.innodb_lock_waits w
JOIN information_schema.innodb_locks l ON l.lock_id = w.requested_lock_id""",
    False: """SELECT w.requesting_engine_transaction_id, w.blocking_engine_transaction_id,
    CONCAT('`', l.object_schema, '`.`', l.object_name, '`'), l.lock_data
FROM performance_schema.data_lock_waits w
JOIN performance_schema.data_locks l ON l.engine_lock_id = w.requesting_engine_lock_id""",
}
_HISTORY: Final = "SELECT `count` FROM information_schema.innodb_metrics WHERE name = 'trx_rseg_history_len'"


@dataclass(frozen=True, slots=True)
class _Open:
    """One open transaction of the server."""

    trx: str
    thread: int  # 0: prepared, and its session has left
    age_s: float
    modified: int
    locks: str
    name: str

    def session(self, does: str) -> OpenSession:
        return OpenSession(self.name, self.age_s, does, f"KILL {self.thread}" if self.thread else "")


class _Refused(Exception):
    """The server's answer to a question that this user may not ask, or that this server does not know."""


def names_of(url: str) -> tuple[str, str]:
    """Return the name of the database at *url*, and its address without secrets."""
    try:
        how = parameters(url)
    except CannotEnlist:
        return "a database whose address is wrong", ""
    address = f"[{how['host']}]" if ":" in how["host"] else how["host"]
    host = how.get("unix_socket") or f"{address}:{how.get('port', PORT)}"
    place = quote(address, safe="[]:") + (f":{how['port']}" if "port" in how else "")
    user = f"{quote(how['user'], safe='')}@" if "user" in how else ""
    known = {name: how[name] for name in how if name not in (*SECRET, "host", "port", "user", "database")}
    options = f"?{urlencode(known)}" if known else ""
    scheme = url.partition("://")[0]
    return (
        f"database {how['database']} at {host}",
        f"{scheme}://{user}{place}/{quote(how['database'], safe='')}{options}",
    )


def collect_evidence(said: DatabaseEvidence, gtrids: Sequence[str]) -> DatabaseEvidence:
    """Ask the server for rows in flight, open transactions and XA RECOVER; `failure` tells what went wrong."""
    try:
        rows = _in_flight(said.url, gtrids)
        with closing(connect(said.url)) as connection:
            connection.encoding = _EVERY_BYTE
            _rows_of(connection, _OWN)
            ((database, version, server, user),) = _rows_of(connection, _HERE)
            said = replace(said, database=_text(database), server=_text(server), client=_client(said.url))
            return _with_open(said, connection, rows, _text(user), is_mariadb="MariaDB" in version)
    except pymysql.Error as error:
        return replace(said, failure=one_line(error))
    except (_Refused, CoordinatorError) as error:
        return replace(said, failure=str(error))


def _in_flight(url: str, gtrids: Sequence[str]) -> list[str]:
    """Return those of *gtrids* with a row, committed or not. Raises Unreachable."""
    try:
        table = open_uncommitted(url)
    except CannotEnlist:  # there may be prepared transactions, whatever is wrong with the table
        return []
    with closing(table):
        return [row.gtrid for row in table.recorded(gtrids)]


def _with_open(
    said: DatabaseEvidence, connection: Any, rows: Sequence[str], user: str, *, is_mariadb: bool
) -> DatabaseEvidence:
    """Add open and prepared transactions; those that the user may not see are unknown."""
    try:
        opened = [_open(*row) for row in _rows_of(connection, _OPEN)]
        waits = _rows_of(connection, _WAITS[is_mariadb])
        history = _rows_of(connection, _HISTORY)
    except _Refused as error:
        more = "" if is_mariadb else " and GRANT SELECT ON performance_schema.*"
        unknown = f"unknown: {error} (GRANT PROCESS ON *.*{more} TO {user})"
        unseen = OpenSession(f"a session, {unknown},", None)
        said = replace(said, in_flight=dict.fromkeys(rows, unseen), purge=unknown)
        return _with_prepared(said, connection, lambda count: ((unknown,), None))
    holders, waiting = _at_table(said.database, opened, waits)
    in_flight = {gtrid: holders.get(gtrid) or _a_writer(opened) for gtrid in rows}
    detached = [one for one in opened if not one.thread]

    def locks_of(count: int) -> tuple[tuple[str, ...], int | None]:
        if [count, len(detached)] != [1, 1]:
            return ("unknown: of several, or before its session leaves, the server does not tell whose they are",), None
        (one,) = detached
        return (one.locks,), len({waits_ for waits_, blocks, *_ in waits if str(blocks) == one.trx})

    purge = ""
    if opened:
        purge = f"held back by {opened[0].name}, open for {opened[0].age_s:.0f} s"
        purge += "".join(f"; {length} transactions are not purged" for (length,) in history)
    return _with_prepared(replace(said, in_flight=in_flight, sessions=waiting, purge=purge), connection, locks_of)


def _with_prepared(
    said: DatabaseEvidence, connection: Any, locks_of: Callable[[int], tuple[tuple[str, ...], int | None]]
) -> DatabaseEvidence:
    """Add the answer to XA RECOVER. *locks_of* returns locks and waiting sessions of each of so many transactions."""
    try:
        rows = _rows_of(connection, "XA RECOVER")
    except _Refused as error:
        return replace(said, gaps={"XA RECOVER": str(error)})
    locks, waiting = locks_of(len(rows))
    prepared = []
    for format_id, gtrid_length, bqual_length, text in rows:
        data = text if isinstance(text, bytes) else text.encode(_EVERY_BYTE)
        try:
            xid = Xid(format_id, data[:gtrid_length], data[gtrid_length : gtrid_length + bqual_length])
        except InvalidXid:  # such a name has no branch at a broker
            continue
        prepared.append(PreparedXact(xid, locks=locks, waiting=waiting))
    return replace(said, prepared=tuple(prepared), has_prepared=True)


def _at_table(
    database: str, opened: Sequence[_Open], waits: Sequence[Sequence[Any]]
) -> tuple[Mapping[str, OpenSession], tuple[OpenSession, ...]]:
    """Return the holders of the table's rows for which others wait, by gtrid, and those that wait."""
    by_trx = {one.trx: one for one in opened}
    holders: dict[str, OpenSession] = {}
    waiting: dict[str, OpenSession] = {}
    for waits_, blocks, table, row in waits:
        if _text(table) != f"`{database}`.`{TABLE}`":
            continue
        if row is not None and (one := by_trx.get(str(blocks))) is not None:
            holders[_text(row).strip("'")] = one.session("has written to")
        if (one := by_trx.get(str(waits_))) is not None:
            waiting[one.trx] = one.session("waits for a row of")
    return holders, tuple(waiting.values())


def _a_writer(opened: Sequence[_Open]) -> OpenSession:
    """Return the open transaction that has written anything; of several, any may have written a row."""
    writers = [one.session("has written to") for one in opened if one.modified]
    return one_of(writers) if writers else OpenSession("a session", None)


def _open(trx: object, thread: int, age_s: Any, modified: int, tables: int, *who: str | None) -> _Open:
    user, host, command = (_text(word) if word else "" for word in who)
    words = [f"session {thread}", f"of {user}" if user else "", f"from {host}" if host else "", command.lower()]
    name = " ".join(word for word in words if word) if thread else "a prepared transaction (XA RECOVER)"
    return _Open(str(trx), thread, float(age_s), modified, f"{modified} rows written in {tables} tables", name)


def _client(url: str) -> str:
    """Return the command line of the server's own client, which asks for the password."""
    how = parameters(url)
    where = {"socket": how["unix_socket"]} if "unix_socket" in how else {"host": how["host"], "port": how.get("port")}
    options = where | {"user": how.get("user")}
    words = [f"--{name}={value}" for name, value in options.items() if value is not None]
    return shlex.join(["mysql", *words, *(["--password"] if how.get("password") else []), how["database"]])


def _text(value: object) -> str:
    """Return a text that was read byte by byte."""
    return str(value).encode(_EVERY_BYTE, "replace").decode(errors="replace")


def _rows_of(connection: Any, query: str) -> Sequence[Sequence[Any]]:
    """Return the rows. Raises _Refused, and pymysql.Error for a lost connection."""
    try:
        return DRIVER.query(connection, query)
    except pymysql.Error as error:
        if DRIVER.code(error) is None:
            raise
        raise _Refused(one_line(error)) from error
