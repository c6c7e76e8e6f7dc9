"""The kinds of requests: the rights that each needs, its treatment by quotas, its name in metrics. Pure.

One table. A request without an entry stops the broker's start.
"""

from collections.abc import Callable, Mapping
from enum import Enum
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


class Use(Enum):
    """Treatment of a request by a quota."""

    FREE = "handled at once"
    PUT = "waits; adds messages"
    OTHER = "waits"
    READ = "waits, or is refused; has answers of any size"
    WOKEN = "a read that was let in before, and has waited for messages"


class RequestKind(NamedTuple):
    """Treatment of all requests of a class. *needs*: None if everybody may send it, before a login too; *verb*: in
    metrics, None: without times of its own, or with one for each verb of a transaction."""

    use: Use
    needs: Callable[[Any], Needs] | None
    verb: str | None = None


def _admin(_: object) -> Needs:
    return (Need((Right.ADMIN,), None),)


def _replicate(_: object) -> Needs:
    return (Need((Right.REPLICATE,), None),)


KINDS: Final[Mapping[type, RequestKind]] = {
    Put: RequestKind(Use.PUT, _put, "put"),
    MultiPut: RequestKind(Use.PUT, _put, "mput"),
    Get: RequestKind(Use.READ, _read, "get"),
    Fetch: RequestKind(Use.READ, _read, "fetch"),
    OffsetQuery: RequestKind(Use.READ, _read, "offset"),
    Offsets: RequestKind(Use.READ, _topic_read, "offsets"),
    Find: RequestKind(Use.READ, _topic_read, "find"),
    Count: RequestKind(Use.READ, _topic_read, "count"),
    ResetGroup: RequestKind(Use.READ, _read),
    TransactionCommand: RequestKind(Use.FREE, _transaction),  # apart from BEGIN, which waits
    TopicCommand: RequestKind(Use.READ, _topic, "topic"),
    BranchCommand: RequestKind(Use.FREE, _by_hand, "branch"),
    TakeCheckpoint: RequestKind(Use.READ, _admin, "checkpoint"),
    Stats: RequestKind(Use.READ, _stats, "stats"),
    Replicate: RequestKind(Use.FREE, _replicate),
    Sync: RequestKind(Use.FREE, _replicate),
    Dropped: RequestKind(Use.OTHER, lambda _: ()),
    Version: RequestKind(Use.FREE, None, "version"),  # a heartbeat
    Quit: RequestKind(Use.FREE, None),
    Authenticate: RequestKind(Use.FREE, None),  # the login itself
}
