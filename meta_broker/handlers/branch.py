"""branch: shows operators branches in doubt, and records their decisions. Extension; see PROTOCOL.md."""

import json
import logging
from typing import Final

from journal.records.heuristics import HeuristicDecision
from journal.records.ledger import Disagreement, LedgerEntry
from journal.records.states import BranchNotStarted, VerbRefused
from journal.records.xid import XaKey
from journal.state.live_branch import AppendResult
from meta_broker.access.principal import Principal, Right
from meta_broker.handlers.context import Context, Peer
from meta_broker.handlers.transaction import failure_text
from meta_broker.handlers.writes import WriteReplies
from meta_client.protocol.branch_report import (
    Report,
    decided_report,
    empty_report,
    finding_report,
    live_report,
    said_in,
)
from meta_client.protocol.encoder import encode_result
from meta_client.protocol.requests import BranchCommand, BranchVerb
from meta_client.protocol.status import Status

log = logging.getLogger(__name__)

_DECISIONS: Final = {
    BranchVerb.COMMIT: HeuristicDecision.COMMIT,
    BranchVerb.ROLLBACK: HeuristicDecision.ROLLBACK,
    BranchVerb.COMPLETE: HeuristicDecision.COMPLETE,
}
_DISAGREEMENTS: Final = {BranchVerb.MIXED: Disagreement.MIXED, BranchVerb.HAZARD: Disagreement.HAZARD}


class BranchHandler:
    """Answers branch commands. A decision is answered, and published, once it is acknowledged."""

    def __init__(self, context: Context, replies: WriteReplies) -> None:
        self._context = context
        self._replies = replies
        self._store = context.store.transactions

    def handle(self, command: BranchCommand, peer: Peer) -> None:
        context, store, key = self._context, self._store, command.key
        # On record is who is known, not what a client calls itself.
        who = command.who if peer.principal is None else peer.principal.name
        result = AppendResult(store.journal.end, [])
        if key is None:
            ledger = json.dumps([finding_report(finding) for finding in store.state.ledger])
            self._replies.send_after_all(command, peer, Status.SUCCESS, ledger.encode())
            return
        try:
            if (disagreement := _DISAGREEMENTS.get(command.verb)) is not None:
                entry = LedgerEntry(key, disagreement, who, command.why, command.evidence)
                result = AppendResult(store.record_finding(entry), [])
            elif command.verb is not BranchVerb.SHOW:
                decision = _DECISIONS[command.verb]
                result = store.end_heuristically(store.find(key), decision, who, command.why)
                context.counters.commits += decision is HeuristicDecision.COMMIT
                context.counters.rollbacks += decision is HeuristicDecision.ROLLBACK
                log.warning(
                    "branch decided by hand xid=%s decision=%s who=%s why=%s conn=%s",
                    *(key, decision.name, who, command.why, peer.name),
                )
            report = self._report(key, peer.principal)
        except VerbRefused as error:
            self._replies.send_after_all(command, peer, Status.INTERNAL_ERROR, failure_text(error).encode())
            return
        except ValueError as error:
            self._replies.send_after_all(command, peer, Status.BAD_REQUEST, str(error).encode())
            return
        report["now_ms"] = store.now_ms()
        answer = encode_result(Status.SUCCESS, json.dumps(report).encode(), command.opaque)
        self._replies.send(command, peer, result, answer)

    def _read(self, lsn: int, size: int) -> bytes:
        """Read messages of a live branch; empty if they are not written yet."""
        journal = self._store.journal
        return journal.segments.read(lsn, size) if lsn + size <= journal.acknowledged_here else b""

    def _report(self, key: XaKey, reader: Principal | None) -> Report:
        """Describe the live branch of this name; else the one an operator ended, or the one in the ledger. *reader*
        sees what is in messages of topics that it may consume; without rules everybody does.

        Raises BranchNotStarted.
        """
        finding = self._store.state.ledger.find(str(key))
        if (live := self._store.transactions.get(key)) is not None:
            if live.branch is None:
                return empty_report(str(key), origin=live.origin, began_ms=live.began_ms, timeout_ms=live.timeout_ms)
            report = live_report(
                live.branch,
                self._read,
                origin=live.origin,
                timeout_ms=live.timeout_ms,
                may_read=lambda topic: reader is None or reader.may(Right.CONSUME, topic),
            )
            return report if finding is None else report | {"finding": said_in(finding)}
        if (ended := self._store.state.heuristics.get(key)) is not None:
            return decided_report(ended)
        if finding is not None:
            return finding_report(finding)
        raise BranchNotStarted(key)
