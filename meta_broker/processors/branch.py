"""branch: what an operator looks at, and decides, of branches in doubt. Extension; see PROTOCOL.md."""

import json
import logging
from typing import Final

from journal.heuristics import HeuristicDecision
from journal.states import BranchNotStarted, XaError
from journal.transaction_store import Done
from journal.xid import XaKey
from meta_broker.processors.context import Context, Peer
from meta_broker.processors.transaction import failure_text
from meta_client.branch_report import Report, decided_report, empty_report, live_report
from meta_client.protocol.encoder import encode_result
from meta_client.protocol.requests import BranchCommand, BranchVerb
from meta_client.protocol.status import Status

log = logging.getLogger(__name__)

_DECISIONS: Final = {
    BranchVerb.COMMIT: HeuristicDecision.COMMIT,
    BranchVerb.ROLLBACK: HeuristicDecision.ROLLBACK,
    BranchVerb.COMPLETE: HeuristicDecision.COMPLETE,
}


class BranchProcessor:
    """Answers branch commands. What is decided is told of, and published, once it is acknowledged."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._store = context.store.transactions

    def handle(self, command: BranchCommand, peer: Peer) -> None:
        context, store = self._context, self._store
        done = Done(store.journal.end, [])
        try:
            if command.verb is not BranchVerb.SHOW:
                decision = _DECISIONS[command.verb]
                done = store.decide(store.find(command.key), decision, command.who, command.why)
                context.counters.commits += decision is HeuristicDecision.COMMIT
                context.counters.rollbacks += decision is HeuristicDecision.ROLLBACK
                log.warning(
                    "branch decided by hand key=%s decision=%s who=%s why=%s peer=%s",
                    *(command.key, decision.name, command.who, command.why, peer.name),
                )
            report = self._report(command.key)
        except XaError as error:
            context.answer_at_fence(peer, command.opaque, Status.INTERNAL_ERROR, failure_text(error).encode())
            return
        except ValueError as error:
            context.answer_at_fence(peer, command.opaque, Status.BAD_REQUEST, str(error).encode())
            return
        answer = encode_result(Status.SUCCESS, json.dumps(report).encode(), command.opaque)
        context.store.show(done.lsn, done.publications, peer.send, answer)

    def _read(self, lsn: int, size: int) -> bytes:
        """Messages of a live branch; nothing of those that were put, or carried, this moment and are not written."""
        journal = self._store.journal
        return journal.read(lsn, size) if lsn + size <= journal.acknowledged_here else b""

    def _report(self, key: XaKey) -> Report:
        """Of the live branch of this name; else of the one that an operator ended. Raises BranchNotStarted."""
        if (live := self._store.transactions.get(key)) is not None:
            if live.branch is None:
                return empty_report(str(key), origin=live.origin, began_ms=live.began_ms, timeout_ms=live.timeout_ms)
            return live_report(live.branch, self._read, origin=live.origin, timeout_ms=live.timeout_ms)
        if (ended := self._store.state.heuristics.get(key)) is not None:
            return decided_report(ended)
        raise BranchNotStarted(key)
