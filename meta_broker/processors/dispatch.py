"""From a request to its processor. Exhaustive: a new request does not type-check until it has one."""

from concurrent.futures import ThreadPoolExecutor
from typing import assert_never

from meta_broker.filters.runner import Filters
from meta_broker.processors.branch import BranchProcessor
from meta_broker.processors.checkpoint import CheckpointProcessor
from meta_broker.processors.context import Context, Peer
from meta_broker.processors.fetch import FetchProcessor
from meta_broker.processors.filtering import Filtering, index_damaged
from meta_broker.processors.find import FindProcessor
from meta_broker.processors.get import GetProcessor
from meta_broker.processors.put import PutProcessor
from meta_broker.processors.reading import Reading
from meta_broker.processors.stats import StatsProcessor
from meta_broker.processors.topic import TopicProcessor
from meta_broker.processors.transaction import TransactionProcessor
from meta_broker.store.index_file import IndexDamaged
from meta_broker.store.key_indexer import KeyIndexer
from meta_client.protocol.encoder import encode_result
from meta_client.protocol.requests import (
    BranchCommand,
    Dropped,
    Fetch,
    Find,
    Get,
    MultiPut,
    OffsetQuery,
    Offsets,
    Put,
    Quit,
    Request,
    Stats,
    Sync,
    TakeCheckpoint,
    TopicCommand,
    Transaction,
    Version,
)
from meta_client.protocol.status import Status


class Dispatcher:
    """Every processor of a broker behind one call."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.transactions = TransactionProcessor(context)
        self._put = PutProcessor(context).handle
        self._filters = Filters(context.config.broker.filter_seconds_max)
        self._reading = Reading(context)
        filtering = Filtering(context, self._reading, self._filters)
        self._get = GetProcessor(context, self._reading, filtering)
        self._fetch = FetchProcessor(context, self._reading, filtering)
        self._worker = ThreadPoolExecutor(1, "find")
        self._keys = KeyIndexer(context.config.data / "keys", context.store, context.topics, self._worker)
        self._find = FindProcessor(context, self._keys, self._worker)
        self._checkpoint = CheckpointProcessor(context)
        self._stats = StatsProcessor(context)
        self._branch = BranchProcessor(context)
        self._topic = TopicProcessor(context, self._topic_decided)
        self._keys.look_again()

    async def close(self) -> None:
        """End what runs beside the loop: what it has still to answer is refused. Idempotent."""
        await self._keys.close()
        await self._find.close()
        self._worker.shutdown()
        await self._filters.close()
        await self._reading.close()

    def _topic_decided(self, topic: str) -> None:
        self._fetch.wake(topic)
        self._keys.look_again()

    def release(self, peer: Peer) -> list[bytes]:
        """Nothing more will be handled for *peer*: the answers to what waits for messages."""
        return self._fetch.release(peer)

    def peer_gone(self, peer: Peer) -> None:
        """A connection ended. Raises StorageFailed once the journal has stopped."""
        self._fetch.peer_gone(peer)
        self._find.peer_gone(peer)
        self._reading.peer_gone(peer)
        self.transactions.peer_gone(peer)

    def handle(self, request: Request | Dropped, peer: Peer) -> None:
        """Answer *request*, now or at the fence. Raises StorageFailed once the journal has stopped."""
        try:
            self._handle(request, peer)
        except IndexDamaged as error:
            assert isinstance(request, Get | Fetch | OffsetQuery | Offsets)  # nobody else reads one
            peer.send(index_damaged(error, request.opaque))

    def _handle(self, request: Request | Dropped, peer: Peer) -> None:
        match request:
            case Put() | MultiPut():
                self._put(request, peer)
            case Get():
                self._get.handle(request, peer)
            case Fetch():
                self._fetch.handle(request, peer)
            case Transaction():
                self.transactions.handle(request, peer)
            case OffsetQuery():
                self._get.handle_offset(request, peer)
            case Offsets():
                self._get.handle_offsets(request, peer)
            case Find():
                self._find.handle(request, peer)
            case TakeCheckpoint():
                self._checkpoint.handle(request, peer)
            case Version():
                peer.send(encode_result(Status.SUCCESS, self.context.version.encode(), request.opaque))
            case Stats():
                self._stats.handle(request, peer)
            case TopicCommand():
                self._topic.handle(request, peer)
            case BranchCommand():
                self._branch.handle(request, peer)
            case Quit():
                peer.unanswered()
                peer.quit()
            case Dropped(opaque, status, reason):
                peer.send(encode_result(status, reason.encode(), opaque))
            case Sync():
                text = b"this broker is no synchronous slave of the 1.4 kind"
                peer.send(encode_result(Status.UNAVAILABLE, text, request.opaque))
            case _:
                assert_never(request)
