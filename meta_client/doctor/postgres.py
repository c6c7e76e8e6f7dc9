"""Doctor's queries to PostgreSQL: prepared transactions and open deciding sessions. Read only, except for `commit`.

Imported when a database of that kind is given: psycopg is metaq-broker[postgres].
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import tuple_row

from journal.records.xid import InvalidXid, Xid
from meta_client.coordinator.errors import CoordinatorError
from meta_client.coordinator.participants import BranchEnd
from meta_client.coordinator.phase_two import commit_once
from meta_client.coordinator.postgres import PostgresParticipant
from meta_client.doctor.evidence import Answer, DatabaseEvidence, OpenSession, PreparedXact
from meta_client.doctor.verdicts import BranchAnswer
from meta_client.protocol.errors import one_line
from meta_client.transactions.statements import reaching
from meta_client.transactions.table import TABLE

_Connection = psycopg.Connection[Any]

CONNECT_TIMEOUT_S: Final = 5
STATEMENT_TIMEOUT_MS: Final = 10_000
LOCKS_SHOWN: Final = 10
AS_ENDED: Final = {
    BranchEnd.COMMITTED: BranchAnswer.COMMITTED,
    BranchEnd.ROLLED_BACK: BranchAnswer.ROLLED_BACK,
    BranchEnd.NOT_ENDED: BranchAnswer.PREPARED,
    BranchEnd.UNKNOWN: BranchAnswer.UNKNOWN,
    BranchEnd.NOT_SUPPORTED: BranchAnswer.SILENT,
}

_LIMITS: Final = f"SET LOCAL transaction_read_only = on; SET LOCAL statement_timeout = {STATEMENT_TIMEOUT_MS}"
_HERE: Final = "SELECT current_database(), pg_is_in_recovery()"
# A prepared transaction has no process, but all its locks share a virtual transaction id with its lock on its xid.
_PREPARED: Final = """
WITH locks AS MATERIALIZED (SELECT * FROM pg_locks),
held AS (
    SELECT p.gid, l.* FROM pg_prepared_xacts p
    JOIN locks own ON own.locktype = 'transactionid' AND own.transactionid = p.transaction AND own.granted
        AND own.pid IS NULL
    JOIN locks l ON l.virtualtransaction = own.virtualtransaction AND l.pid IS NULL AND l.granted
)
SELECT p.gid, p.database, p.owner, extract(epoch FROM clock_timestamp() - p.prepared)::float8, age(p.transaction),
    (SELECT coalesce(array_agg(DISTINCT h.mode || ' on ' || CASE
            WHEN h.relation IS NULL THEN h.locktype
            WHEN h.database = (SELECT oid FROM pg_database WHERE datname = current_database())
                THEN h.relation::regclass::text
            ELSE 'relation ' || h.relation END), '{}')
        FROM held h WHERE h.gid = p.gid AND h.locktype NOT IN ('transactionid', 'virtualxid')),
    (SELECT count(DISTINCT w.pid) FROM held h JOIN locks w
        ON (w.locktype, w.database, w.relation, w.page, w.tuple, w.transactionid, w.classid, w.objid, w.objsubid)
            IS NOT DISTINCT FROM
            (h.locktype, h.database, h.relation, h.page, h.tuple, h.transactionid, h.classid, h.objid, h.objsubid)
        WHERE h.gid = p.gid AND NOT w.granted AND 0 = ANY(pg_blocking_pids(w.pid)))
FROM pg_prepared_xacts p ORDER BY p.prepared"""
_SESSIONS: Final = """
SELECT a.pid, a.usename, a.application_name, a.client_addr::text, a.state,
    extract(epoch FROM clock_timestamp() - a.xact_start)::float8
FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.relation = to_regclass(%s) AND l.database = a.datid AND l.mode = 'RowExclusiveLock' AND l.granted
    AND a.pid <> pg_backend_pid()
ORDER BY a.xact_start NULLS FIRST"""


def names_of(url: str) -> tuple[str, str]:
    """Return the name of the database at *url*, and its address without a password."""
    try:
        known = {name: str(value) for name, value in conninfo_to_dict(url).items() if name != "password"}
    except psycopg.Error:
        return "a database whose address libpq does not read", ""
    host = known.get("host", known.get("hostaddr", "its socket"))
    return f"database {known.get('dbname', 'by default')} at {host}:{known.get('port', '5432')}", make_conninfo(**known)


def collect_evidence(said: DatabaseEvidence, gtrids: Sequence[str]) -> DatabaseEvidence:
    """Ask the server for prepared transactions and writers of the decision table; `failure` tells what went wrong.

    *gtrids* are not needed: PostgreSQL shows no transaction another's row.
    """
    del gtrids
    try:
        with _connected(said.url) as connection:
            with _reading(connection):
                database, is_replica = _rows(connection, _HERE)[0]
                if is_replica:
                    return replace(said, database=database, failure="it is a replica: give the primary")
                takes_part = _takes_part(connection)
                prepared = tuple(_prepared(connection))
                sessions = tuple(_session(*row) for row in _rows(connection, _SESSIONS, (TABLE,)))
            resource_id = PostgresParticipant(connection).resource_id() if takes_part else ""
    except psycopg.Error as error:
        return replace(said, failure=one_line(error))
    except CoordinatorError as error:
        return replace(said, failure=str(error))
    return replace(
        said,
        database=database,
        server=resource_id.partition("/")[0],
        resource_id=resource_id,
        prepared=prepared,
        has_prepared=True,
        sessions=sessions,
    )


def outcome(url: str, xid: Xid, receipt: str) -> Answer:
    """Return the outcome of the database branch of *xid* prepared with *receipt*."""
    try:
        with _connected(url) as connection:
            return Answer(AS_ENDED[PostgresParticipant(connection).outcome(xid, receipt)])
    except (psycopg.Error, CoordinatorError) as error:
        return Answer(BranchAnswer.SILENT, one_line(error))


def commit(url: str, xid: Xid, receipt: str) -> None:
    """Commit the prepared branch of *xid*, as its log decided. Raises Unreachable, HeuristicOutcome."""
    with reaching(psycopg.Error), _connected(url) as connection:
        commit_once(PostgresParticipant(connection), xid, receipt, is_repeated=False)


def _takes_part(connection: _Connection) -> bool:
    return bool(_rows(connection, "SELECT current_setting('max_prepared_transactions')::int > 0")[0][0])


def _prepared(connection: _Connection) -> Iterator[PreparedXact]:
    for gid, database, owner, age_s, vacuum_age, locks, waiting in _rows(connection, _PREPARED):
        try:
            xid = Xid.parse(gid)
        except InvalidXid:  # such a name has no branch at a broker
            continue
        if str(xid) != gid:  # nor has one that only decodes to an xid: commands would miss it
            continue
        shown = (*locks[:LOCKS_SHOWN], *([f"and {len(locks) - LOCKS_SHOWN} more"] if len(locks) > LOCKS_SHOWN else []))
        yield PreparedXact(xid, database, owner, age_s, vacuum_age, shown, waiting)


def _session(pid: int, role: str, application: str, host: str, state: str, age_s: float | None) -> OpenSession:
    words = [f"session {pid}", f"of {role}" if role else "", f"({application})" if application else ""]
    name = " ".join(word for word in (*words, f"from {host}" if host else "", state or "") if word)
    return OpenSession(name, age_s, ends=f"SELECT pg_terminate_backend({pid})")


def _rows(connection: _Connection, query: str, parameters: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
    with connection.cursor(row_factory=tuple_row) as cursor:
        return cursor.execute(query.encode(), parameters).fetchall()


@contextmanager
def _connected(url: str) -> Iterator[_Connection]:
    connection: _Connection = psycopg.connect(
        url, connect_timeout=CONNECT_TIMEOUT_S, application_name="metaq doctor", autocommit=True
    )
    with connection:
        connection.prepare_threshold = None  # behind a pooler the name may be another client's statement
        yield connection


@contextmanager
def _reading(connection: _Connection) -> Iterator[None]:
    """Write nothing, and bound each statement, until the block's end: a pooler may lend the session to others next."""
    with connection.transaction():
        connection.execute(_LIMITS.encode())
        yield
