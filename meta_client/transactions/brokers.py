"""Branches of one decision table at their brokers: list, commit, roll back, query. Any thread.

Many branches are ended in flight together: their verbs leave at once, so that a broker's fsyncs are shared, and what
the answers call for (STATUS, FORGET) leaves at once, too.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Final, NamedTuple, TypeVar

from journal.records.ledger import RESTORED_BY
from journal.records.xid import Xid
from meta_client.coordinator.broker_codes import ended_as, verdict
from meta_client.coordinator.errors import BranchUnknown, HeuristicOutcome, Unreachable
from meta_client.coordinator.participants import BranchEnd
from meta_client.coordinator.phase_two import commit_once, commit_until_done
from meta_client.net.deadline import Deadline
from meta_client.net.pending_reply import PendingReply
from meta_client.producer.xa_verbs import (
    BRANCH,
    REQUEST_TIMEOUT_S,
    STATUS,
    Listing,
    RemoteBranch,
    XaVerbs,
    traceparent_in,
)
from meta_client.protocol.errors import MetaError, XaError
from meta_client.protocol.requests import BranchVerb, TransactionVerb
from meta_client.protocol.xa import XaCode
from meta_client.tracing import TRACING
from meta_client.transactions.names import TableName
from zk.errors import ZooKeeperError

BranchPlace = tuple[str, int]  # a transaction, and a broker
_Ended = TypeVar("_Ended")

# Codes of a branch that an operator ended as the verb wants.
_AGREES: Final = {TransactionVerb.COMMIT_TWO_PHASE: XaCode.XA_HEURCOM, TransactionVerb.ROLLBACK: XaCode.XA_HEURRB}
_WANTED: Final = {TransactionVerb.COMMIT_TWO_PHASE: "commit", TransactionVerb.ROLLBACK: "roll back"}


class SentCommit(NamedTuple):
    """A COMMIT awaiting its broker's reply."""

    branch: RemoteBranch
    reply: PendingReply
    deadline: Deadline


class _Sent(NamedTuple):
    """A verb that was sent, or the reason why it was not."""

    reply: PendingReply | XaError
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
        commit_once(_sent_before(sent), _whole(gtrid), "", is_repeated=False)

    def commit_until_done(
        self, gtrid: str, sent: SentCommit | int, limit: Deadline, wait: Callable[[float], bool]
    ) -> None:
        """Confirm *sent*, or commit at the broker that could not be reached; no attempt lasts beyond *limit*. *wait*
        sleeps the given seconds and returns True to give up. Raises HeuristicOutcome, CoordinatorClosed after that.
        """
        if isinstance(sent, int):
            branch = BrokerBranch(self._at(gtrid, sent), limit=limit)
        else:
            branch = _sent_before(sent, limit)
        commit_until_done(branch, _whole(gtrid), "", wait)

    def commit(self, gtrid: str, broker_id: int) -> bool:
        """Commit a decided branch that may have ended already; return False if it had been committed before.

        Raises Unreachable, HeuristicOutcome.
        """
        return _committed(BrokerBranch(self._at(gtrid, broker_id)), gtrid)

    def commit_all(
        self, places: Collection[BranchPlace]
    ) -> Mapping[BranchPlace, bool | Unreachable | HeuristicOutcome]:
        """Do as `commit` for many branches together; return the result of each, or its error."""
        return self._end_all(TransactionVerb.COMMIT_TWO_PHASE, places, _committed)

    def rollback(self, gtrid: str, broker_id: int) -> BranchEnd:
        """Roll a branch back, prepared or not; return how it ended. COMMITTED: it was decided and committed before.

        Raises Unreachable, HeuristicOutcome.
        """
        return _rolled_back(BrokerBranch(self._at(gtrid, broker_id)), gtrid)

    def rollback_all(
        self, places: Collection[BranchPlace]
    ) -> Mapping[BranchPlace, BranchEnd | Unreachable | HeuristicOutcome]:
        """Do as `rollback` for many branches together; return the result of each, or its error."""
        return self._end_all(TransactionVerb.ROLLBACK, places, _rolled_back)

    def _end_all(
        self,
        verb: TransactionVerb,
        places: Collection[BranchPlace],
        end: Callable[["BrokerBranch", str], _Ended],
    ) -> Mapping[BranchPlace, _Ended | Unreachable | HeuristicOutcome]:
        parents = self._traceparents(places) if TRACING.hooks is not None else {}
        branches = {place: BrokerBranch(self._at(*place)) for place in places}
        self._send(verb, branches.values())
        following: dict[TransactionVerb, list[BrokerBranch]] = defaultdict(list)
        for branch in branches.values():
            if (follows := branch.following(verb)) is not None:
                following[follows].append(branch)
        for follows, some in following.items():
            self._send(follows, some)
        ends: dict[BranchPlace, _Ended | Unreachable | HeuristicOutcome] = {}
        for (gtrid, broker_id), branch in branches.items():
            try:
                with self._traced(gtrid, broker_id, parents.get((gtrid, broker_id))):
                    ends[gtrid, broker_id] = end(branch, gtrid)
            except (Unreachable, HeuristicOutcome) as error:
                ends[gtrid, broker_id] = error
        return ends

    def _send(self, verb: TransactionVerb, branches: Iterable["BrokerBranch"]) -> None:
        """Send *verb* about all of *branches*, for each to await. Raises nothing."""
        by_remote = {branch.remote: branch for branch in branches}
        extension = STATUS if verb is TransactionVerb.STATUS else ""
        posted = self._verbs.post_all(by_remote, lambda remote: remote.request(verb), REQUEST_TIMEOUT_S, extension)
        deadline = Deadline(REQUEST_TIMEOUT_S)
        for remote, reply in posted.items():
            sent = reply if isinstance(reply, PendingReply) else remote.unreachable(verb, reply)
            by_remote[remote].sent[verb] = _Sent(sent, deadline)

    def _traced(self, gtrid: str, broker_id: int, traceparent: str | None) -> AbstractContextManager[object]:
        """Span in the trace of the branch's first message, if this process makes spans."""
        if TRACING.hooks is None:
            return nullcontext()
        return TRACING.hooks.recovering(self._name.key(gtrid, broker_id), traceparent)

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

    def restored(self, places: Collection[BranchPlace]) -> Mapping[BranchPlace, bool | Unreachable]:
        """Return for each branch True if its broker was restored with it in doubt: it may have ended since, its row
        deleted. False of a broker without ledger; the error of one that gives no answer."""
        found: dict[BranchPlace, bool | Unreachable] = {}
        for place, report in self._reports(places).items():
            if not isinstance(report, XaError):
                finding = report.get("finding")
                found[place] = isinstance(finding, dict) and finding.get("who") == RESTORED_BY
            elif report.code == XaCode.XAER_NOTA:
                found[place] = False  # it has just ended
            else:
                found[place] = Unreachable(_name(place[1]), str(report))
        return found

    def _traceparents(self, places: Collection[BranchPlace]) -> Mapping[BranchPlace, str | None]:
        """Return the trace contexts of live branches' first messages; None: there is none, or the broker does not
        tell."""
        reports = self._reports(places)
        return {place: None if isinstance(one, XaError) else traceparent_in(one) for place, one in reports.items()}

    def _reports(self, places: Collection[BranchPlace]) -> Mapping[BranchPlace, Mapping[str, object] | XaError]:
        """Return what brokers tell of each branch, nothing of one without that; or the error."""
        branches = {place: self._at(*place) for place in places}
        posted = self._verbs.post_all(branches.values(), RemoteBranch.report_request, REQUEST_TIMEOUT_S, BRANCH)
        deadline = Deadline(REQUEST_TIMEOUT_S)
        found: dict[BranchPlace, Mapping[str, object] | XaError] = {}
        for place, branch in branches.items():
            reply = posted.get(branch)
            try:
                if reply is not None and not isinstance(reply, PendingReply):
                    raise branch.unreachable(BranchVerb.SHOW, reply)
                found[place] = {} if reply is None else branch.await_report(reply, deadline)
            except XaError as error:
                found[place] = error
        return found

    def _at(self, gtrid: str, broker_id: int) -> RemoteBranch:
        return RemoteBranch(self._verbs, self._name.key(gtrid, broker_id), broker_id)


class BrokerBranch:
    """One branch at one broker, as a participant of phase two."""

    def __init__(self, remote: RemoteBranch, limit: Deadline | None = None) -> None:
        """*limit*: of commits."""
        self.name = _name(remote.broker_id)
        self.remote = remote
        self.sent: dict[TransactionVerb, _Sent] = {}  # that were sent before
        self._limit = limit

    def commit(self, xid: Xid) -> None:
        del xid
        self._end(
            TransactionVerb.COMMIT_TWO_PHASE, REQUEST_TIMEOUT_S if self._limit is None else self._limit.remaining_s()
        )

    def rollback(self) -> None:
        """Roll the branch back. Raises BranchUnknown, HeuristicOutcome, Unreachable."""
        self._end(TransactionVerb.ROLLBACK)

    def outcome(self, xid: Xid, receipt: str) -> BranchEnd:
        del xid, receipt
        try:
            if (sent := self.sent.pop(TransactionVerb.STATUS, None)) is None:
                return ended_as(self.remote.status())
            return ended_as(self.remote.await_status(_reply_of(sent), sent.deadline))
        except XaError as error:
            raise Unreachable(self.name, str(error)) from error

    def following(self, verb: TransactionVerb) -> TransactionVerb | None:
        """Wait for the answer to *verb*, which was sent; return the verb that `commit` or `rollback` will need next."""
        try:
            sent = self.sent[verb]
            self.remote.await_reply(verb, _reply_of(sent), sent.deadline)
        except XaError as error:
            if error.code == _AGREES[verb]:
                return TransactionVerb.FORGET
            if isinstance(self._verdict(verb, error), BranchUnknown):
                return TransactionVerb.STATUS
        return None

    def _end(self, verb: TransactionVerb, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        """Forget a branch that was ended by hand as *verb* wants; raise any other error as its verdict."""
        try:
            self._call(verb, timeout_s)
        except XaError as error:
            if error.code != _AGREES[verb]:
                raise self._verdict(verb, error) from error
            try:
                self._call(TransactionVerb.FORGET)
            except XaError as forgetting:
                raise Unreachable(self.name, str(forgetting)) from forgetting

    def _call(self, verb: TransactionVerb, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        if (sent := self.sent.pop(verb, None)) is None:
            self.remote.call(verb, min(timeout_s, REQUEST_TIMEOUT_S))
        else:
            self.remote.await_reply(verb, _reply_of(sent), sent.deadline)

    def _verdict(self, verb: TransactionVerb, error: XaError) -> BranchUnknown | HeuristicOutcome | Unreachable:
        return verdict(self.remote.key.xid, self.name, _WANTED[verb], error)


def _reply_of(sent: _Sent) -> PendingReply:
    if isinstance(sent.reply, XaError):
        raise sent.reply
    return sent.reply


def _sent_before(sent: SentCommit, limit: Deadline | None = None) -> BrokerBranch:
    branch = BrokerBranch(sent.branch, limit)
    branch.sent[TransactionVerb.COMMIT_TWO_PHASE] = _Sent(sent.reply, sent.deadline)
    return branch


def _committed(branch: BrokerBranch, gtrid: str) -> bool:
    return commit_once(branch, _whole(gtrid), "", is_repeated=True)


def _rolled_back(branch: BrokerBranch, gtrid: str) -> BranchEnd:
    try:
        branch.rollback()
    except BranchUnknown:
        return branch.outcome(_whole(gtrid), "")
    return BranchEnd.ROLLED_BACK


def _name(broker_id: int) -> str:
    return f"broker {broker_id}"


def _whole(gtrid: str) -> Xid:
    return Xid(1, gtrid.encode(), b"")
