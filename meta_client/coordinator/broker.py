"""The broker's side: a producer and its XA verbs. broker_codes says what each X/Open code means here."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import quote

from journal.records.xid import Xid
from meta_client.coordinator.broker_codes import ended_as, verdict
from meta_client.coordinator.errors import BranchUnknown, CannotEnlist, PrepareFailed, Unreachable
from meta_client.coordinator.names import BROKER, branch
from meta_client.coordinator.participants import BranchEnd
from meta_client.errors import ClientXaError, TransactionMisuse
from meta_client.producer.producer import Producer
from meta_client.producer.xa_branch import BranchPhase
from meta_client.producer.xa_verbs import Listing
from meta_client.protocol.errors import MetaError, XaError
from meta_client.protocol.xa import XaCode
from zk.errors import ZooKeeperError

log = logging.getLogger(__name__)

_MISUSED = frozenset({XaCode.XAER_PROTO, XaCode.XAER_DUPID, XaCode.XAER_INVAL})


class BrokerParticipant:
    """One producer, used by its owner's thread alone. The producer chooses the branch's broker."""

    name = "the broker"

    def __init__(
        self,
        producer: Producer,
        owns: Callable[[Xid], bool],
        topics: tuple[str, ...] = (),
        timeout_s: float = 0,
        is_in_flight: Callable[[Xid], bool] = lambda xid: False,
    ) -> None:
        self._producer = producer
        self._owns = owns
        self._topics = topics
        self._timeout_s = timeout_s
        self._is_in_flight = is_in_flight
        self._broker_id: int | None = None
        self._listing = Listing()
        self._is_unanswered = False  # a PREPARE that may still arrive

    def check(self) -> None:
        left = self._producer.tpc_branch
        if left is None:
            return
        if self._is_in_flight(branch(left.xid, b"")):
            raise TransactionMisuse(
                f"the producer is in transaction {left.xid.gtrid.decode(errors='replace')} already: end that block "
                f"first, or give this one a producer and a connection of its own"
            )
        if left.state is BranchPhase.PREPARED:
            return
        if not self._owns(left.xid):
            raise CannotEnlist(f"the producer works on branch {left.xid} already: commit it or roll it back first")
        # Retry an undelivered rollback: until it succeeds, the producer takes no new branch.
        self.rollback(left.xid)

    def begin(self, xid: Xid) -> None:
        try:
            self._producer.tpc_begin(branch(xid, BROKER), self._topics, self._timeout_s)
        except XaError as error:
            if error.code in _MISUSED:
                raise CannotEnlist(str(error)) from error
            raise Unreachable(self.name, str(error)) from error
        begun = self._producer.tpc_branch
        assert begun is not None
        self._broker_id = begun.broker_id

    def prepare(self, xid: Xid) -> bool:
        self._is_unanswered = True
        try:
            has_messages = self._producer.tpc_prepare()
        except XaError as error:
            self._is_unanswered = isinstance(error, ClientXaError)
            raise PrepareFailed(xid, self.name, str(error)) from error
        self._is_unanswered = False
        return has_messages

    def commit(self, xid: Xid) -> None:
        self._finish(xid, self._producer.tpc_commit, agrees=XaCode.XA_HEURCOM)

    def commit_one_phase(self, xid: Xid) -> None:
        self._producer.tpc_commit(branch(xid, BROKER))

    def rollback(self, xid: Xid) -> None:
        try:
            self._finish(xid, self._producer.tpc_rollback, agrees=XaCode.XA_HEURRB)
        except BranchUnknown as error:
            if self._is_unanswered:
                raise Unreachable(self.name, f"its PREPARE got no answer, and may still act: {error}") from error
            # else: it timed out, was read-only, or was rolled back before

    def outcome(self, xid: Xid, receipt: str) -> BranchEnd:
        try:
            status = self._producer.tpc_status(branch(xid, BROKER), int(receipt.partition("/")[0]))
        except XaError as error:
            raise Unreachable(self.name, str(error)) from error
        return ended_as(status)

    def resource_id(self) -> str:
        assert self._broker_id is not None, "known once begun"
        return self._place(self._broker_id)

    def receipt(self) -> str:
        return self.resource_id()

    @contextmanager
    def spare(self) -> "Iterator[BrokerParticipant]":
        yield BrokerParticipant(self._producer.twin(), self._owns)

    def prepared(self) -> list[Xid]:
        try:
            self._listing = self._producer.tpc_list()
        except (ZooKeeperError, MetaError) as error:
            raise Unreachable(self.name, str(error)) from error
        for broker_id, reason in self._listing.failures.items():
            log.warning("broker could not be asked for its branches broker=%d reason=%s", broker_id, reason)
        xids = (key.xid for keys in self._listing.keys.values() for key in keys)
        return [branch(xid, b"") for xid in xids if xid.bqual == BROKER]

    def reaches(self, resource_id: str) -> bool:
        return resource_id in map(self._place, self._listing.keys)

    def _place(self, broker_id: int) -> str:
        # A broker lists a branch only to producers of the same qualifier.
        return f"{broker_id}/{quote(self._producer.qualifier, safe='')}"

    def _finish(self, xid: Xid, verb: Callable[[Xid], None], *, agrees: XaCode) -> None:
        name = branch(xid, BROKER)
        try:
            verb(name)
        except XaError as error:
            if error.code == agrees:
                log.warning("branch had been finished by hand, as decided xid=%s answer=%s", name, error)
                self._producer.tpc_forget(name)
                return
            wanted = "commit" if agrees is XaCode.XA_HEURCOM else "roll back"
            raise verdict(name, self.name, wanted, error) from error
