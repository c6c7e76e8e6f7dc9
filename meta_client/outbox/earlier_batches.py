"""Commits, at their brokers, of batches before: a relay may have died, or a broker been away. One thread."""

import logging
import time
from collections.abc import Collection, Iterable
from typing import Final

from meta_client.client import Client
from meta_client.coordinator.errors import HeuristicOutcome
from meta_client.outbox import rows
from meta_client.outbox.decision_rows import is_unconfirmed, make_durable
from meta_client.outbox.engines import PROGRAM
from meta_client.outbox.relay_state import BatchBranch, RelayState
from meta_client.producer.xa_verbs import XaVerbs
from meta_client.sql.core import Connection
from meta_client.transactions.brokers import Brokers
from meta_client.transactions.names import TableName

log = logging.getLogger(__name__)

LEFT_S: Final = 1.0


class EarlierBatches:
    """Batches that were decided, and the branches of these that are known to be committed."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._confirmed = set[BatchBranch]()
        self._seen: dict[BatchBranch, float] = {}  # by a relay that has nothing else to do

    def confirm(self, branches: Iterable[BatchBranch]) -> None:
        """Note branches that their brokers have committed."""
        self._confirmed.update(branches)

    def left(self, recorded: Collection[BatchBranch]) -> list[BatchBranch]:
        """Return those of *recorded* that are not known to be committed; forget all others."""
        self._confirmed.intersection_update(recorded)
        return [branch for branch in recorded if branch not in self._confirmed]

    def due(self, recorded: Collection[BatchBranch], passed_over: Collection[int]) -> list[BatchBranch]:
        """Do as `left`, except of brokers that are *passed_over*."""
        return [branch for branch in self.left(recorded) if branch.broker_id not in passed_over]

    def is_left_alone(self, recorded: Collection[BatchBranch], passed_over: Collection[int]) -> bool:
        """Return whether a branch has been due for LEFT_S: the relay that is at work confirms its own sooner."""
        now = time.monotonic()
        self._seen = {branch: self._seen.get(branch, now) for branch in self.due(recorded, passed_over)}
        return any(now - since >= LEFT_S for since in self._seen.values())

    def undone(self, connection: Connection, recorded: Collection[BatchBranch]) -> list[BatchBranch]:
        """Return those of *recorded* that brokers may not have committed, by the decision table, once their decision is
        on the disk; note the others. Ends the transaction: a broker may take seconds to answer."""
        found = [branch for branch in recorded if is_unconfirmed(connection, branch)]
        if found:
            make_durable(connection)
        else:
            connection.rollback()
        self.confirm(set(recorded).difference(found))
        return found

    def commit(self, branch: BatchBranch) -> None:
        """Have its broker commit *branch*, whose relay may have died. Raises Unreachable."""
        verbs = XaVerbs(self._client.topology, self._client.connections, PROGRAM)
        there = Brokers(verbs, TableName(branch.table_id))
        try:
            there.commit(branch.gtrid, branch.broker_id)
        except HeuristicOutcome as error:  # a resolver that finds its row puts it on record
            log.error("a batch before was ended otherwise error=%s", error)
        self.confirm([branch])


def commit_recorded(client: Client, connection: Connection) -> tuple[RelayState, int]:
    """Have brokers commit what the relay's row names; return the row's state, and the number of branches that may not
    have been committed before. Raises NoOutbox (DamagedRow), Unreachable."""
    state, earlier = rows.read_state(connection), EarlierBatches(client)
    undone = earlier.undone(connection, state.batches)
    for branch in undone:
        earlier.commit(branch)
    return state, len(undone)


def adopt(client: Client, connection: Connection) -> int:
    """Let relays move what waits, though another table decided the last batch; return the number of branches that may
    not have been committed before. Commits. Raises as `commit_recorded`."""
    before, count = commit_recorded(client, connection)
    state = rows.lock(connection)
    left = tuple(branch for branch in state.batches if branch not in before.batches)
    rows.write_state(connection, RelayState(left, state.deferred), is_moved=False)
    connection.commit()
    return count
