"""Carries out what is decided about a batch: commits its branches, rolls back all others of it. The driver's part.

Every step may be repeated, by this driver or another one that runs the same batch again.
"""

import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from journal.records.xid import XaKey
from meta_client.batches.decision import BatchDecision, Decisions, SinkFailed
from meta_client.batches.finishing import commit_branch
from meta_client.batches.names import QUALIFIER, BatchName, BranchName
from meta_client.client import Client
from meta_client.coordinator.errors import HeuristicOutcome, Unreachable
from meta_client.net.identity import new_session_id
from meta_client.producer.xa_verbs import RemoteBranch, XaVerbs
from meta_client.protocol.errors import MetaError, XaError
from meta_client.protocol.requests import TransactionVerb
from spark_jobs.messages.options import ClusterAddress
from zk.errors import ZooKeeperError

PATIENCE_S: Final = 60.0  # with a broker that is away; then the query fails, and its next start goes on
RETRY_S: Final = 0.5

_RESTORED: Final = (
    "its checkpoint is a copy, or was restored, and its batches may hold other rows than those of the same numbers; "
    "start it with a new checkpoint, from where the rows that are written end"
)
_REPEAT: Final = "start the broker, then the query: its next run commits the rest, and nothing twice"
_DONT_REPEAT: Final = (
    "do not repeat the write, whose rows would be there twice: start the broker, and `metaq txn resolver` or "
    "`metaq txn doctor --apply` commits the rest"
)

_log = logging.getLogger(__name__)


class BatchEnd:
    """Ends batches of one query. One thread."""

    def __init__(self, client: Client, query: str, patience_s: float = PATIENCE_S) -> None:
        self.decisions = Decisions(client.session, query)
        self._query = query
        self._verbs = verbs_of(client)
        self._patience_s = patience_s

    def commit(
        self,
        name: BatchName,
        branches: tuple[BranchName, ...],
        plan: str = "",
        seen: frozenset[int | None] = frozenset(),
    ) -> None:
        """Decide for *branches*, unless the batch was decided before; then commit what is decided and roll back all
        else of it. On return the decided branches are committed at every broker. *plan*: digest of the batch's rows'
        places in the sources; blank for a write that its name identifies. *seen*: as `Decisions.decide` has it.

        Raises ZooKeeperUnavailable, with the decision unknown, or SinkFailed; then run the batch again. SinkFailed,
        too, if a later batch, or one of this number with another plan, is decided: Spark repeats the newest batch
        alone, and as it was planned, so this one is of another run's numbers.
        """
        decision = self.decisions.decide(name, branches, plan, seen)
        if decision.batch > name.batch:
            self.discard(name, keep=())
            raise SinkFailed(f"{name.gtrid} is older than batch {decision.batch}, which is decided: {_RESTORED}")
        self._finish(name, decision)
        self.discard(name, keep=decision.branches)
        if decision.plan != plan:
            raise SinkFailed(f"{name.gtrid} is decided with rows from other offsets: {_RESTORED}")

    def abort(self, name: BatchName) -> None:
        """Roll back every branch of the batch, unless it is decided: then its next run commits it. If nobody can repeat
        it, it is over: attempts that still run see that, and resolvers, which roll back what could not be reached.
        Raises ZooKeeperUnavailable, with everything left in doubt for the next run."""
        # Listed before: a branch that another run prepares from here on may be in that run's decision.
        found = self._prepared(name)
        if not self.decisions.forbid(name):
            left_to = "the next run" if name.is_repeatable else "resolvers: do not repeat it"
            _log.warning("a decided batch is left to %s gtrid=%s", left_to, name.gtrid)
            return
        if not name.is_repeatable:
            self.decisions.delete()
            found = self._prepared(name)  # what is prepared later sees that it is over
        self._roll_back(found)

    def discard(self, name: BatchName, keep: Iterable[BranchName]) -> None:
        """Roll back the prepared branches of the batch and of earlier ones, but not *keep*. What can't be reached is
        left to the next batch: without a decision it is never committed."""
        kept = {(branch.broker_id, branch.key(name)) for branch in keep}
        self._roll_back([one for one in self._prepared(name) if one not in kept])

    def _prepared(self, name: BatchName) -> list[tuple[int, XaKey]]:
        """Return the prepared branches of the batch and of earlier ones, of the brokers that answer."""
        try:
            listing = self._verbs.list_prepared(QUALIFIER)
        except (ZooKeeperError, MetaError) as error:
            _log.warning("branches are left to the next batch gtrid=%s reason=%s", name.gtrid, error)
            return []
        return [
            (broker_id, key)
            for broker_id, keys in listing.keys.items()
            for key in keys
            if (of := BatchName.of(key.xid)) is not None and of.query == self._query and of.batch <= name.batch
        ]

    def _roll_back(self, branches: Iterable[tuple[int, XaKey]]) -> None:
        for broker_id, key in branches:
            try:
                RemoteBranch(self._verbs, key, broker_id).call(TransactionVerb.ROLLBACK)
            except XaError as error:
                _log.info("rollback left to the next batch xid=%s reason=%s", key, error)

    def _finish(self, name: BatchName, decision: BatchDecision) -> None:
        if decision.is_done:
            return
        deadline = time.monotonic() + self._patience_s
        for branch in decision.branches:
            while (error := self._commit(name, branch)) is not None:
                if time.monotonic() > deadline:
                    todo = _REPEAT if name.is_repeatable else _DONT_REPEAT
                    raise SinkFailed(
                        f"{name.gtrid} is decided, and not yet committed at broker {branch.broker_id}: {error}; {todo}"
                    )
                time.sleep(RETRY_S)
        try:
            self.decisions.mark_done(decision)
        except ZooKeeperError as error:
            if name.is_repeatable:
                raise
            # No failure of the write: its caller would repeat it, and have it twice.
            _log.warning("a node is left to resolvers gtrid=%s reason=%s", name.gtrid, error)

    def _commit(self, name: BatchName, branch: BranchName) -> Unreachable | None:
        """Commit a branch; return why that is not known to have happened. Raises SinkFailed if it can't."""
        try:
            commit_branch(self._verbs, name, branch)
        except Unreachable as error:
            return error
        except HeuristicOutcome as error:
            raise SinkFailed(
                f"{name.gtrid} is decided, and its branch {branch.bqual} at broker {branch.broker_id} is not "
                f"committed: an operator ended it, or its outcome is forgotten ({error}); look with `metaq txn list` "
                f"and in the topic"
            ) from error
        return None


def verbs_of(client: Client) -> XaVerbs:
    """Return the XA verbs for a sink's branches."""
    return XaVerbs(client.topology, client.connections, new_session_id())


@contextmanager
def connected(cluster: ClusterAddress) -> Iterator[Client]:
    """Open a client of *cluster*. Raises ZooKeeperError."""
    assert cluster.zookeeper is not None
    with Client(cluster.zookeeper, cluster.root, **cluster.security._asdict()) as client:
        yield client
