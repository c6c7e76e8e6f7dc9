"""What only a master does: messages in, branches, decisions about topics."""

from collections.abc import Callable
from typing import Any, Final, Protocol, get_args

from journal.states import XaCode
from meta_broker.processors.branch import BranchProcessor
from meta_broker.processors.context import Context, Peer
from meta_broker.processors.put import PutProcessor
from meta_broker.processors.topic import TopicProcessor
from meta_broker.processors.transaction import TransactionProcessor
from meta_client.protocol.encoder import encode_result
from meta_client.protocol.requests import BranchCommand, MultiPut, Put, Sync, TopicCommand, Transaction, TransactionVerb
from meta_client.protocol.status import Status
from meta_client.protocol.xa import format_xa_failure

Write = Put | MultiPut | Sync | Transaction | TopicCommand | BranchCommand


class Writes(Protocol):
    """Who answers them. Loop thread only."""

    def handle(self, request: Write, peer: Peer) -> None:
        """Answer *request*, now or at the fence. Raises StorageFailed once the journal has stopped."""

    def expire(self) -> bool:
        """As TransactionProcessor.expire."""

    def peer_gone(self, peer: Peer) -> None:
        """A connection ended. Raises StorageFailed once the journal has stopped."""


class MasterWrites:
    """A master's."""

    def __init__(self, context: Context, topic_decided: Callable[[str], None]) -> None:
        put = PutProcessor(context).handle
        transactions = TransactionProcessor(context)
        self._space = context.store.space
        self.expire = transactions.expire
        self.peer_gone = transactions.peer_gone
        self._handlers: Final[dict[type[Write], Callable[[Any, Peer], None]]] = {
            Put: put,
            MultiPut: put,
            Transaction: transactions.handle,
            TopicCommand: TopicProcessor(context, topic_decided).handle,
            BranchCommand: BranchProcessor(context).handle,
            Sync: _sync,
        }
        assert self._handlers.keys() == set(get_args(Write)), "every write has a processor"

    def handle(self, request: Write, peer: Peer) -> None:
        # Puts say more themselves; everything else goes on while there is room in what is kept for it.
        is_put = isinstance(request, Put | MultiPut | Sync)
        if not is_put and (why := self._space.why_at_end) and not changes_nothing(request):
            peer.send(failed(request, why))
            return
        self._handlers[type(request)](request, peer)


def _sync(request: Sync, peer: Peer) -> None:
    text = b"this broker is no synchronous slave of the 1.4 kind"
    peer.send(encode_result(Status.UNAVAILABLE, text, request.opaque))


def changes_nothing(request: Write) -> bool:
    """Asks only, or says what has no answer."""
    return isinstance(request, Transaction) and request.verb in (
        TransactionVerb.END,
        TransactionVerb.STATUS,
        TransactionVerb.RECOVER,
    )


def failed(request: Write, reason: str, place: str = "") -> bytes:
    """The answer that tells *reason*; *place*, of a put: the 200 that it would have had."""
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
