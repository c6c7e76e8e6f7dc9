"""XA branches of a producer: begin, prepare, commit, roll back, recover (spec 2.7, 7.6; X/Open XA).

A branch belongs to a broker *id*: a verb goes to the broker's current master, so that a broker that came back at
another address, or whose slave was promoted, still finds its branches.
"""

from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext

from journal.records.xid import XaKey, Xid
from meta_client.errors import ClientXaError, SendFailed, SendUnknown
from meta_client.net.deadline import Deadline, time_limit
from meta_client.net.pending_reply import PendingReply
from meta_client.net.transport import Transport
from meta_client.producer.branch_batch import BranchHandle
from meta_client.producer.branch_pipeline import BranchPipeline
from meta_client.producer.outgoing import Outgoing
from meta_client.producer.results import SendResult
from meta_client.producer.xa_branch import BranchPhase, ProducerBranch
from meta_client.producer.xa_verbs import REQUEST_TIMEOUT_S, Listing, RemoteBranch, XaVerbs, topic_names
from meta_client.protocol.answers import BranchStatus, parse_vote
from meta_client.protocol.errors import MetaError, XaError
from meta_client.protocol.requests import TransactionVerb
from meta_client.protocol.xa import XaCode
from meta_client.tracing import TRACING
from zk.errors import ZooKeeperError

# After these codes a broker has forgotten the branch, or its outcome is final (X/Open XA, xa_commit).
_OVER = frozenset(
    {XaCode.XAER_NOTA, XaCode.XA_HEURCOM, XaCode.XA_HEURRB, XaCode.XA_HEURHAZ, XaCode.XA_RBOTHER, XaCode.XA_RBTIMEOUT}
)

# Result of a verb for a branch that the broker no longer holds, but whose outcome it remembers. None: success, by an
# earlier attempt whose answer was lost. A missing pair: XAER_NOTA stands.
_ENDED: Mapping[tuple[TransactionVerb, BranchStatus], XaCode | None] = {
    (TransactionVerb.COMMIT_ONE_PHASE, BranchStatus.COMMITTED): None,
    (TransactionVerb.COMMIT_TWO_PHASE, BranchStatus.COMMITTED): None,
    (TransactionVerb.COMMIT_TWO_PHASE, BranchStatus.ROLLED_BACK): XaCode.XA_HEURRB,
    (TransactionVerb.ROLLBACK, BranchStatus.COMMITTED): XaCode.XA_HEURCOM,
    (TransactionVerb.ROLLBACK, BranchStatus.ROLLED_BACK): None,
}

_UNTRACED = nullcontext()
NO_BROKER = (
    "no broker is registered in ZooKeeper, so nobody knows of branches: start the brokers, or give the client the "
    "ZooKeeper that they use"
)
LOST = "no answer came for one of its messages"  # reasons for rollback-only
REFUSED = "the broker refused one of its messages"
CANCELLED = "the wait for one of its messages was cancelled"


class XaBranches:
    """Branches of one producer: the current one, and those that recover() found. The producer's thread alone."""

    def __init__(self, verbs: XaVerbs, qualifier: str) -> None:
        self.current: ProducerBranch | None = None
        self._verbs = verbs
        self._qualifier = qualifier
        self._known: dict[Xid, int] = {}  # prepared branches, with the id of their broker
        self._own: set[Xid] = set()  # of them, those that were prepared here
        self._posted: tuple[PendingReply, Deadline] | None = None  # a PREPARE in flight

    def begin(self, xid: Xid, topics: Collection[str], timeout_s: float) -> None:
        """Begin *xid* on a broker that has all *topics*. The current branch, if prepared, stays in doubt.

        A metaq broker gets BEGIN with the first message or verb, which raises its error. Raises XaError: XAER_DUPID,
        XAER_PROTO for calls out of order, XAER_RMFAIL if there is no such broker; LocalProtocolError for a time limit
        that no broker takes.
        """
        if not isinstance(xid, Xid):
            raise TypeError(f"a branch is named by an Xid, not {type(xid).__name__}: Xid.of(transaction, branch)")
        names, seconds = topic_names(topics), time_limit(timeout_s)
        self._check_free(xid)
        deadline = Deadline(REQUEST_TIMEOUT_S)
        self._begin(xid, *self._verbs.find(xid, names, deadline), seconds, deadline)

    def begin_at(self, xid: Xid, broker_id: int, timeout_s: float) -> None:
        """Begin *xid* on broker *broker_id*. Raises XaError, LocalProtocolError."""
        seconds = time_limit(timeout_s)
        self._check_free(xid)
        deadline = Deadline(REQUEST_TIMEOUT_S)
        try:
            connection = self._verbs.connect(broker_id, deadline)
        except (ZooKeeperError, MetaError) as error:
            raise ClientXaError(XaCode.XAER_RMFAIL, str(error), f"BEGIN {xid}") from error
        self._begin(xid, broker_id, connection, seconds, deadline)

    def _check_free(self, xid: Xid) -> None:
        if (current := self.current) is not None and current.state is not BranchPhase.PREPARED:
            code = XaCode.XAER_DUPID if current.xid == xid else XaCode.XAER_PROTO
            raise ClientXaError(code, f"{current.xid} is still {current}: finish it first", f"BEGIN {xid}")

    def _begin(self, xid: Xid, broker_id: int, connection: Transport, seconds: int | None, deadline: Deadline) -> None:
        self.current = None
        self._posted = None
        is_ordered = self._verbs.keeps_order(connection, deadline)
        branch = RemoteBranch(self._verbs, XaKey(xid, self._qualifier), broker_id)
        pipeline = BranchPipeline(branch, seconds, is_ordered=is_ordered)
        if not is_ordered:
            pipeline.await_replies(deadline)
        elif self._verbs.is_at_quota(broker_id):
            pipeline.begin(deadline)
        self.current = ProducerBranch(branch, pipeline=pipeline)

    def put(self, message: Outgoing, deadline: Deadline) -> SendResult:
        """Send a message into the current branch. Raises SendFailed; if the message's fate is unknown then, or the wait
        is cancelled, the branch can only be rolled back. Raises XaError (XAER_PROTO) once it is prepared."""
        branch, pipeline = self._active("put")
        try:
            return pipeline.send(message, deadline)
        except SendUnknown:
            self._set_rollback_only(branch, LOST)
            raise
        except XaError as error:
            self._apply_error(branch, error)
            raise
        except BaseException as error:
            if not isinstance(error, Exception):
                self._set_rollback_only(branch, CANCELLED)
            raise  # else it was not sent, or refused: it is not in the branch

    def add(self, message: Outgoing) -> BranchHandle:
        """Add a message to the current branch without waiting; PREPARE checks its outcome. Raises NoPartition,
        NoBroker; XaError (XAER_PROTO) once the branch is prepared, or if it did not begin."""
        branch, pipeline = self._active("put")
        try:
            return pipeline.add(message)
        except XaError as error:
            self._set_rollback_only(branch, "its messages could not be sent to the broker")
            self._apply_error(branch, error)
            raise

    def post_prepare(self) -> None:
        """Send PREPARE, for `prepare` to await: several brokers then prepare at the same time. Raises XaError, as
        `prepare`."""
        branch, pipeline = self._active("PREPARE")
        deadline = Deadline(REQUEST_TIMEOUT_S)
        try:
            self._posted = pipeline.submit(TransactionVerb.PREPARE, deadline), deadline
        except XaError as error:
            self._apply_error(branch, error)
            raise

    def prepare(self) -> bool:
        """Prepare the current branch: on return it can durably commit or roll back. False: it had no messages and is
        over.

        Raises XaError. After XA_RBTIMEOUT, XAER_RMFAIL and XAER_RMERR (a message is not in the branch) it may be
        prepared or not: roll it back.
        """
        if self._posted is None:
            self.post_prepare()
        assert self._posted is not None
        (reply, deadline), self._posted = self._posted, None
        branch, pipeline = self._active("PREPARE")
        try:
            result = pipeline.wait_for(TransactionVerb.PREPARE, reply, deadline)
        except XaError as error:
            self._apply_error(branch, error)
            raise
        if isinstance(result, SendFailed):
            # The broker may have prepared without that message: never vote for an incomplete branch.
            self._set_rollback_only(branch, LOST if isinstance(result, SendUnknown) else REFUSED)
            raise ClientXaError(XaCode.XAER_RMERR, f"{result}: roll it back", f"PREPARE {branch.xid}") from result
        if parse_vote(result.message) is XaCode.XA_RDONLY:
            self.current = None
            return False
        branch.state = BranchPhase.PREPARED
        self._known[branch.xid] = branch.at.broker_id
        self._own.add(branch.xid)
        return True

    def commit(self, xid: Xid | None) -> None:
        """Commit the current branch (in one phase unless it is prepared), or the prepared branch *xid*.

        Durable at the broker on return. Raises XaError; after XAER_RMFAIL call it again: it may have happened.
        """
        branch = self._branch(xid, "COMMIT")
        if branch.state is BranchPhase.ACTIVE:
            self._await_replies(branch)
        if branch.state is BranchPhase.ROLLBACK_ONLY:
            self._roll_back(branch)
            text = f"rolled back, because {branch.reason}: do its work again"
            raise ClientXaError(XaCode.XA_RBOTHER, text, f"COMMIT {branch.xid}")
        if branch.state is BranchPhase.PREPARED:
            self._end_branch(TransactionVerb.COMMIT_TWO_PHASE, branch)
        else:
            self._end_branch(TransactionVerb.COMMIT_ONE_PHASE, branch)

    def rollback(self, xid: Xid | None) -> None:
        """Roll back the current branch, or the prepared branch *xid*. Raises XaError; after XAER_RMFAIL call it
        again."""
        self._roll_back(self._branch(xid, "ROLLBACK"))

    def traced(self, verb: str, xid: Xid | None) -> AbstractContextManager[object]:
        """Return a span for *verb*, if this process makes spans: `recover`, in the trace of its first message, if the
        branch was prepared elsewhere. Raises XaError if no such branch is found."""
        hooks, current = TRACING.hooks, self.current
        if hooks is None or (xid is None and current is None):
            return _UNTRACED
        if xid is None or xid in self._own or (current is not None and xid == current.xid):
            name = current.xid if xid is None and current is not None else xid
            assert name is not None
            return hooks.branch_verb(verb, XaKey(name, self._qualifier))
        found = self._found(xid, verb)
        return hooks.recovering(found.at.key, found.at.traceparent())

    def forget(self, xid: Xid) -> None:
        """Have the broker forget the heuristic outcome of *xid*, which recover() listed. Raises XaError."""
        self._end_branch(TransactionVerb.FORGET, self._found(xid, "FORGET"))

    def recover(self) -> list[Xid]:
        """Return every prepared branch under this producer's qualifier, on all brokers.

        Raises XaError (XAER_RMFAIL) if one broker did not answer, or none is registered: an incomplete list would read
        as "not prepared".
        """
        listing = self.list_prepared("RECOVER")
        if reasons := _gaps(listing):
            raise ClientXaError(XaCode.XAER_RMFAIL, "; ".join(reasons), "RECOVER")
        return [key.xid for keys in listing.keys.values() for key in keys]

    def list_prepared(self, what: str) -> Listing:
        """List prepared branches by broker, and remember the broker of each. Raises XaError if ZooKeeper is away."""
        try:
            listing = self._verbs.list_prepared(self._qualifier)
        except (ZooKeeperError, MetaError) as error:
            raise ClientXaError(XaCode.XAER_RMFAIL, str(error), what) from error
        for broker_id, keys in listing.keys.items():
            self._known.update((key.xid, broker_id) for key in keys)
        return listing

    def _find(self, xid: Xid, what: str) -> int:
        """Return the id of the broker that holds *xid*. Raises XaError: XAER_NOTA only if every broker answered."""
        if (broker_id := self._known.get(xid)) is not None:
            return broker_id
        listing = self.list_prepared(f"{what} {xid}")
        if (broker_id := self._known.get(xid)) is not None:
            return broker_id
        if reasons := _gaps(listing):
            text = "; ".join(("no broker that answered lists it", *reasons))
            raise ClientXaError(XaCode.XAER_RMFAIL, text, f"{what} {xid}")
        text = f"no broker lists it as prepared under qualifier {self._qualifier}: it is finished, or has another one"
        raise ClientXaError(XaCode.XAER_NOTA, text, f"{what} {xid}")

    def _branch(self, xid: Xid | None, what: str) -> ProducerBranch:
        current = self.current
        if current is not None and (xid is None or xid == current.xid):
            return current
        if xid is None:
            raise ClientXaError(XaCode.XAER_PROTO, "no branch was begun: call tpc_begin first", what)
        return self._found(xid, what)

    def _found(self, xid: Xid, what: str) -> ProducerBranch:
        """Return the prepared branch *xid* of any broker. Raises XaError."""
        at = RemoteBranch(self._verbs, XaKey(xid, self._qualifier), self._find(xid, what))
        return ProducerBranch(at, BranchPhase.PREPARED)

    def _active(self, what: str) -> tuple[ProducerBranch, BranchPipeline]:
        branch = self._branch(None, what)
        if branch.state is not BranchPhase.ACTIVE:
            text = f"it is {branch}, not active: finish it first"
            raise ClientXaError(XaCode.XAER_PROTO, text, f"{what} {branch.xid}")
        assert branch.pipeline is not None
        return branch, branch.pipeline

    def _await_replies(self, branch: ProducerBranch) -> None:
        """Wait for the answers to all messages before a one-phase commit, which would leave out refused ones."""
        pipeline = branch.pipeline
        if pipeline is None or not pipeline.has_messages:
            return
        try:
            failure = pipeline.await_replies(Deadline(REQUEST_TIMEOUT_S))
        except XaError as error:
            self._apply_error(branch, error)
            raise
        if failure is not None:
            self._set_rollback_only(branch, LOST if isinstance(failure, SendUnknown) else REFUSED)

    def _roll_back(self, branch: ProducerBranch) -> None:
        pipeline = branch.pipeline
        if pipeline is not None:
            pipeline.discard()
            if not pipeline.is_known:
                self._drop(branch)
                return
        try:
            self._end_branch(TransactionVerb.ROLLBACK, branch)
        except XaError as error:
            is_gone = error.code == XaCode.XAER_NOTA and not isinstance(error, ClientXaError)
            if branch.state is not BranchPhase.ROLLBACK_ONLY or not is_gone:
                raise
            self._drop(branch)  # it never began there, or was prepared without messages: nothing to undo

    def _end_branch(self, verb: TransactionVerb, branch: ProducerBranch) -> None:
        pipeline = branch.pipeline
        try:
            if pipeline is not None and pipeline.has_unsent:  # only BEGIN: a branch without messages
                pipeline.call(verb, Deadline(REQUEST_TIMEOUT_S))
            else:
                branch.at.call(verb)
        except XaError as error:
            is_gone = error.code == XaCode.XAER_NOTA and not isinstance(error, ClientXaError)
            if is_gone and self._ended_as_wanted(verb, branch):
                self._drop(branch)
                return
            self._apply_error(branch, error)
            raise
        self._drop(branch)

    def _ended_as_wanted(self, verb: TransactionVerb, branch: ProducerBranch) -> bool:
        """Return True if the branch, which the broker no longer holds, ended as *verb* wants; False if unknown.

        Raises XaError: XA_HEURRB or XA_HEURCOM if it ended the other way, XAER_RMFAIL if the broker can't be asked.
        """
        status = branch.at.status()
        if status is None or (verb, status) not in _ENDED:
            return False
        if (code := _ENDED[verb, status]) is not None:
            self._drop(branch)
            text = f"it has been {status.value.replace('_', ' ')} before, not by this producer"
            raise ClientXaError(code, text, f"{verb} {branch.xid} on broker {branch.broker_id}")
        return True

    def status(self, xid: Xid, broker_id: int) -> BranchStatus | None:
        """Return the broker's status of *xid*; None if it has no `status`. Raises XaError (XAER_RMFAIL)."""
        return RemoteBranch(self._verbs, XaKey(xid, self._qualifier), broker_id).status()

    def _apply_error(self, branch: ProducerBranch, error: XaError) -> None:
        """Update the branch after *error*."""
        if branch.pipeline is not None and error is branch.pipeline.begin_failure:
            self._set_rollback_only(branch, "it did not begin")
        elif error.code in _OVER and not isinstance(error, ClientXaError):
            self._drop(branch)

    def _set_rollback_only(self, branch: ProducerBranch, why: str) -> None:
        branch.state, branch.reason = BranchPhase.ROLLBACK_ONLY, why

    def _drop(self, branch: ProducerBranch) -> None:
        self._known.pop(branch.xid, None)
        self._own.discard(branch.xid)
        if self.current is not None and self.current.at.key == branch.at.key:
            self.current = None


def _gaps(listing: Listing) -> list[str]:
    """Return the reasons why branches may be missing in *listing*."""
    return list(listing.failures.values()) if listing.keys or listing.failures else [NO_BROKER]
