"""SQL of the decision table: one template, and the parts that differ by kind of database. Pure.

{table} is the quoted table name, {mark} the driver's parameter marker.
"""
# ruff: noqa: S608 - statements consist of constants and of a quoted table name

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from meta_client.transactions.table import ANCHOR, IDENTITY, TABLE

LOCK_TIMEOUT_MS: Final = 250  # wait of a resolver for a transaction that has inserted its row and not ended

_DDL: Final = """CREATE TABLE IF NOT EXISTS {table} (
    gtrid {name} PRIMARY KEY,
    outcome {name} NOT NULL CHECK (outcome IN ('commit', 'rollback')),
    brokers text NOT NULL,
    hazard text,
    decided_at {time} NOT NULL DEFAULT {now}
){storage};
CREATE TABLE IF NOT EXISTS {identity} (
    only_one integer PRIMARY KEY DEFAULT 1 CHECK (only_one = 1),
    table_id {name} NOT NULL,
    home text NOT NULL,
    keep_s integer NOT NULL CHECK (keep_s >= 60),
    generation bigint NOT NULL DEFAULT 0
){identity_storage};
{insert} {table} (gtrid, outcome, brokers)
SELECT '{anchor}', 'rollback', '' FROM (SELECT count(*) AS known FROM {identity}) AS found WHERE known = 0{otherwise};
{insert} {identity} (only_one, table_id, home, keep_s)
VALUES (1, {new_id}, {home}, {keep_s}){otherwise};
"""
_CHANGES: Final = {
    "keep": "",
    "moved": "UPDATE {identity} SET home = {home};\n",
    "copied": "DELETE FROM {table} WHERE gtrid <> '{anchor}';\n"
    "UPDATE {identity} SET home = {home}, table_id = {new_id}, generation = 0;\n",
}


@dataclass(frozen=True, slots=True)
class Statements:
    """Statements on one table; each comment lists the parameters."""

    resolve: Callable[[int], str]  # of so many gtrids; inserts a rollback row of each unless there is a row, after
    # waiting for concurrent inserts of that key
    read: str  # gtrid; its outcome
    rows: str  # GRACE_S, age in seconds, how many
    recorded: str  # gtrids from `listed`; the record of each
    kept: str  # age in seconds, how many; the same
    read_clock: str  # none; the database's clock
    old_rollbacks: str  # age in seconds, how many; their gtrids
    delete: str  # gtrids from `listed`
    delete_kept: str  # the same, except rows with a hazard
    mark: str  # hazard, gtrid
    generation: str  # the table's id, and its generation
    advance: str  # the generation to come, the present one
    anchor: str
    make_durable: Sequence[str]  # afterwards, everything read before is on disk
    listed: Callable[[Sequence[str]], object]  # converts a list of texts to a parameter
    opening: str  # begins the transaction of one statement; "": each commits alone


@dataclass(frozen=True, slots=True)
class Dialect:
    """One kind of database."""

    name: str  # column type compared byte by byte
    time: str  # timestamp type
    now: str
    ago: str  # the time {mark} seconds ago
    age_s: str  # a row's age in seconds
    clock_s: str  # its clock, in seconds since 1970
    among: str  # condition: gtrid is in {mark}, a parameter from `listed`
    is_young: str  # condition: the running transaction (and {began}, if used) is younger than {age_s} seconds
    new_id: str  # 32 hexadecimal digits
    insert: str  # with `otherwise`: around a row to skip if its key exists
    otherwise: str
    delete: str  # deletes the rows in {mark}, a parameter from `listed`; ends inside its WHERE clause
    listed: Callable[[Sequence[str]], object]
    storage: str = ""  # suffix of CREATE TABLE
    identity_storage: str = ""
    commit: str = "'commit'"  # the row's outcome, or NULL
    table_id: str = "table_id"  # of a table that decides
    inserts_by_id: bool = True  # the INSERT of a decision reads the table's id; InnoDB would lock that until COMMIT
    make_durable: Sequence[str] = ()
    opening: str = ""
    looking: str = ""  # the same for the look at the table, which may be a replica's

    def ddl(self, home: str, keep_s: int) -> str:
        """Return SQL that creates both tables if missing. *home*: an expression that identifies the database."""
        return _DDL.format(**self._words(), home=home, keep_s=int(keep_s))

    def change(self, change: str, home: str) -> str:
        """Return the SQL that `init` executes after `ddl`."""
        return _CHANGES[change].format(**self._words(), home=home)

    def insert_decision(self, prefix: str, table_id: str, gtrid: str, age_s: str, brokers: str, began: str = "") -> str:
        """Return the INSERT of a commit row in the table of that id, from values or markers in this order, except that
        *began* precedes *age_s*. *prefix*: as of `statements`.

        The outcome is NULL, which its column rejects, if the transaction is so old that its rollback row may have been
        deleted; and a text that its column rejects if the table was made again, unless the caller is to look.
        """
        outcome = f"CASE WHEN {self.is_young.format(age_s=age_s, began=began)} THEN {self.commit} END"
        if self.inserts_by_id:
            outcome = f"CASE (SELECT table_id FROM {prefix}{IDENTITY}) WHEN '{table_id}' THEN {outcome} ELSE 'none' END"
        return f"INSERT INTO {prefix}{TABLE} (gtrid, outcome, brokers)\nVALUES ({gtrid}, {outcome}, {brokers})"

    def statements(self, prefix: str, mark: str) -> Statements:
        """Return the statements for both tables with parameter marker *mark*. *prefix*: the schema, quoted, with its
        point; or nothing."""
        table, identity = f"{prefix}{TABLE}", f"{prefix}{IDENTITY}"
        words = {"table": table, "mark": mark}
        ago = self.ago.format(mark=mark)
        delete = self.delete.format(**words)
        insert_rollback, rollback = (
            f"{self.insert} {table} (gtrid, outcome, brokers) VALUES",
            f"({mark}, 'rollback', '')",
        )
        recorded = f"SELECT gtrid, outcome, brokers, hazard, {self.age_s} FROM {table}"
        return Statements(
            resolve=lambda count: f"{insert_rollback} {', '.join([rollback] * count)}{self.otherwise}",
            read=f"SELECT outcome FROM {table} WHERE gtrid = {mark}",
            rows=f"SELECT gtrid, brokers, hazard, decided_at < {ago} FROM {table}\n"
            f"WHERE outcome = 'commit' AND decided_at < {ago} ORDER BY hazard IS NOT NULL, decided_at LIMIT {mark}",
            recorded=f"{recorded} WHERE {self.among.format(mark=mark)}",
            kept=f"{recorded}\n"
            f"WHERE hazard IS NOT NULL OR (outcome = 'commit' AND decided_at < {ago})\n"
            f"ORDER BY hazard IS NULL, decided_at LIMIT {mark}",
            read_clock=f"SELECT {self.clock_s}",
            old_rollbacks=f"SELECT gtrid FROM {table}\n"
            f"WHERE outcome = 'rollback' AND hazard IS NULL AND gtrid <> '{ANCHOR}'\n"
            f"AND decided_at < {ago} LIMIT {mark}",
            delete=delete,
            delete_kept=f"{delete} AND hazard IS NULL",
            mark=f"UPDATE {table} SET hazard = {mark} WHERE gtrid = {mark}",
            generation=f"SELECT {self.table_id}, CASE WHEN EXISTS (SELECT 1 FROM {table} WHERE gtrid = '{ANCHOR}')\n"
            f"THEN generation ELSE 0 END FROM {identity}",
            advance=f"UPDATE {identity} SET generation = {mark} WHERE generation = {mark}",
            anchor=f"{insert_rollback} ('{ANCHOR}', 'rollback', ''){self.otherwise}",
            make_durable=[text.format(**words) for text in self.make_durable],
            listed=self.listed,
            opening=self.opening,
        )

    def _words(self) -> Mapping[str, str]:
        return {
            "table": TABLE,
            "identity": IDENTITY,
            "anchor": ANCHOR,
            "name": self.name,
            "time": self.time,
            "now": self.now,
            "new_id": self.new_id,
            "insert": self.insert,
            "otherwise": self.otherwise,
            "storage": self.storage,
            "identity_storage": self.identity_storage,
        }


def _as_json(gtrids: Sequence[str]) -> str:
    return msgspec.json.encode(list(gtrids)).decode()


POSTGRES: Final = Dialect(
    name="text",
    time="timestamptz",
    now="clock_timestamp()",
    ago="clock_timestamp() - make_interval(secs => {mark})",
    age_s="extract(epoch FROM clock_timestamp() - decided_at)",
    clock_s="extract(epoch FROM clock_timestamp())",
    among="gtrid = ANY({mark})",
    is_young="clock_timestamp() - transaction_timestamp() < make_interval(secs => {age_s})",
    new_id="replace(gen_random_uuid()::text, '-', '')",
    insert="INSERT INTO",
    otherwise=" ON CONFLICT DO NOTHING",
    storage=" WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000)",
    # A lost deletion costs one more query, so it need not wait for the disk.
    delete="WITH fast AS (SELECT set_config('synchronous_commit', 'off', true))\n"
    "DELETE FROM {table} USING fast WHERE gtrid = ANY({mark})",
    listed=list,
    # A decision must be on disk, so synchronous_commit is switched on for this transaction. Done within the value,
    # because a RETURNING row would be sent and read for nothing.
    commit="CASE current_setting('synchronous_commit') WHEN 'off' THEN "
    "CASE set_config('synchronous_commit', 'on', true) WHEN 'on' THEN 'commit' END ELSE 'commit' END",
    # A standby that decides with it may lack a commit that others see: its COMMIT's wait ends with the session, or at a
    # restart. A commit of our own waits for the standby, which has the row once it has that one.
    make_durable=(
        "SELECT CASE WHEN current_setting('synchronous_standby_names') <> '' "
        "THEN pg_logical_emit_message(true, 'metaq', '') END",
    ),
    # At READ COMMITTED an insert waits for a concurrent one of its key, then sees the row; commits are durable. Of the
    # transaction, not the session, which a pooler may lend to others next.
    opening="BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE; SET LOCAL synchronous_commit = on; "
    f"SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}",
    looking=f"BEGIN; SET LOCAL lock_timeout = {LOCK_TIMEOUT_MS}",
)

_SQLITE_NOW: Final = "((julianday('now') - 2440587.5) * 86400.0)"
_AMONG_JSON: Final = "gtrid IN (SELECT value FROM json_each({mark}))"
SQLITE: Final = Dialect(
    name="text",
    time="real",
    now=_SQLITE_NOW,
    ago=f"{_SQLITE_NOW} - {{mark}}",
    age_s=f"{_SQLITE_NOW} - decided_at",
    clock_s=_SQLITE_NOW,
    among=_AMONG_JSON,
    is_young=f"{_SQLITE_NOW} - {{began}} < {{age_s}}",
    new_id="lower(hex(randomblob(16)))",
    insert="INSERT INTO",
    otherwise=" ON CONFLICT DO NOTHING",
    storage=" WITHOUT ROWID",
    delete=f"DELETE FROM {{table}} WHERE {_AMONG_JSON}",
    listed=_as_json,
)

_INNODB: Final = " ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4"  # inserts of other engines are no barrier
_NAMED: Final = (
    "JSON_TABLE({mark}, '$[*]' COLUMNS (name varchar(64) CHARACTER SET ascii COLLATE ascii_bin PATH '$')) AS named"
)
MYSQL: Final = Dialect(
    name="varchar(64) CHARACTER SET ascii COLLATE ascii_bin",  # other collations take 'a' and 'A' for one key
    time="timestamp(6)",
    now="CURRENT_TIMESTAMP(6)",
    ago="CURRENT_TIMESTAMP(6) - INTERVAL {mark} SECOND",
    age_s="TIMESTAMPDIFF(MICROSECOND, decided_at, CURRENT_TIMESTAMP(6)) / 1000000",
    clock_s="UNIX_TIMESTAMP(CURRENT_TIMESTAMP(6))",
    among=f"gtrid IN (SELECT name FROM {_NAMED})",
    is_young="UNIX_TIMESTAMP() - {began} < {age_s}",
    new_id="REPLACE(UUID(), '-', '')",
    insert="INSERT IGNORE INTO",
    otherwise="",
    storage=_INNODB,
    identity_storage=_INNODB,
    # A switch-over keeps connections, and a user with all rights may write to what is a replica from then on.
    table_id="CASE WHEN @@read_only IN ('0', 'OFF') THEN table_id ELSE 'none, being read-only' END",
    inserts_by_id=False,
    # STRAIGHT_JOIN forces access by key, which IN and FORCE INDEX do not: a table scan would wait for the lock of
    # every row in flight.
    delete=f"DELETE one FROM {_NAMED} STRAIGHT_JOIN {{table}} AS one ON one.gtrid = named.name "
    "WHERE one.gtrid IS NOT NULL",
    listed=_as_json,
    # InnoDB shows a commit before it is on disk. A later write that is on disk implies that commit is too: the log is
    # sequential.
    make_durable=(
        "START TRANSACTION",
        "INSERT INTO {table} (gtrid, outcome, brokers) VALUES (CONCAT('log-', CONNECTION_ID()), 'rollback', '')",
        "DELETE FROM {table} WHERE gtrid = CONCAT('log-', CONNECTION_ID())",
        "COMMIT",
    ),
)
