"""What only a master does: messages in, branches, decisions about topics."""

from collections.abc import Callable
from typing import Any, Final, Protocol, get_args

from meta_broker.processors.branch import BranchProcessor
from meta_broker.processors.context import Context, Peer
from meta_broker.processors.put import PutProcessor
from meta_broker.processors.topic import TopicProcessor
from meta_broker.processors.transaction import TransactionProcessor
from meta_client.protocol.encoder import encode_result
from meta_client.protocol.requests import BranchCommand, MultiPut, Put, Sync, TopicCommand, Transaction
from meta_client.protocol.status import Status

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
        self._handlers[type(request)](request, peer)


def _sync(request: Sync, peer: Peer) -> None:
    text = b"this broker is no synchronous slave of the 1.4 kind"
    peer.send(encode_result(Status.UNAVAILABLE, text, request.opaque))
