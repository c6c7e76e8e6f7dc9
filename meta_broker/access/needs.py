"""Rights that each request needs: one table. Pure. A request without an entry stops the broker's start."""

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from journal.records.xid import XaKey
from meta_broker.access.principal import Principal, Right
from meta_client.protocol.requests import (
    Authenticate,
    BranchCommand,
    Count,
    Dropped,
    Fetch,
    Find,
    Get,
    MultiPut,
    OffsetQuery,
    Offsets,
    Put,
    Quit,
    Replicate,
    ResetGroup,
    Stats,
    Sync,
    TakeCheckpoint,
    TopicCommand,
    TopicVerb,
    TransactionCommand,
    TransactionVerb,
    Version,
)

EVERYTHING: Final = "*"  # as a name: only the pattern `*` covers it
# What stats tell beyond numbers and names of topics, or change.
_ADMIN_ITEMS: Final = frozenset({"config", "quotas", "reset"})


class Need(NamedTuple):
    """One of *rights* over *name*; a name of None: over anything at all."""

    rights: tuple[Right, ...]
    name: str | None

    def is_met_by(self, principal: Principal) -> bool:
        return any(principal.may(right, self.name) for right in self.rights)

    def __str__(self) -> str:
        return f"{' or '.join(self.rights)} {'anything' if self.name is None else self.name}"


Needs = tuple[Need, ...]  # all of them; none: any principal will do


def _put(put: Put | MultiPut) -> Needs:
    needed = Need((Right.PRODUCE,), put.topic)
    return (needed,) if put.key is None or not isinstance(put.key, XaKey) else (needed, *_branch(put.key))


def _branch(key: XaKey) -> Needs:
    return (Need((Right.DECIDE,), key.qualifier),)


def _read(request: Get | Fetch | OffsetQuery | ResetGroup) -> Needs:
    return Need((Right.CONSUME,), request.topic), Need((Right.GROUPS,), request.group)


def _transaction(command: TransactionCommand) -> Needs:
    if isinstance(command.key, XaKey):
        return _branch(command.key)
    if command.verb is TransactionVerb.RECOVER:
        return (Need((Right.DECIDE,), command.qualifier or EVERYTHING),)
    return (Need((Right.PRODUCE,), None),)  # a local one: dies with its connection; each put is judged by itself


def _topic(command: TopicCommand) -> Needs:
    if command.verb is TopicVerb.SHOW:
        return (Need((Right.PRODUCE, Right.CONSUME, Right.ADMIN), command.topic),)
    return (Need((Right.ADMIN,), command.topic),)


def _by_hand(command: BranchCommand) -> Needs:
    return (Need((Right.DECIDE,), EVERYTHING),) if command.key is None else _branch(command.key)


def _topic_read(request: Offsets | Find | Count) -> Needs:
    return (Need((Right.CONSUME,), request.topic),)


def _stats(stats: Stats) -> Needs:
    return (Need((Right.ADMIN,), None),) if stats.item in _ADMIN_ITEMS else ()


NEEDS: Final[Mapping[type, Callable[[Any], Needs]]] = {
    Put: _put,
    MultiPut: _put,
    Get: _read,
    Fetch: _read,
    OffsetQuery: _read,
    Offsets: _topic_read,
    Find: _topic_read,
    Count: _topic_read,
    ResetGroup: _read,
    TransactionCommand: _transaction,
    TopicCommand: _topic,
    BranchCommand: _by_hand,
    TakeCheckpoint: lambda _: (Need((Right.ADMIN,), None),),
    Stats: _stats,
    Replicate: lambda _: (Need((Right.REPLICATE,), None),),
    Sync: lambda _: (Need((Right.REPLICATE,), None),),
    Dropped: lambda _: (),
}
OPEN: Final = frozenset({Version, Quit, Authenticate})  # to everybody: heartbeats, and the login itself
