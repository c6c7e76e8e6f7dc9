"""Requests only a master serves: puts, branches, decisions about topics."""

from collections.abc import Callable
from typing import Any, Final, Protocol, get_args

from journal.records.states import XaCode
from meta_broker.handlers.branch import BranchHandler
from meta_broker.handlers.context import Context, Peer
from meta_broker.handlers.put import PutHandler
from meta_broker.handlers.topic import TopicHandler
from meta_broker.handlers.transaction import TransactionHandler
from meta_client.protocol.encoder import encode_result
from meta_client.protocol.requests import BranchCommand, MultiPut, Put, Sync, TopicCommand, Transaction, TransactionVerb
from meta_client.protocol.status import Status
from meta_client.protocol.xa import format_xa_failure

Write = Put | MultiPut | Sync | Transaction | TopicCommand | BranchCommand


class Writes(Protocol):
    """Handler of these requests. Loop thread only."""

    def handle(self, request: Write, peer: Peer) -> None:
        """Answer *request*, now or at the high watermark. Raises StorageFailed once the journal has stopped."""

    def expire(self) -> bool:
        """Roll back expired branches, as TransactionHandler.expire."""

    def peer_closed(self, peer: Peer) -> None:
        """Clean up after a closed connection. Raises StorageFailed once the journal has stopped."""


class MasterWrites:
    """Implements Writes for a master."""

    def __init__(self, context: Context, topic_decided: Callable[[str], None]) -> None:
        put = PutHandler(context).handle
        transactions = TransactionHandler(context)
        self._space = context.store.space
        self.expire = transactions.expire
        self.peer_closed = transactions.peer_closed
        self._handlers: Final[dict[type[Write], Callable[[Any, Peer], None]]] = {
            Put: put,
            MultiPut: put,
            Transaction: transactions.handle,
            TopicCommand: TopicHandler(context, topic_decided).handle,
            BranchCommand: BranchHandler(context).handle,
            Sync: _sync,
        }
        assert self._handlers.keys() == set(get_args(Write)), "every write has a handler"

    def handle(self, request: Write, peer: Peer) -> None:
        # Puts report a full disk themselves; everything else may use the reserve.
        is_put = isinstance(request, Put | MultiPut | Sync)
        if not is_put and (why := self._space.why_at_end) and not changes_nothing(request):
            peer.send(failed(request, why))
            return
        self._handlers[type(request)](request, peer)


def _sync(request: Sync, peer: Peer) -> None:
    text = b"this broker is no synchronous slave of the 1.4 kind"
    peer.send(encode_result(Status.UNAVAILABLE, text, request.opaque))


def changes_nothing(request: Write) -> bool:
    """Return whether *request* only reads, or has no answer."""
    return isinstance(request, Transaction) and request.verb in (
        TransactionVerb.END,
        TransactionVerb.STATUS,
        TransactionVerb.RECOVER,
    )


def failed(request: Write, reason: str, place: str = "") -> bytes:
    """Return the error reply with *reason*; *place*, of a put: the text of the 200 it would have had."""
    match request:
        case Put() | MultiPut():
            where = f"[partition '{request.topic}-{request.partition}']"
            words = place.split(" ")
            offset = f" at offset {words[2]}" if len(words) == 3 else ""
            text = f"put to {where}{offset}: {reason}"
        case Transaction():
            text = format_xa_failure(XaCode.XAER_RMFAIL, f"{request.verb.value} of {request.key or 'null'}: {reason}")
        case _:
            text = reason
    return encode_result(Status.INTERNAL_ERROR, text.encode(), request.opaque)
