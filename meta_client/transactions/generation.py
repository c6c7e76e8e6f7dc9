"""Notices a decision table that was restored to an earlier time: its generation is below the one in ZooKeeper.

Resolvers raise the number in the table, then note it in ZooKeeper, so that no healthy table is ever below its node.
In a restored one a missing row proves nothing: its transaction may have been decided, and acknowledged, afterwards.
"""

import time
from collections.abc import Callable
from typing import Final

from meta_client.coordinator.errors import Unreachable
from meta_client.transactions.errors import RestoredTable
from meta_client.transactions.names import TableName
from meta_client.transactions.table import DATABASE, DecisionTable
from zk.decisions.generation import TableGeneration, read_generation, write_generation
from zk.errors import ZooKeeperError
from zk.session.session import ZooKeeperSession

ADVANCE_S: Final = 10.0  # a table that is restored to a moment less than that before its end may go unnoticed


class Generations:
    """Generation of one table, compared with its node in ZooKeeper. One thread at a time."""

    def __init__(self, session: ZooKeeperSession, name: TableName, clock: Callable[[], float] = time.monotonic) -> None:
        self._session = session
        self._name = name
        self._clock = clock
        self._seen = -1
        self._since = 0.0  # when `_seen` was new

    def check(self, table: DecisionTable) -> None:
        """Do as check_newest, and raise the generation now and then."""
        noted, generation = check_newest(self._session, table)
        now = self._clock()
        if generation != self._seen:
            self._seen, self._since = generation, now
        if noted is None or now - self._since >= ADVANCE_S:
            self._advance(table, generation, generation + 1)

    def accept(self, table: DecisionTable) -> int:
        """Make *table*, restored to an earlier time, the newest again; return its generation. Raises Unreachable."""
        while True:
            generation = table.generation()
            newest = max(generation, noted_generation(self._session, self._name) or 0) + 1
            if self._advance(table, generation, newest):
                return newest

    def _advance(self, table: DecisionTable, generation: int, to: int) -> bool:
        if not table.advance(generation, to):
            return False  # another resolver has
        self._seen, self._since = to, self._clock()
        node = TableGeneration(generation=to, time_ms=time.time_ns() // 1_000_000)
        try:
            while True:
                before = read_generation(self._session, self._name.table_id)
                if before.node is not None and before.node.generation >= to:
                    return True
                if write_generation(self._session, self._name.table_id, node, before.version) is not None:
                    return True
        except ZooKeeperError as error:
            raise Unreachable("ZooKeeper", str(error)) from error


def check_newest(session: ZooKeeperSession, table: DecisionTable) -> tuple[int | None, int]:
    """Return if a missing row of *table* proves that nothing was decided: with the generation that ZooKeeper has noted,
    None if none, and the table's. Changes nothing. Raises RestoredTable, and Unreachable if that is unknown."""
    name = table.identity.name
    noted = noted_generation(session, name)  # before the table, which may be raised meanwhile
    generation = table.generation()
    if noted is not None and noted > generation:
        raise RestoredTable(
            DATABASE,
            f"decision table {name.table_id} is at generation {generation}, and ZooKeeper has noted {noted}: the "
            f"database was restored to an earlier time, or is a copy. Nothing without a row is rolled back: run "
            f"`metaq reconcile`, end what it lists, then `metaq txn init --restored`",
        )
    return noted, generation


def noted_generation(session: ZooKeeperSession, name: TableName) -> int | None:
    """Return the generation in ZooKeeper; None: no resolver has noted one. Raises Unreachable."""
    try:
        node = read_generation(session, name.table_id).node
    except ZooKeeperError as error:
        raise Unreachable("ZooKeeper", str(error)) from error
    return None if node is None else node.generation
