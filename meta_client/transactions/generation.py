"""Notices a decision table that was restored to an earlier time: its generation is below the one in ZooKeeper.

Resolvers raise the number in the table, then note it in ZooKeeper, so that no healthy table is ever below its node.
In a restored one a missing row proves nothing: its transaction may have been decided, and acknowledged, afterwards. Nor
does it in one that was truncated, or dropped and made again, which lacks the row ANCHOR and so has generation 0.
"""

import time
from collections.abc import Callable
from typing import Final

from meta_client.coordinator.errors import Unreachable
from meta_client.transactions.errors import RestoredTable
from meta_client.transactions.names import TableName
from meta_client.transactions.table import TABLE, DecisionTable
from zk.decisions.generation import TableGeneration, read_generation, write_generation
from zk.errors import ZooKeeperError
from zk.session.session import ZooKeeperSession

ADVANCE_S: Final = 10.0  # a table that is restored to a moment less than that before its end may go unnoticed


class Generations:
    """Generation of one table, compared with its node in ZooKeeper. Stateless."""

    def __init__(self, session: ZooKeeperSession, name: TableName, clock: Callable[[], float] = time.time) -> None:
        """*clock*: seconds since 1970; only how often the generation is raised depends on it."""
        self._session = session
        self._name = name
        self._clock = clock

    def check(self, table: DecisionTable) -> None:
        """Do as check_newest, and raise the generation now and then."""
        noted, generation = check_newest(self._session, table)
        if noted is None or abs(self._clock() - noted.time_ms / 1000) >= ADVANCE_S:
            self._advance(table, generation, generation + 1)

    def accept(self, table: DecisionTable) -> int:
        """Make *table*, restored to an earlier time, the newest again; return its generation. Raises Unreachable."""
        table.anchor()
        while True:
            noted, generation = noted_generation(self._session, self._name), table.generation()
            newest = max(generation, 0 if noted is None else noted.generation) + 1
            if self._advance(table, generation, newest):
                return newest

    def _advance(self, table: DecisionTable, generation: int, to: int) -> bool:
        if not table.advance(generation, to):
            return False  # another resolver has
        node = TableGeneration(generation=to, time_ms=int(self._clock() * 1000))
        try:
            while True:
                before = read_generation(self._session, self._name.table_id)
                if before.node is not None and before.node.generation >= to:
                    return True
                if write_generation(self._session, self._name.table_id, node, before.version) is not None:
                    return True
        except ZooKeeperError as error:
            raise Unreachable("ZooKeeper", str(error)) from error


def check_newest(session: ZooKeeperSession, table: DecisionTable) -> tuple[TableGeneration | None, int]:
    """Return if a missing row of *table* proves that nothing was decided: with its node in ZooKeeper, if there is one,
    and its generation. Changes nothing. Raises RestoredTable, and Unreachable if that is unknown."""
    return check_noted(session, table.identity.name, table.generation)


def check_noted(
    session: ZooKeeperSession, name: TableName, read: Callable[[], int]
) -> tuple[TableGeneration | None, int]:
    """Do as check_newest, with a function that reads the generation of table *name*."""
    noted = noted_generation(session, name)  # before the table, which may be raised meanwhile
    generation = read()
    if noted is not None and noted.generation > generation:
        raise RestoredTable(
            f"decision table {name.table_id} is at generation {generation}, and ZooKeeper has noted "
            f"{noted.generation}: the database was restored to an earlier time, or is a copy, or rows of {TABLE} were "
            f"deleted. Nothing without a row is rolled back: run `metaq reconcile`, end what it lists, then "
            f"`metaq txn init --restored`"
        )
    return noted, generation


def noted_generation(session: ZooKeeperSession, name: TableName) -> TableGeneration | None:
    """Return the table's node in ZooKeeper; None: no resolver has noted anything. Raises Unreachable."""
    try:
        return read_generation(session, name.table_id).node
    except ZooKeeperError as error:
        raise Unreachable("ZooKeeper", str(error)) from error
