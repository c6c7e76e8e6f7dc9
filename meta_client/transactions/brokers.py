"""Branches of one decision table at their brokers: list, commit, roll back, query. Any thread."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

from journal.records.ledger import RESTORED_BY
from journal.records.xid import Xid
from meta_client.coordinator.broker_codes import ended_as, verdict
from meta_client.coordinator.errors import BranchUnknown, HeuristicOutcome, Unreachable
from meta_client.coordinator.participants import BranchEnd
from meta_client.coordinator.phase_two import commit_once, commit_until_done
from meta_client.net.deadline import Deadline
from meta_client.net.pending_reply import PendingReply
from meta_client.producer.xa_verbs import REQUEST_TIMEOUT_S, Listing, RemoteBranch, XaVerbs
from meta_client.protocol.errors import MetaError, XaError
from meta_client.protocol.requests import BranchVerb, TransactionVerb
from meta_client.protocol.xa import XaCode
from meta_client.transactions.names import TableName
from zk.errors import ZooKeeperError


class SentCommit(NamedTuple):
    """A COMMIT awaiting its broker's reply."""

    branch: RemoteBranch
    reply: PendingReply
    deadline: Deadline


class Brokers:
    """Broker requests of a table's resolver and of its decided transactions."""

    def __init__(self, verbs: XaVerbs, name: TableName) -> None:
        self._verbs = verbs
        self._name = name

    def listed(self) -> Listing:
        """Return the branches that are prepared or were ended by hand, by broker. Raises Unreachable if no broker can
        be asked."""
        try:
            return self._verbs.list_prepared(self._name.qualifier)
        except (ZooKeeperError, MetaError) as error:
            raise Unreachable("ZooKeeper", str(error)) from error

    def ours(self, listing: Listing) -> Iterator[tuple[str, int]]:
        """Yield transaction and broker of each branch in *listing* that this table decides."""
        for broker_id, keys in listing.keys.items():
            for key in keys:
                if (gtrid := self._name.gtrid_of(key.xid, broker_id)) is not None:
                    yield gtrid, broker_id

    def send_commit(self, gtrid: str, broker_id: int) -> SentCommit:
        """Send COMMIT of a decided transaction without waiting for the reply; `confirm` does. Raises Unreachable."""
        deadline, branch = Deadline(REQUEST_TIMEOUT_S), self._at(gtrid, broker_id)
        try:
            reply = branch.post(TransactionVerb.COMMIT_TWO_PHASE, deadline, is_urgent=False)
            return SentCommit(branch, reply, deadline)
        except XaError as error:
            raise Unreachable(_name(broker_id), str(error)) from error

    def confirm(self, gtrid: str, sent: SentCommit) -> None:
        """Wait until the broker has committed. Raises Unreachable, HeuristicOutcome."""
        commit_once(BrokerBranch(sent.branch, sent), _whole(gtrid), "", is_repeated=False)

    def commit_until_done(
        self, gtrid: str, sent: SentCommit | int, limit: Deadline, wait: Callable[[float], bool]
    ) -> None:
        """Confirm *sent*, or commit at the broker that could not be reached; no attempt lasts beyond *limit*. *wait*
        sleeps the given seconds and returns True to give up. Raises HeuristicOutcome, CoordinatorClosed after that.
        """
        if isinstance(sent, int):
            branch = BrokerBranch(self._at(gtrid, sent), limit=limit)
        else:
            branch = BrokerBranch(sent.branch, sent, limit)
        commit_until_done(branch, _whole(gtrid), "", wait)

    def commit(self, gtrid: str, broker_id: int) -> bool:
        """Commit a decided branch that may have ended already; return False if it had been committed before.

        Raises Unreachable, HeuristicOutcome.
        """
        return commit_once(BrokerBranch(self._at(gtrid, broker_id)), _whole(gtrid), "", is_repeated=True)

    def rollback(self, gtrid: str, broker_id: int) -> BranchEnd:
        """Roll a branch back, prepared or not; return how it ended. COMMITTED: it was decided and committed before.

        Raises Unreachable, HeuristicOutcome.
        """
        branch = BrokerBranch(self._at(gtrid, broker_id))
        try:
            branch.rollback()
        except BranchUnknown:
            return branch.outcome(_whole(gtrid), "")
        return BranchEnd.ROLLED_BACK

    def record_finding(self, gtrid: str, broker_id: int, error: HeuristicOutcome, who: str) -> None:
        """Record *error* in the broker's ledger. Raises Unreachable."""
        verb, ended = BranchVerb.MIXED, "ended it otherwise"
        if error.ended is BranchEnd.UNKNOWN:
            verb, ended = BranchVerb.HAZARD, "can't say that it did"
        why = f"its decision table says {error.wanted}, and {error.participant} {ended}"
        evidence = f"decided: {error.wanted}; {error.participant}: {error.answer}"
        try:
            self._at(gtrid, broker_id).record_finding(verb, who, why, evidence)
        except XaError as failure:
            raise Unreachable(_name(broker_id), str(failure)) from failure

    def is_restored(self, gtrid: str, broker_id: int) -> bool:
        """True if the broker was restored with this branch in doubt, which may have ended since, its row deleted. False
        of a broker without ledger. Raises Unreachable."""
        try:
            report = self._at(gtrid, broker_id).report()
        except XaError as error:
            if error.code == XaCode.XAER_NOTA:
                return False  # it has just ended
            raise Unreachable(_name(broker_id), str(error)) from error
        finding = report.get("finding")
        return isinstance(finding, dict) and finding.get("who") == RESTORED_BY

    def traceparent(self, gtrid: str, broker_id: int) -> str | None:
        """Return the trace context of a live branch's first message; None: there is none, or the broker does not
        tell."""
        return self._at(gtrid, broker_id).traceparent()

    def _at(self, gtrid: str, broker_id: int) -> RemoteBranch:
        return RemoteBranch(self._verbs, self._name.key(gtrid, broker_id), broker_id)


class BrokerBranch:
    """One branch at one broker, as a participant of phase two."""

    def __init__(self, branch: RemoteBranch, sent: SentCommit | None = None, limit: Deadline | None = None) -> None:
        """*sent*: a COMMIT that awaits its reply. *limit*: of commits."""
        self.name = _name(branch.broker_id)
        self._branch = branch
        self._sent = sent
        self._limit = limit

    def commit(self, xid: Xid) -> None:
        del xid
        sent, self._sent = self._sent, None
        verb = TransactionVerb.COMMIT_TWO_PHASE
        try:
            if sent is None:
                timeout_s = REQUEST_TIMEOUT_S if self._limit is None else self._limit.remaining_s()
                self._branch.call(verb, min(timeout_s, REQUEST_TIMEOUT_S))
            else:
                self._branch.await_reply(verb, sent.reply, sent.deadline)
        except XaError as error:
            self._agree_or_raise(error, XaCode.XA_HEURCOM, "commit")

    def rollback(self) -> None:
        """Roll the branch back. Raises BranchUnknown, HeuristicOutcome, Unreachable."""
        try:
            self._branch.call(TransactionVerb.ROLLBACK)
        except XaError as error:
            self._agree_or_raise(error, XaCode.XA_HEURRB, "roll back")

    def outcome(self, xid: Xid, receipt: str) -> BranchEnd:
        del xid, receipt
        try:
            return ended_as(self._branch.status())
        except XaError as error:
            raise Unreachable(self.name, str(error)) from error

    def _agree_or_raise(self, error: XaError, agrees: XaCode, wanted: str) -> None:
        """Forget a branch that was ended by hand as was decided; raise any other *error*."""
        if error.code != agrees:
            raise verdict(self._branch.key.xid, self.name, wanted, error) from error
        try:
            self._branch.call(TransactionVerb.FORGET)
        except XaError as forgetting:
            raise Unreachable(self.name, str(forgetting)) from forgetting


def _name(broker_id: int) -> str:
    return f"broker {broker_id}"


def _whole(gtrid: str) -> Xid:
    return Xid(1, gtrid.encode(), b"")
