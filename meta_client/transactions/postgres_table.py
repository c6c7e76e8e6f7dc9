"""PostgreSQL's decision table for any driver: lookup, and errors by SQLSTATE."""
# ruff: noqa: S608 - queries consist of constants and of a quoted schema

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from meta_client.coordinator.errors import CannotEnlist
from meta_client.transactions.deciding import Says
from meta_client.transactions.errors import INIT, CopiedTable, NoDecisionTable
from meta_client.transactions.statements import identity_of
from meta_client.transactions.table import IDENTITY, TABLE, TableIdentity

_log = logging.getLogger(__name__)

# Identifies the database by system identifier and oid, which survive a change of host.
_DATABASE: Final = """(SELECT system_identifier::text FROM pg_control_system()) || '/'
    || (SELECT oid::text FROM pg_database WHERE datname = current_database())"""
_SCHEMA: Final = "SELECT nspname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE c.oid = to_regclass"
# Names the schema, too: one that is cloned, as for each tenant, has another table.
HOME: Final = f"{_DATABASE}\n    || '/' || ({_SCHEMA}('{IDENTITY}'))"
_FIND: Final = f"""SELECT current_database(), {_DATABASE}, pg_is_in_recovery(), current_user, current_setting('fsync'),
    ({_SCHEMA}({{table}})),
    has_table_privilege(to_regclass({{table}}), 'SELECT') AND has_table_privilege(to_regclass({{table}}), 'INSERT')
    AND has_table_privilege(to_regclass({{table}}), 'UPDATE') AND has_table_privilege(to_regclass({{table}}), 'DELETE')
    AND has_table_privilege(to_regclass({{identity}}), 'SELECT')
    AND has_any_column_privilege(to_regclass({{identity}}), 'UPDATE'),
    (SELECT CASE WHEN relkind <> 'r' OR relhasrules THEN 'kind' WHEN relpersistence <> 'p' THEN 'persistence'
        WHEN row_security_active(c.oid) THEN 'security' WHEN NOT EXISTS (
            SELECT FROM pg_index WHERE indrelid = c.oid AND indisunique AND indimmediate AND indisvalid
            AND indpred IS NULL AND indnkeyatts = 1 AND indkey[0] =
                (SELECT attnum FROM pg_attribute WHERE attrelid = c.oid AND attname = 'gtrid')) THEN 'key' END
    FROM pg_class c WHERE c.oid = to_regclass({{table}}))"""
_FLAWS: Final = {
    "kind": f"is a view, partitioned, or has rules, and must be an ordinary table: drop it, then `{INIT}`",
    "persistence": f"is unlogged or temporary, so that a crash would empty it: ALTER TABLE {TABLE} SET LOGGED",
    "security": f"hides rows from its role, and decisions must be seen: ALTER TABLE {TABLE} DISABLE ROW LEVEL SECURITY",
    "key": "has no immediate primary key of gtrid alone, so that both could be decided: give it PRIMARY KEY (gtrid)",
}

LOST_HOST_S: Final = 60
# libpq waits for a lost host as long as the system does: two hours for an answer.
LOST_HOST: Final = {
    "tcp_user_timeout": LOST_HOST_S * 1000,
    "keepalives_idle": LOST_HOST_S // 2,
    "keepalives_interval": LOST_HOST_S // 6,
    "keepalives_count": 3,
}
# Belongs to the transaction that the block was entered in: whatever ends that one ends the mark, whichever statement
# began another meanwhile.
MARK: Final = "SET LOCAL metaq.block = 'open'"
_RECORD: Final = "CASE set_config('metaq.block', 'recorded', true) WHEN 'recorded' THEN %s END"
RECORDING: Final = _RECORD  # %s, and marks the transaction, until that or the statement is undone
MARKED: Final = f"CASE current_setting('metaq.block', true) WHEN 'open' THEN {_RECORD} END"  # NULL without the mark
READ_MARK: Final = "SELECT current_setting('metaq.block', true)"
RECORDED: Final = "recorded"
# One request: COMMIT is not executed once the division has failed. A session that never had the mark, as a pooler may
# lend, has NULL. Reads no table: at SERIALIZABLE that might fail.
GUARDED_COMMIT: Final = "SELECT 1 / (coalesce(current_setting('metaq.block', true), '') = 'recorded')::int; COMMIT"
LOST: Final = "the connection is lost"
INSIDE_ITS_OWN: Final = (
    "the connection is inside a block of its own transaction(), which commits after this one: put "
    "client.transaction(...) outside, and transaction() inside if you want a savepoint"
)
_SAYS: Final = {
    "40001": Says.AGAIN,  # serialization failure
    "40P01": Says.AGAIN,  # deadlock
    "23505": Says.DUPLICATE,
    "23502": Says.IS_NULL,
    "23514": Says.MADE_AGAIN,
    "42501": Says.NO_RIGHT,
    "25006": Says.READ_ONLY,
    "25P01": Says.NOT_THE_TRANSACTION,
    "3B001": Says.NOT_THE_TRANSACTION,
    "25P02": Says.FAILED_BEFORE,
    "25P03": Says.NO_ANSWER,  # idle in its transaction for too long
}
# SQLSTATE classes that leave the outcome of a COMMIT unknown; every other error rolls back.
_LEAVES_OPEN: Final = ("08", "57", "58", "XX", "40003")
_NO_ANSWER: Final = (*_LEAVES_OPEN, "53", "55")  # resources, objects in use


def look_up(ask: Callable[[str], Sequence[Sequence[Any]]], schema: str | None = None) -> tuple[TableIdentity, str]:
    """Find the table in *schema*, or on the search path; return its identity and schema. *ask* returns a query's rows.

    Raises CannotEnlist (NoDecisionTable, CopiedTable).
    """
    table, identity = (_literal(name if schema is None else quoted(schema, name)) for name in (TABLE, IDENTITY))
    ((database, here, is_replica, role, fsync, schema, is_granted, flaw),) = ask(
        _FIND.format(table=table, identity=identity)
    )
    if is_replica:
        raise CannotEnlist(
            f"database {database} is a replica that is being read, and decides nothing: connect to the primary "
            f"(target_session_attrs=read-write)"
        )
    if schema is None or is_granted is None:
        raise NoDecisionTable(database)
    if not is_granted:
        raise CannotEnlist(f"role {role} may not use the decision table of {database}: {grants(role)}")
    if flaw is not None:
        raise CannotEnlist(f"{TABLE} of database {database} {_FLAWS[flaw]}")
    rows = ask(f"SELECT table_id, home, keep_s FROM {quoted(schema, IDENTITY)}")
    if not rows:
        raise NoDecisionTable(database, f"{IDENTITY} is empty")
    ((table_id, home, keep_s),) = rows
    if home not in (here, place := f"{here}/{schema}"):  # one of 0.1 names no schema
        raise CopiedTable(database, home, place)
    if fsync == "off":
        _log.warning(
            "database %s runs with fsync = off: a power cut may keep messages and lose their rows: switch it on, "
            "except for tests",
            database,
        )
    return identity_of(database, table_id, keep_s), schema


def says(sqlstate: object) -> Says | None:
    """Return the meaning of an error by its SQLSTATE; None as SQLSTATE: of the driver's own."""
    if not isinstance(sqlstate, str) or sqlstate.startswith(_NO_ANSWER):
        return Says.NO_ANSWER
    return _SAYS.get(sqlstate)


def says_of(error: Exception) -> Says | None:
    """Return the meaning of *error*, of any driver that reports SQLSTATE. The row has NULL for its brokers without the
    mark."""
    meaning = says(getattr(error, "sqlstate", None))
    has_no_mark = meaning is Says.IS_NULL and _column_of(error) == "brokers"
    return Says.NOT_THE_TRANSACTION if has_no_mark else meaning


def has_rolled_back(sqlstate: object) -> bool:
    """True if a COMMIT that was answered with an error of *sqlstate* has stored nothing for certain."""
    return isinstance(sqlstate, str) and not sqlstate.startswith(_LEAVES_OPEN)


def _column_of(error: BaseException) -> str | None:
    """Return the column that the server names: psycopg has it in `diag`, and SQLAlchemy in the error that it wraps."""
    found = (getattr(getattr(each, "diag", each), "column_name", None) for each in (error, error.__cause__))
    return next((name for name in found if name is not None), None)


def quoted(*names: str) -> str:
    """Quote *names* as one SQL identifier, the schema first."""
    return ".".join('"{}"'.format(name.replace('"', '""')) for name in names)


def _literal(text: str) -> str:
    return "'{}'".format(text.replace("'", "''"))


def grants(role: str) -> str:
    """Return the GRANT statements that *role* lacks, as text."""
    return (
        f"it needs GRANT SELECT, INSERT, UPDATE, DELETE ON {TABLE} TO {role} and GRANT SELECT, UPDATE (generation) ON "
        f"{IDENTITY} TO {role}"
    )
