"""transaction: the verbs of a branch (spec 2.3 to 2.7)."""

import logging
import time
from collections.abc import Callable
from typing import Final

from journal.errors import RecordTooLarge
from journal.records.record import RollbackReason
from journal.records.states import BranchNotStarted, BranchState, VerbRefused, XaCode
from journal.records.xid import BranchKey, LocalKey, XaKey
from journal.state.live_branch import AppendResult, LiveBranch
from meta_broker.access.accounts import Limit
from meta_broker.handlers.audited import audited, tell
from meta_broker.handlers.context import Context, Peer, yield_after
from meta_broker.handlers.writes import WriteReplies
from meta_client.logs.audit import NOBODY
from meta_client.protocol.answers import BranchStatus, format_keys
from meta_client.protocol.branch_report import DECIDED
from meta_client.protocol.encoder import encode_result
from meta_client.protocol.requests import TransactionCommand
from meta_client.protocol.requests import TransactionVerb as Verb
from meta_client.protocol.status import Status
from meta_client.protocol.xa import format_xa_failure

log = logging.getLogger(__name__)

EXPIRED_PER_TURN = 100  # branches, each with a record and a line of log: some milliseconds


class QuotaReached(Exception):
    """The peer's account may begin no further branch."""


class TransactionHandler:
    """Answers transaction commands, and rolls back branches that timed out or lost their connection."""

    def __init__(self, context: Context, replies: WriteReplies) -> None:
        self._context = context
        self._replies = replies
        self._store = context.store.transactions
        self._verbs: Final[dict[Verb, Callable[[TransactionCommand, Peer], None]]] = {
            Verb.BEGIN: self._begin,
            Verb.END: self._end_association,
            Verb.PREPARE: self._prepare,
            Verb.COMMIT_ONE_PHASE: self._commit,
            Verb.COMMIT_TWO_PHASE: self._commit,
            Verb.ROLLBACK: self._rollback,
            Verb.FORGET: audited(self._forget),
            Verb.RECOVER: self._recover,
            Verb.STATUS: self._send_status,
        }
        assert self._verbs.keys() == set(Verb), "every verb is handled"

    def handle(self, request: TransactionCommand, peer: Peer) -> None:
        try:
            self._verbs[request.verb](request, peer)
        except VerbRefused as error:
            self._replies.send_after_all(request, peer, Status.INTERNAL_ERROR, failure_text(error).encode())
        except QuotaReached as error:
            self._replies.send_after_all(request, peer, Status.TOO_MANY, str(error).encode())
        except RecordTooLarge as error:  # more partitions than fit one record: the branch is unchanged
            text = format_xa_failure(XaCode.XAER_RMERR, str(error))
            self._replies.send_after_all(request, peer, Status.INTERNAL_ERROR, text.encode())
        if isinstance(request.key, LocalKey):
            local = peer.local_transactions.get(request.key)
            if local is not None and local.is_over:
                del peer.local_transactions[request.key]

    def _end_association(self, request: TransactionCommand, peer: Peer) -> None:
        del request
        peer.end_in_flight()  # only the client's association ended

    def _prepare(self, request: TransactionCommand, peer: Peer) -> None:
        transaction = self._find(request.key, peer)
        vote, lsn = self._store.prepare(transaction)
        _tell_others(request, transaction, peer)
        self._context.timeouts.discard(transaction)
        answer = encode_result(Status.SUCCESS, b"%d" % vote, request.opaque)
        self._replies.send(request, peer, AppendResult(lsn, ()), answer, peer.pop_buffered(transaction.key))

    def _commit(self, request: TransactionCommand, peer: Peer) -> None:
        transaction = self._find(request.key, peer)
        result = self._store.commit(transaction, one_phase=request.verb is Verb.COMMIT_ONE_PHASE)
        self._context.timeouts.discard(transaction)
        self._context.counters.commits += 1
        _tell_others(request, transaction, peer)
        self._replies.send(request, peer, result, encode_result(Status.SUCCESS, b"", request.opaque))

    def _rollback(self, request: TransactionCommand, peer: Peer) -> None:
        transaction = self._find(request.key, peer)
        lsn = self._store.rollback(transaction)
        self._context.timeouts.discard(transaction)
        self._context.counters.rollbacks += 1
        _tell_others(request, transaction, peer)
        answer = encode_result(Status.SUCCESS, b"", request.opaque)
        self._replies.send(request, peer, AppendResult(lsn, ()), answer)

    def _forget(self, request: TransactionCommand, peer: Peer) -> None:
        if not isinstance(request.key, XaKey):
            raise VerbRefused(XaCode.XAER_NOTA, f"{request.key or 'null'} is not a valid xid")
        lsn = self._store.forget(request.key)
        answer = encode_result(Status.SUCCESS, b"", request.opaque)
        self._replies.send(request, peer, AppendResult(lsn, ()), answer)

    def _recover(self, request: TransactionCommand, peer: Peer) -> None:
        found = [transaction.key for transaction in self._store.recover(request.qualifier)]
        keys = format_keys([*found, *self._store.heuristics(request.qualifier)])
        self._replies.send_after_all(request, peer, Status.SUCCESS, keys)
        yield_after(peer)

    def _send_status(self, request: TransactionCommand, peer: Peer) -> None:
        status = self._status(request.key, peer)
        self._replies.send_after_all(request, peer, Status.SUCCESS, status.encode())

    def _status(self, key: BranchKey | None, peer: Peer) -> BranchStatus:
        if key is None:
            raise VerbRefused(XaCode.XAER_INVAL, "null is no transaction")
        live = self._store.transactions.get(key) if isinstance(key, XaKey) else peer.local_transactions.get(key)
        if live is not None and not live.is_over:
            return BranchStatus.PREPARED if live.state is BranchState.PREPARED else BranchStatus.ACTIVE
        if isinstance(key, XaKey) and (decided := self._store.state.heuristics.get(key)) is not None:
            return DECIDED[decided.decision]
        ended = self._store.state.outcomes.find(str(key))
        return BranchStatus.UNKNOWN if ended is None else BranchStatus(ended.outcome)

    def _begin(self, request: TransactionCommand, peer: Peer) -> None:
        key, counters = request.key, self._context.counters
        if key is None:
            raise VerbRefused(XaCode.XAER_INVAL, "null is no transaction to begin")
        seconds = min(request.timeout_seconds or 0, self._context.config.broker.transaction_timeout_seconds_max)
        live = peer.local_transactions.get(key) if isinstance(key, LocalKey) else self._store.transactions.get(key)
        if live is None or live.is_over:
            if self._context.is_stopping:
                raise VerbRefused(
                    XaCode.XAER_RMFAIL, "this broker is stopping: begin on another one, or once it is back"
                )
            if why := self._context.store.space.why_full:
                raise VerbRefused(XaCode.XAER_RMFAIL, why)
            self._check_room(key, peer)
            transaction = self._store.begin(key, seconds * 1000)
            transaction.origin = peer.name
            transaction.owner = _principal_of(peer)
            if peer.account is not None:
                transaction.on_over = peer.account.begin_branch()
            if isinstance(key, LocalKey):
                peer.local_transactions[key] = transaction
            if transaction.timeout_ms:
                self._context.timeouts.add(transaction, self._context.clock())
            counters.begins += 1
            counters.xa_begins += isinstance(key, XaKey)
        peer.buffer_reply(key, encode_result(Status.SUCCESS, b"", request.opaque))

    def _check_room(self, key: BranchKey, peer: Peer) -> None:
        if peer.account is not None and (why := peer.account.why_no_branch()):
            peer.account.refused(Limit.BRANCHES, time.monotonic(), peer.name)
            raise QuotaReached(why)
        section = self._context.config.broker
        if (alive := self._store.live_count) >= section.transactions_max:
            raise VerbRefused(
                XaCode.XAER_RMERR,
                f"{alive} transactions are alive: finish some, transactions_max is {section.transactions_max}",
            )
        mine, mine_max = peer.local_transactions, section.local_transactions_per_connection_max
        if isinstance(key, LocalKey) and len(mine) >= mine_max:
            for over in [known for known, one in mine.items() if one.is_over]:  # timed out, and not used since
                del mine[over]
            if len(mine) >= mine_max:
                raise VerbRefused(
                    XaCode.XAER_RMERR,
                    f"{len(mine)} local transactions of this connection are alive: finish some, "
                    f"local_transactions_per_connection_max is {mine_max}",
                )

    def _find(self, key: BranchKey | None, peer: Peer) -> LiveBranch:
        if isinstance(key, XaKey):
            return self._store.find(key)
        if key is None:
            raise VerbRefused(XaCode.XAER_INVAL, "null is no transaction")
        transaction = peer.local_transactions.get(key)
        if transaction is None or transaction.is_over:
            raise BranchNotStarted(key)
        return transaction

    def peer_closed(self, peer: Peer) -> None:
        """Roll back the local transactions of a closed connection; XA branches stay (spec 2.9)."""
        for transaction in peer.local_transactions.values():
            if not transaction.is_over:
                self._store.rollback(transaction, RollbackReason.DISCONNECTED)
                self._context.timeouts.discard(transaction)
                self._context.counters.rollbacks += 1
        peer.local_transactions.clear()

    def expire(self) -> bool:
        """Roll back a limited number of branches that timed out. True: more may be due.

        Raises StorageFailed once the journal has stopped.
        """
        expired = self._context.timeouts.expired(self._context.clock(), EXPIRED_PER_TURN)
        for transaction in expired:
            self._store.rollback(transaction, RollbackReason.TIMED_OUT)
            self._context.counters.rollbacks += 1
            log.info("branch timed out xid=%s timeout_ms=%d", transaction.key, transaction.timeout_ms)
        return len(expired) == EXPIRED_PER_TURN


def _principal_of(peer: Peer) -> str | None:
    return None if peer.principal is None else peer.principal.name


def _tell_others(request: TransactionCommand, transaction: LiveBranch, peer: Peer) -> None:
    """Write to the audit log that *peer* decided about a branch that, as far as is known, another principal began."""
    if peer.principal is not None and transaction.owner != peer.principal.name:
        facts = {"key": transaction.key, "began_by": transaction.owner or NOBODY}
        tell(f"branch-{request.verb.value.lower().replace('_', '-')}", peer, "done", **facts)


def failure_text(error: VerbRefused) -> str:
    """Return the text of a 500 that refuses a verb: the XAException form, except for an unknown local transaction."""
    if isinstance(error, BranchNotStarted) and isinstance(error.key, LocalKey):
        return error.text
    return format_xa_failure(error.code, error.text)
