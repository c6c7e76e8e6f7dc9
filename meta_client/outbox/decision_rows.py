"""Reads of the decision table by a relay, in SQLAlchemy Core."""

from typing import Final

from meta_client.outbox.relay_state import BatchBranch
from meta_client.sql.core import Connection, bindparam, known_column, known_table, select
from meta_client.transactions.generation import check_noted
from meta_client.transactions.names import TableName
from meta_client.transactions.table import ANCHOR, IDENTITY, TABLE, RowDecision, parse_brokers
from zk.session.session import ZooKeeperSession

_ROW: Final = known_table(TABLE, *map(known_column, ("gtrid", "outcome", "brokers"))).c
_IDENTITY: Final = known_table(IDENTITY, *map(known_column, ("table_id", "generation"))).c
_DECIDED: Final = select(_ROW.gtrid, _ROW.outcome, _ROW.brokers).where(_ROW.gtrid.in_([bindparam("gtrid"), ANCHOR]))
_TABLE_ID: Final = select(_IDENTITY.table_id)
_GENERATION: Final = select(_IDENTITY.generation).where(select(_ROW.gtrid).where(_ROW.gtrid == ANCHOR).exists())


def is_unconfirmed(connection: Connection, branch: BatchBranch) -> bool:
    """Return whether its broker may not have committed *branch*, which the relay's row names, so that it is decided.
    True of a decision table that lost its rows: a missing one does not tell."""
    found = {row.gtrid: row for row in connection.execute(_DECIDED, {"gtrid": branch.gtrid})}
    if (row := found.get(branch.gtrid)) is None:
        return ANCHOR not in found
    return row.outcome == RowDecision.COMMIT.value and branch.broker_id in (parse_brokers(row.brokers) or ())


def check_generation(connection: Connection, session: ZooKeeperSession) -> None:
    """Check that the decision table is the newest; ends the transaction. Raises RestoredTable, Unreachable; ValueError
    for a damaged name."""
    name = TableName(str(connection.scalar(_TABLE_ID)))
    connection.rollback()  # a snapshot from before ZooKeeper is read would show a table that is too old
    check_noted(session, name, lambda: int(connection.scalar(_GENERATION) or 0))
