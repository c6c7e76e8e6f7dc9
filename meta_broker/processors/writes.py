"""What only a master does: messages in, branches, decisions about topics."""

from collections.abc import Callable
from typing import Protocol, assert_never

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
        self._put = PutProcessor(context).handle
        self._transactions = TransactionProcessor(context)
        self._branch = BranchProcessor(context)
        self._topic = TopicProcessor(context, topic_decided)
        self.expire = self._transactions.expire
        self.peer_gone = self._transactions.peer_gone

    def handle(self, request: Write, peer: Peer) -> None:
        match request:
            case Put() | MultiPut():
                self._put(request, peer)
            case Transaction():
                self._transactions.handle(request, peer)
            case TopicCommand():
                self._topic.handle(request, peer)
            case BranchCommand():
                self._branch.handle(request, peer)
            case Sync():
                text = b"this broker is no synchronous slave of the 1.4 kind"
                peer.send(encode_result(Status.UNAVAILABLE, text, request.opaque))
            case _:
                assert_never(request)
