"""Ends batches that are decided and whose query never starts again, beside drivers that may be at work.

What a driver has decided is committed. Other attempts of decided batches are rolled back, and those of a write that is
over and that nobody can repeat. A batch without a decision is left to its query. Every action may be repeated, by a
driver too. One thread.
"""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from journal.records.xid import InvalidXid, XaKey
from meta_client.batches.decision import BatchDecision, BatchOutcome, Decisions, known_queries
from meta_client.batches.names import QUALIFIER, BatchName, BranchName
from meta_client.coordinator.errors import BranchUnknown, Unreachable
from meta_client.coordinator.phase_two import commit_once
from meta_client.producer.xa_verbs import RemoteBranch, XaVerbs
from meta_client.protocol.errors import MetaError
from meta_client.transactions.brokers import BrokerBranch
from zk.errors import ZooKeeperError
from zk.session.session import ZooKeeperSession

log = logging.getLogger(__name__)


class BatchCounts(NamedTuple):
    """Totals since the start."""

    batches_finished: int = 0
    batches_failed: int = 0  # passes, of one batch each, that left something of it


class BatchFinisher:
    """Ends decided batches of all queries."""

    def __init__(
        self, session: ZooKeeperSession, verbs: XaVerbs, age_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """*age_s*: time for which a driver is left alone."""
        self.counts = BatchCounts()
        self._session = session
        self._verbs = verbs
        self._age_s = age_s
        self._clock = clock
        self._seen: dict[BatchName, float] = {}  # when first seen decided and unfinished
        self._listed: dict[tuple[int, XaKey], float] = {}  # when first seen prepared
        self._problems: dict[str, str] = {}

    def run_pass(self) -> None:
        """Finish batches that have been decided for `age_s`, and roll back attempts that they left. Raises nothing: a
        later call retries what failed."""
        with self._trying("queries"):
            queries = known_queries(self._session)
            seen, now = self._seen, self._clock()
            self._seen = {}
            for query in queries:
                with self._trying(f"query {query}"):
                    self._finish_due(query, seen, now)
            self._roll_back_others(now)

    def _finish_due(self, query: str, seen: dict[BatchName, float], now: float) -> None:
        decisions = Decisions(self._session, query)
        decision = decisions.read()
        if decision.is_done or not decision.branches:
            return
        name = BatchName(query, decision.batch)
        self._seen[name] = since = seen.get(name, now)
        if now - since < self._age_s:
            return
        for branch in decision.branches:
            commit_branch(self._verbs, name, branch)
        decisions.mark_done(decision)
        del self._seen[name]
        self.counts = self.counts._replace(batches_finished=self.counts.batches_finished + 1)
        log.info("decided batch finished gtrid=%s branches=%d", name.gtrid, len(decision.branches))

    def _roll_back_others(self, now: float) -> None:
        listing = self._verbs.list_prepared(QUALIFIER)
        for broker_id, reason in listing.failures.items():
            with self._trying(f"broker {broker_id}"):
                raise Unreachable(f"broker {broker_id}", reason)
        places = [(broker_id, key) for broker_id, keys in listing.keys.items() for key in keys]
        self._listed = {place: self._listed.get(place, now) for place in places}
        decisions: dict[str, BatchDecision] = {}
        for (broker_id, key), since in self._listed.items():
            if now - since < self._age_s or (name := BatchName.of(key.xid)) is None:
                continue
            if name.query not in decisions:
                decisions[name.query] = Decisions(self._session, name.query).read()
            branch = BranchName.of(key.xid, broker_id)
            if decisions[name.query].outcome_of(name.batch, branch) is BatchOutcome.ROLLBACK:
                with (
                    self._trying(f"branch {key}"),
                    suppress(BranchUnknown),
                ):  # of which its driver has just thought, too
                    BrokerBranch(RemoteBranch(self._verbs, key, broker_id)).rollback()
                    log.info("attempt rolled back that was not decided for xid=%s", key)

    @contextmanager
    def _trying(self, what: str) -> Iterator[None]:
        try:
            yield
        except (ZooKeeperError, MetaError, InvalidXid) as error:  # the last: of a name that nobody here has made
            self.counts = self.counts._replace(batches_failed=self.counts.batches_failed + 1)
            if self._problems.get(what) != str(error):
                self._problems[what] = str(error)
                log.warning("not finished yet what=%s reason=%s", what, error)
        else:
            self._problems.pop(what, None)


def commit_branch(verbs: XaVerbs, name: BatchName, branch: BranchName) -> None:
    """Commit a branch that its batch's decision names, unless it is committed already. Raises Unreachable,
    HeuristicOutcome."""
    key = branch.key(name)
    commit_once(BrokerBranch(RemoteBranch(verbs, key, branch.broker_id)), key.xid, "", is_repeated=True)
