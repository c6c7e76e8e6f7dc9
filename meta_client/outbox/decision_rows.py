"""Reads of the decision tables by a relay, in SQLAlchemy Core."""

from collections.abc import Iterable
from typing import Final

from meta_client.coordinator.names import new_nonce
from meta_client.outbox.errors import NotAdopted
from meta_client.outbox.relay_state import BatchBranch
from meta_client.sql.core import Connection, bindparam, delete, insert, known_column, known_table, select
from meta_client.transactions.errors import NoDecisionTable
from meta_client.transactions.generation import check_noted
from meta_client.transactions.names import TableName
from meta_client.transactions.statements import identity_of
from meta_client.transactions.table import ANCHOR, IDENTITY, TABLE, RowDecision, parse_brokers
from zk.session.session import ZooKeeperSession

_TABLE: Final = known_table(TABLE, *map(known_column, ("gtrid", "outcome", "brokers")))
_ROW: Final = _TABLE.c
_IDENTITY: Final = known_table(IDENTITY, *map(known_column, ("table_id", "generation"))).c
_HAS_ANCHOR: Final = select(_ROW.gtrid).where(_ROW.gtrid == ANCHOR).exists()
_DECIDED: Final = select(_ROW.outcome, _ROW.brokers).where(_ROW.gtrid == bindparam("gtrid"))
_TABLE_ID: Final = select(_IDENTITY.table_id)
_WHOLE_TABLE_ID: Final = _TABLE_ID.where(_HAS_ANCHOR)
_WRITE: Final = insert(_TABLE).values(gtrid=bindparam("row"), outcome=RowDecision.ROLLBACK.value, brokers="")
_REMOVE: Final = delete(_TABLE).where(_ROW.gtrid == bindparam("row"))
_GENERATION: Final = select(_IDENTITY.generation).where(_HAS_ANCHOR)


def is_unconfirmed(connection: Connection, branch: BatchBranch) -> bool:
    """Return whether its broker may not have committed *branch*, which the relay's row names, so that it is decided.
    A missing row says that it has, unless the table lost its rows, or is another one than decided."""
    if (row := connection.execute(_DECIDED, {"gtrid": branch.gtrid}).first()) is None:
        return connection.scalar(_WHOLE_TABLE_ID) != branch.table_id
    return row.outcome == RowDecision.COMMIT.value and branch.broker_id in (parse_brokers(row.brokers) or ())


def make_durable(connection: Connection) -> None:
    """Put all that was read on the disk, and end the transaction: InnoDB shows a commit before it is there, and a later
    write is behind it. PostgreSQL shows what is there."""
    if connection.dialect.name != "postgresql":
        row = {"row": f"log-{new_nonce()}"}
        connection.execute(_WRITE, row)
        connection.execute(_REMOVE, row)
    connection.commit()


def check_adopted(connection: Connection, branches: Iterable[BatchBranch]) -> None:
    """Check that the decision table is the one that decides *branches*: where another one decided the last batch, what
    waits may have been moved. Raises NotAdopted, NoDecisionTable."""
    here = _name(connection).table_id
    for branch in branches:
        if branch.table_id != here:
            raise NotAdopted(branch.table_id, here)


def adoption_trouble(connection: Connection, branches: Iterable[BatchBranch]) -> str | None:
    """Return why `check_adopted` raises; None: it does not."""
    try:
        check_adopted(connection, branches)
    except (NotAdopted, NoDecisionTable) as error:
        return str(error)
    return None


def _name(connection: Connection) -> TableName:
    """Return the decision table's name. Raises NoDecisionTable."""
    if (table_id := connection.scalar(_TABLE_ID)) is None:
        raise NoDecisionTable("of the outbox", f"{IDENTITY} is empty")
    return identity_of("of the outbox", table_id, 0).name


def check_generation(connection: Connection, session: ZooKeeperSession) -> None:
    """Check that the decision table is the newest; ends the transaction. Raises RestoredTable, NoDecisionTable,
    Unreachable."""
    name = _name(connection)
    connection.rollback()  # a snapshot from before ZooKeeper is read would show a table that is too old
    check_noted(session, name, lambda: int(connection.scalar(_GENERATION) or 0))
