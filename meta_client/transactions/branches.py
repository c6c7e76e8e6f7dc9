"""The branches of one transaction while it works: one a broker, begun with the first message that goes there."""

import logging

from journal.xid import Xid
from meta_client.branch_puts import BranchHandle
from meta_client.coordinator.errors import PrepareFailed
from meta_client.deadline import Deadline
from meta_client.errors import Destination, NoBroker, TransactionMisuse
from meta_client.joined import Joined
from meta_client.protocol.errors import XaError
from meta_client.puts import Outgoing, RoundRobin
from meta_client.results import SendResult
from meta_client.topology import TopicView
from meta_client.transactions.names import xid_of
from meta_client.xa import XaBranches
from meta_client.xa_verbs import XaVerbs
from zk.nodes import Partition

log = logging.getLogger(__name__)


class Branches:
    """What producers that joined a transaction send. The thread or task alone that works on the transaction."""

    def __init__(self, verbs: XaVerbs, gtrid: str, timeout_s: float) -> None:
        """*timeout_s*: how long a broker keeps a branch that was never prepared."""
        self._verbs = verbs
        self.gtrid = gtrid
        self._timeout_s = timeout_s
        self._joined = Joined()
        self._by_broker: dict[int, XaBranches] = {}
        self._is_open = True

    def join(self) -> None:
        """The calling thread or task works on it from now on."""
        self._joined.join()

    def check(self) -> None:
        """Raises TransactionMisuse for any other thread or task, and once it is over."""
        if not self._is_open:
            raise TransactionMisuse(f"transaction {self.gtrid} is over: begin another one")
        self._joined.check(f"transaction {self.gtrid}")

    def send(
        self, message: Outgoing, view: TopicView, wanted: Partition | None, choice: RoundRobin, deadline: Deadline
    ) -> SendResult:
        """Send one message and wait for its broker. Raises SendFailed, XaError, TransactionMisuse."""
        return self._branch_for(view, wanted, choice).put(message, view, wanted, choice, deadline)

    def add(self, message: Outgoing, view: TopicView, wanted: Partition | None, choice: RoundRobin) -> BranchHandle:
        """Take one message, which travels with its broker's PREPARE at the latest. Raises as send."""
        return self._branch_for(view, wanted, choice).add(message, view, wanted, choice)

    def prepare(self) -> tuple[int, ...]:
        """Have every broker with a message promise to commit, all at the same time; their ids.

        Raises PrepareFailed; then the transaction can only be rolled back.
        """
        self._is_open = False
        named = {broker_id: one for broker_id, one in self._by_broker.items() if one.current is not None}
        try:
            for branch in named.values():
                branch.post_prepare()
            return tuple(sorted(broker_id for broker_id, branch in named.items() if branch.prepare()))
        except XaError as error:
            raise PrepareFailed(Xid(1, self.gtrid.encode(), b""), "a broker", str(error)) from error

    def rollback(self) -> None:
        """Roll back every branch. What a broker does not confirm is left to whoever resolves it: no row decides to
        commit it, and none will."""
        self._is_open = False
        for broker_id, branch in self._by_broker.items():
            if branch.current is None:
                continue
            try:
                branch.rollback(None)
            except XaError as error:
                log.info("rollback left to a resolver gtrid=%s broker=%d reason=%s", self.gtrid, broker_id, error)

    def _branch_for(self, view: TopicView, wanted: Partition | None, choice: RoundRobin) -> XaBranches:
        """The branch that takes a message: at a broker that has one already, if it may go anywhere."""
        if wanted is not None:
            return self._by_broker.get(wanted.broker_id) or self._begin(wanted.broker_id, view)
        for broker_id, branch in self._by_broker.items():
            if view.on_broker(broker_id):
                return branch
        first = choice.choose(view).broker_id
        others = [broker_id for broker_id in view.by_broker if broker_id != first]
        *tried, last = first, *others
        for broker_id in tried:
            try:
                return self._begin(broker_id, view)
            except NoBroker as error:
                log.info("another broker is tried topic=%s error=%s", view.topic, error)
        return self._begin(last, view)

    def _begin(self, broker_id: int, view: TopicView) -> XaBranches:
        branch = XaBranches(self._verbs)
        try:
            branch.begin_at(xid_of(self.gtrid, broker_id), broker_id, self._timeout_s)
        except XaError as error:
            raise NoBroker(str(error), Destination(view.topic, broker=broker_id)) from error
        self._by_broker[broker_id] = branch
        return branch
