"""Commits, at their brokers, of batches before: a relay may have died, or a broker been away. One thread."""

import logging
from collections.abc import Callable, Collection, Iterable, Sequence

from meta_client.client import Client
from meta_client.coordinator.errors import HeuristicOutcome, Unreachable
from meta_client.outbox.batches import BatchBranch
from meta_client.outbox.engines import PROGRAM
from meta_client.producer.xa_verbs import XaVerbs
from meta_client.transactions.brokers import Brokers
from meta_client.transactions.names import name_in

log = logging.getLogger(__name__)


class EarlierBatches:
    """Batches that were decided, and the branches of these that are known to be committed."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._confirmed = set[BatchBranch]()

    def confirm(self, branches: Iterable[BatchBranch]) -> None:
        """Note branches that their brokers have committed."""
        self._confirmed.update(branches)

    def commit(
        self,
        recorded: Sequence[BatchBranch],
        over: set[str],
        brokers_of: Callable[[str], Collection[int]],
    ) -> dict[BatchBranch, Unreachable | None]:
        """Have brokers commit *recorded*; return what is left, with the reason. Those of topics that are all *over* are
        left without one: they were tried a moment ago. *brokers_of* returns the brokers that may have to commit a
        batch, none once all have."""
        self._confirmed.intersection_update(recorded)
        left: dict[BatchBranch, Unreachable | None] = {}
        for branch in recorded:
            if branch in self._confirmed:
                continue
            if over.issuperset(branch.topics):
                left[branch] = None
                continue
            try:
                if branch.broker_id in brokers_of(branch.gtrid):
                    self._commit(branch)
            except Unreachable as error:
                left[branch] = error
        return left

    def _commit(self, branch: BatchBranch) -> None:
        name = name_in(branch.gtrid)
        assert name is not None, "as checked on reading"
        there = Brokers(XaVerbs(self._client.topology, self._client.connections, name.qualifier, PROGRAM), name)
        try:
            there.commit(branch.gtrid, branch.broker_id)
        except HeuristicOutcome as error:  # a resolver puts it on record
            log.error("a batch before was ended otherwise error=%s", error)
