"""Writes the audit log: wraps the handlers of what operators do, and tells how each request ended."""

import time
from collections.abc import Callable
from typing import Any, cast

from meta_broker.access.repeats import RepeatedLines
from meta_broker.handlers.context import Peer
from meta_client.logs.audit import NOBODY, audit
from meta_client.protocol.requests import (
    BranchCommand,
    BranchVerb,
    ResetGroup,
    Stats,
    TakeCheckpoint,
    TopicCommand,
    TopicVerb,
    TransactionCommand,
    TransactionVerb,
)


def action_of(request: Any) -> tuple[str, dict[str, object]] | None:
    """Return the action that *request* asks for, with its facts; None: it is none that is audited."""
    match request:
        case TopicCommand(verb, topic, settings) if verb is not TopicVerb.SHOW:
            return f"topic-{verb}", {"topic": topic, "settings": ",".join(map("=".join, settings)) or None}
        case BranchCommand(verb, key, who, why, evidence=evidence) if verb not in (BranchVerb.SHOW, BranchVerb.LEDGER):
            return f"branch-{verb}", {"key": key, "who": who, "why": why, "evidence": evidence or None}
        case TransactionCommand(key, verb=TransactionVerb.FORGET):
            return "branch-forget", {"key": key}
        case ResetGroup(topic, group, partition, before, after):
            facts = {"group": group, "topic": topic, "partition": partition, "before": before, "after": after}
            return "group-reset", facts | {"before": before if before >= 0 else None}
        case TakeCheckpoint():
            return "checkpoint", {}
        case Stats("reset" | "config" as item):
            return f"stats-{item}", {}
    return None


AUDITED = frozenset({TopicCommand, BranchCommand, ResetGroup, TakeCheckpoint, Stats})  # FORGET: in its own handler


def audited(handle: Callable[[Any, Peer], None]) -> Callable[[Any, Peer], None]:
    """Wrap a handler: an action is logged with the status of its answer. Lines about refusals, which cost a peer
    nothing, are limited, as those about denials are."""
    refused = RepeatedLines()

    def handle_and_tell(request: Any, peer: Peer) -> None:
        if (action := action_of(request)) is not None:
            peer = cast(Peer, _Telling(peer, *action, refused))
        handle(request, peer)

    return handle_and_tell


class _Telling:
    """A peer for one request, whose answer is logged once."""

    def __init__(self, peer: Peer, action: str, facts: dict[str, object], refused: RepeatedLines) -> None:
        self._peer = peer
        self._action = action
        self._facts = facts
        self._refused = refused

    def __getattr__(self, name: str) -> Any:
        return getattr(self._peer, name)

    def send(self, data: bytes) -> None:
        status = data.split(b" ", 2)[1].decode()
        if status == "200":
            tell(self._action, self._peer, "done", **self._facts)
        else:
            self._tell_refusal(f"refused-{status}")
        self._peer.send(data)

    def _tell_refusal(self, outcome: str) -> None:
        principal = NOBODY if self._peer.principal is None else self._peer.principal.name
        line = (self._action, outcome, *map(str, self._facts.values()))
        if (left_out := self._refused.admit(principal, line, time.monotonic())) is not None:
            tell(self._action, self._peer, outcome, **self._facts, left_out=left_out or None)


def tell(action: str, peer: Peer, outcome: str, **facts: object) -> None:
    """Write a line about *peer*."""
    audit(action, None if peer.principal is None else peer.principal.name, peer.name, outcome, **facts)
