"""The side of coordinators: decisions in their logs, and what the database says of the transactions named there.

Logs are read before the journals and after them. What was decided before must be prepared there; what came later
explains what they have committed since.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import psycopg
import pyarrow as pa

from journal.errors import StorageFailed
from journal.records.xid import Xid
from meta_client.coordinator.decision_log import read_decisions
from meta_client.coordinator.errors import CannotEnlist, Unreachable
from meta_client.coordinator.participants import BranchEnd
from meta_client.coordinator.postgres import PostgresParticipant
from meta_client.coordinator.receipts import Receipts
from meta_client.transactions.table import parse_brokers
from spark_jobs.certificate.database import DatabaseProblem, DecisionRow

_BROKER: Final = re.compile("[0-9]{1,10}")  # as in decision rows
# What the database says of a transaction, as in column `database` (classes.py); of any other end it knows nothing.
SAYS: Final[Mapping[BranchEnd, str]] = {
    BranchEnd.COMMITTED: "committed",
    BranchEnd.ROLLED_BACK: "rolled back",
    BranchEnd.NOT_ENDED: "prepared",
}


class CoordinatedDecision(NamedTuple):
    """One transaction, as a log and the database know it. *outcome*: commit, or None if the log has none. *named*:
    the broker, None if it can't be read. *database*: its own word, None if it knows nothing. *is_early*: known before
    the journals were read."""

    gtrid: bytes
    outcome: str | None
    named: tuple[int, ...] | None
    database: str | None
    is_early: bool


class Coordinated(NamedTuple):
    """Transactions of all logs. *elsewhere*: gtrids of decisions about another database, with its id."""

    decisions: list[CoordinatedDecision]
    elsewhere: dict[bytes, str]


class CoordinatorLogs:
    """The decision logs in *directories*."""

    def __init__(self, directories: Sequence[Path]) -> None:
        """Read the logs. Raises ForeignLog, JournalError; StorageFailed for two copies of one."""
        self._logs = {directory: read_decisions(directory) for directory in directories}
        self.prefixes = tuple(log.name.prefix for log in self._logs.values())  # of the gtrids that these logs decide
        self._partial: set[bytes] = set()
        self._decided: dict[Xid, str] = {}
        self._early: set[Xid] | None = None  # known to the first `read`
        if len(set(self.prefixes)) < len(directories):
            raise StorageFailed("two directories are of one coordinator's log: name one of them")

    @property
    def partial(self) -> tuple[bytes, ...]:
        """Return those of logs that may have had other decisions, too: they dropped some, or are copies."""
        return tuple(sorted(self._partial))

    def read(self, url: str) -> Coordinated:
        """Read the logs, and ask the database of *url* for each transaction that they have ever named. Raises
        DatabaseProblem, JournalError."""
        if not self._logs:
            return Coordinated([], {})
        self._logs = {directory: read_decisions(directory) for directory in self._logs}
        for log in self._logs.values():
            self._decided |= {**log.finished, **log.unfinished}
            if log.start > 0 or log.is_copy:
                self._partial.add(log.name.prefix)
        try:
            with psycopg.connect(url, application_name="metaq certify") as connection:
                return self._read_database(PostgresParticipant(connection))
        except (psycopg.Error, CannotEnlist, Unreachable) as error:
            raise DatabaseProblem(str(error).strip().splitlines()[0]) from error

    def facts(self) -> list[dict[str, Any]]:
        """Return each log as a certificate names it."""
        return [
            {
                "coordinator": log.name.label,
                "directory": str(directory),
                "first_lsn": log.start,
                "end_lsn": log.end,
                "decided": len(log.unfinished) + len(log.finished),
                "unfinished": len(log.unfinished),
                "in_use": log.is_held,
                "copy": log.is_copy,
            }
            for directory, log in self._logs.items()
        ]

    def _read_database(self, database: PostgresParticipant) -> Coordinated:
        prepared = {xid for xid in database.prepared() if xid.gtrid.startswith(self.prefixes)}
        if self._early is None:
            self._early = prepared | self._decided.keys()
        found: list[CoordinatedDecision] = []
        elsewhere: dict[bytes, str] = {}
        for xid, text in self._decided.items():
            receipts = Receipts.parse(text)
            if not database.reaches(receipts.database):
                elsewhere[xid.gtrid] = receipts.resource_ids[0]
                continue
            says = SAYS.get(database.outcome(xid, receipts.database))
            found.append(CoordinatedDecision(xid.gtrid, "commit", _broker(receipts), says, xid in self._early))
        found += [
            CoordinatedDecision(xid.gtrid, None, (), "prepared", xid in self._early)
            for xid in prepared - self._decided.keys()
        ]
        return Coordinated(found, elsewhere)


def _broker(receipts: Receipts) -> tuple[int, ...] | None:
    number = receipts.broker.partition("/")[0]
    return (int(number),) if _BROKER.fullmatch(number) else None


_SCHEMA: Final = pa.schema(
    [
        ("gtrid", pa.string()),  # in hexadecimal
        ("outcome", pa.string()),
        ("named", pa.list_(pa.field("element", pa.int64()))),  # brokers of a commit, null if they can't be read
        ("database", pa.string()),
        ("is_early", pa.bool_()),
    ]
)
_SAYS: Final = {"commit": "committed", "rollback": "rolled back"}  # a decision row is written where its rows are


def decision_table(rows: list[DecisionRow], coordinated: list[CoordinatedDecision]) -> pa.Table:
    """Return the decisions as classes.py has them."""
    found = [*_of_rows(rows), *((one.gtrid.hex(), *one[1:]) for one in coordinated)]
    columns = [[one[number] for one in found] for number in range(len(_SCHEMA))]
    return pa.Table.from_arrays(
        [pa.array(one, field.type) for one, field in zip(columns, _SCHEMA, strict=True)], schema=_SCHEMA
    )


def _of_rows(rows: list[DecisionRow]) -> Iterator[tuple[object, ...]]:
    for one in rows:
        named = parse_brokers(one.brokers) if one.outcome == "commit" else ()
        yield one.gtrid.encode().hex(), one.outcome, named, _SAYS.get(one.outcome), True
