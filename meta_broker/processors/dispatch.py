"""From a request to its processor. Exhaustive: no broker starts while a request has none."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, get_args

from meta_broker.filters.runner import Filters
from meta_broker.processors.checkpoint import CheckpointProcessor
from meta_broker.processors.context import Context, Peer
from meta_broker.processors.fetch import FetchProcessor
from meta_broker.processors.filtering import Filtering, index_damaged
from meta_broker.processors.find import FindProcessor
from meta_broker.processors.get import GetProcessor
from meta_broker.processors.reading import Reading
from meta_broker.processors.refused_writes import RefusedWrites
from meta_broker.processors.stats import StatsProcessor
from meta_broker.processors.sync_writes import SyncWrites
from meta_broker.processors.turns import end_turn
from meta_broker.processors.writes import MasterWrites, Writes
from meta_broker.store.index_file import IndexCold, IndexDamaged
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
    Replicate,
    Request,
    Stats,
    Sync,
    TakeCheckpoint,
    TopicCommand,
    Transaction,
    Version,
)
from meta_client.protocol.status import Status

_READS: Final = (Get, Fetch, OffsetQuery, Offsets, Find)  # what reads messages, or says where they are


def _one_a_turn(handle: Callable[[Any, Peer], None]) -> Callable[[Any, Peer], None]:
    """For what looks at every partition."""

    def handle_one(request: Request, peer: Peer) -> None:
        handle(request, peer)
        end_turn(peer)

    return handle_one


class Dispatcher:
    """Every processor of a broker behind one call."""

    def __init__(self, context: Context) -> None:
        self.context = context
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
        slave = context.slave
        self._writes: Writes
        if slave is not None:
            self._writes = RefusedWrites(context, slave)
        else:
            self._writes = MasterWrites(context, self.topic_decided)
            if (master := context.master) is not None and master.section.mode == "sync":
                self._writes = SyncWrites(context, master, self._writes, time.monotonic)
        self.expire = self._writes.expire
        self._handlers: Final = self._table()
        assert self._handlers.keys() == set(get_args(Request | Dropped)), "every request has a processor"
        self._keys.look_again()

    def _table(self) -> dict[type[Request | Dropped], Callable[[Any, Peer], None]]:
        write = self._writes.handle
        return {
            Put: write,
            MultiPut: write,
            Transaction: write,
            TopicCommand: _one_a_turn(write),
            BranchCommand: write,
            Sync: write,
            Get: self._get.handle,
            Fetch: self._fetch.handle,
            OffsetQuery: self._get.handle_offset,
            Offsets: self._get.handle_offsets,
            Find: self._find.handle,
            TakeCheckpoint: self._checkpoint.handle,
            Stats: _one_a_turn(self._stats.handle),
            Version: self._version,
            Quit: self._quit,
            Replicate: self._replicate,
            Dropped: self._dropped,
        }

    async def close(self) -> None:
        """End what runs beside the loop: what it has still to answer is refused. Idempotent."""
        await self._keys.close()
        await self._find.close()
        self._worker.shutdown()
        await self._filters.close()
        await self._reading.close()

    def topic_decided(self, topic: str) -> None:
        """A decision about a topic is acknowledged."""
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
        self._writes.peer_gone(peer)

    def handle(self, request: Request | Dropped, peer: Peer) -> None:
        """Answer *request*, now or at the fence. Raises StorageFailed once the journal has stopped."""
        slave = self.context.slave
        if slave is not None and not slave.is_showing and isinstance(request, _READS):
            text = b"this slave has not heard from its master since it began to follow it: ask later, or ask the master"
            peer.send(encode_result(Status.UNAVAILABLE, text, request.opaque))
            return
        try:
            self._handlers[type(request)](request, peer)
        except IndexDamaged as error:
            assert isinstance(request, Get | Fetch | OffsetQuery | Offsets)  # nobody else reads one
            peer.send(index_damaged(error, request.opaque))
        except IndexCold as cold:
            assert isinstance(request, Get | Fetch | OffsetQuery | Offsets)
            self._reading.retry_warm(cold, request, peer)

    def _version(self, request: Version, peer: Peer) -> None:
        peer.send(encode_result(Status.SUCCESS, self.context.version.encode(), request.opaque))

    def _quit(self, request: Quit, peer: Peer) -> None:
        del request
        peer.unanswered()
        peer.quit()

    def _dropped(self, request: Dropped, peer: Peer) -> None:
        peer.send(encode_result(request.status, request.text.encode(), request.opaque))

    def _replicate(self, request: Replicate, peer: Peer) -> None:
        master, opaque = self.context.master, request.opaque
        if master is None or not peer.hand_over(encode_result(Status.SUCCESS, b"", opaque), master.attach):
            text = b"no replication link here: this broker is no master, has too many links, or was asked for more"
            peer.send(encode_result(Status.UNAVAILABLE, text, opaque))
            return
        self.peer_gone(peer)  # what it began as a client nobody else would end
