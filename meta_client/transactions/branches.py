"""The branches of one transaction until they are prepared: one per broker, begun with its first message."""

import logging
import random
from collections.abc import Callable
from contextlib import ExitStack

from journal.records.xid import XaKey, Xid
from meta_client.coordinator.errors import PrepareFailed
from meta_client.errors import Destination, NoBroker, TransactionMisuse
from meta_client.metadata.topology import TopicView
from meta_client.net.deadline import Deadline
from meta_client.producer.branch_batch import BranchHandle
from meta_client.producer.outgoing import Outgoing, available_in
from meta_client.producer.results import SendResult
from meta_client.producer.transaction_owner import TransactionOwner
from meta_client.producer.xa import XaBranches
from meta_client.producer.xa_verbs import XaVerbs
from meta_client.protocol.errors import XaError
from meta_client.protocol.xa import XaCode
from zk.tree.nodes import Partition

log = logging.getLogger(__name__)


class OpenBranches:
    """Messages sent by the producers of a transaction. Used by one thread or task at a time: the last to call
    `transfer_to_caller`."""

    def __init__(self, verbs: XaVerbs, gtrid: str, timeout_s: float, key_at: Callable[[str, int], XaKey]) -> None:
        """*timeout_s*: time after which a broker rolls back a branch that is not prepared. *key_at* names the branch of
        *gtrid* at a broker."""
        self._verbs = verbs
        self.gtrid = gtrid
        self._timeout_s = timeout_s
        self._key_at = key_at
        self._owner = TransactionOwner()
        self._by_broker: dict[int, XaBranches] = {}
        self._is_open = True

    def transfer_to_caller(self) -> None:
        """Make the calling thread or task the owner."""
        self._owner.transfer_to_caller()

    def check(self) -> None:
        """Raise TransactionMisuse in any other thread or task, and after the end."""
        if not self._is_open:
            raise TransactionMisuse(f"transaction {self.gtrid} is over: begin another one")
        self._owner.check("transaction", self.gtrid)

    def send(self, message: Outgoing, deadline: Deadline) -> SendResult:
        """Send one message and wait for its broker. Raises SendFailed, XaError, TransactionMisuse."""
        return self._branch_for(message.view, message.wanted).put(message, deadline)

    def add(self, message: Outgoing) -> BranchHandle:
        """Queue one message; it is sent with its broker's PREPARE at the latest. Raises as `send`."""
        return self._branch_for(message.view, message.wanted).add(message)

    def prepare(self) -> tuple[int, ...]:
        """Prepare at every broker with a message, in parallel; return their ids.

        Raises PrepareFailed; then the transaction can only be rolled back.
        """
        self._is_open = False
        named = {broker_id: one for broker_id, one in self._by_broker.items() if one.current is not None}
        try:
            for branch in named.values():
                branch.post_prepare()
            return tuple(sorted(broker_id for broker_id, branch in named.items() if branch.prepare()))
        except XaError as error:
            raise PrepareFailed(Xid(1, self.gtrid.encode(), b""), "a broker", self._reason(error)) from error

    def rollback(self) -> None:
        """Roll back every branch. A rollback that a broker does not confirm is left to the resolver: without a row, no
        branch can commit."""
        self._is_open = False
        with ExitStack() as every_one:  # roll back at the others even if one wait is interrupted
            for broker_id, branch in self._by_broker.items():
                every_one.callback(self._roll_back, broker_id, branch)

    def _roll_back(self, broker_id: int, branch: XaBranches) -> None:
        if branch.current is None:
            return
        try:
            branch.rollback(None)
        except XaError as error:
            log.info("rollback left to a resolver gtrid=%s broker=%d reason=%s", self.gtrid, broker_id, error)

    def _reason(self, error: XaError) -> str:
        if error.code != XaCode.XAER_NOTA:
            return str(error)
        return (
            f"it has rolled the branch back, as it does with one that is not prepared within {self._timeout_s:g} s "
            f"(TransactionConfig.timeout_s), or was restarted meanwhile: do the work again, in less time"
        )

    def _branch_for(self, view: TopicView, wanted: Partition | None) -> XaBranches:
        """Return the branch for a message. A message that may go anywhere goes to a broker that already has a
        branch."""
        if wanted is not None:
            return self._by_broker.get(wanted.broker_id) or self._begin(wanted.broker_id, view)
        for broker_id, branch in self._by_broker.items():
            if view.on_broker(broker_id):
                return branch
        first = random.choice(available_in(view)).broker_id  # noqa: S311 (spreads load, keeps no secret)
        others = [broker_id for broker_id in view.by_broker if broker_id != first]
        *tried, last = first, *others
        for broker_id in tried:
            try:
                return self._begin(broker_id, view)
            except NoBroker as error:
                log.info("another broker is tried topic=%s error=%s", view.topic, error)
        return self._begin(last, view)

    def _begin(self, broker_id: int, view: TopicView) -> XaBranches:
        key = self._key_at(self.gtrid, broker_id)
        branch = XaBranches(self._verbs, key.qualifier)
        try:
            branch.begin_at(key.xid, broker_id, self._timeout_s)
        except XaError as error:
            raise NoBroker(str(error), Destination(view.topic, broker=broker_id)) from error
        self._by_broker[broker_id] = branch
        return branch
