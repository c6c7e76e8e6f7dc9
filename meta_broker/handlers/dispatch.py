"""Dispatches requests to handlers. Exhaustive: a broker does not start if a request has no handler."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, get_args

from meta_broker.filters.runner import Filters
from meta_broker.handlers.checkpoint import CheckpointHandler
from meta_broker.handlers.context import Context, Peer
from meta_broker.handlers.fetch import FetchHandler
from meta_broker.handlers.filtered_reader import FilteredReader, index_damaged
from meta_broker.handlers.find import FindHandler
from meta_broker.handlers.get import GetHandler
from meta_broker.handlers.message_reader import MessageReader
from meta_broker.handlers.slave_writes import SlaveWrites
from meta_broker.handlers.stats import StatsHandler
from meta_broker.handlers.sync_writes import SyncWrites
from meta_broker.handlers.writes import MasterWrites, Writes
from meta_broker.handlers.yielding import yield_after
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

_READS: Final = (Get, Fetch, OffsetQuery, Offsets, Find)  # requests that read messages or offsets


def _one_a_turn(handle: Callable[[Any, Peer], None]) -> Callable[[Any, Peer], None]:
    """Wrap a handler that scans every partition: one such request a turn of the loop."""

    def handle_one(request: Request, peer: Peer) -> None:
        handle(request, peer)
        yield_after(peer)

    return handle_one


class Dispatcher:
    """All handlers of a broker behind one call."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._filters = Filters(context.config.broker.filter_seconds_max)
        self._reading = MessageReader(context)
        filtering = FilteredReader(context, self._reading, self._filters)
        self._get = GetHandler(context, self._reading, filtering)
        self._fetch = FetchHandler(context, self._reading, filtering)
        self._worker = ThreadPoolExecutor(1, "find")
        self._keys = KeyIndexer(context.config.data / "keys", context.store, context.topics, self._worker)
        self._find = FindHandler(context, self._keys, self._worker)
        self._checkpoint = CheckpointHandler(context)
        self._stats = StatsHandler(context)
        slave = context.slave
        self._writes: Writes
        if slave is not None:
            self._writes = SlaveWrites(context, slave)
        else:
            self._writes = MasterWrites(context, self.topic_decided)
            if (master := context.master) is not None and master.section.mode == "sync":
                self._writes = SyncWrites(context, master, self._writes, time.monotonic)
        self.expire = self._writes.expire
        self._handlers: Final = self._table()
        assert self._handlers.keys() == set(get_args(Request | Dropped)), "every request has a handler"
        self._keys.rescan()

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
        """Stop the background work; requests it still has are refused. Idempotent."""
        await self._keys.close()
        await self._find.close()
        self._worker.shutdown()
        await self._filters.close()
        await self._reading.close()

    def topic_decided(self, topic: str) -> None:
        """Act on an acknowledged decision about a topic."""
        self._fetch.wake(topic)
        self._keys.rescan()

    def release(self, peer: Peer) -> list[bytes]:
        """Return replies to the waiting fetches of *peer*, for which nothing more will be handled."""
        return self._fetch.release(peer)

    def peer_closed(self, peer: Peer) -> None:
        """Clean up after a closed connection. Raises StorageFailed once the journal has stopped."""
        self._fetch.peer_closed(peer)
        self._find.peer_closed(peer)
        self._reading.peer_closed(peer)
        self._writes.peer_closed(peer)

    def handle(self, request: Request | Dropped, peer: Peer) -> None:
        """Answer *request*, now or at the high watermark. Raises StorageFailed once the journal has stopped."""
        slave = self.context.slave
        if slave is not None and not slave.is_readable and isinstance(request, _READS):
            text = b"this slave has not heard from its master since it began to follow it: ask later, or ask the master"
            peer.send(encode_result(Status.UNAVAILABLE, text, request.opaque))
            return
        try:
            self._handlers[type(request)](request, peer)
        except IndexDamaged as error:
            assert isinstance(request, Get | Fetch | OffsetQuery | Offsets)  # no other request reads an index
            peer.send(index_damaged(error, request.opaque))
        except IndexCold as cold:
            assert isinstance(request, Get | Fetch | OffsetQuery | Offsets)
            self._reading.retry_when_loaded(cold, request, peer)

    def _version(self, request: Version, peer: Peer) -> None:
        peer.send(encode_result(Status.SUCCESS, self.context.version.encode(), request.opaque))

    def _quit(self, request: Quit, peer: Peer) -> None:
        del request
        peer.end_in_flight()
        peer.quit()

    def _dropped(self, request: Dropped, peer: Peer) -> None:
        peer.send(encode_result(request.status, request.text.encode(), request.opaque))

    def _replicate(self, request: Replicate, peer: Peer) -> None:
        master, opaque = self.context.master, request.opaque
        if master is None or not peer.upgrade(encode_result(Status.SUCCESS, b"", opaque), master.attach):
            text = b"no replication link here: this broker is no master, has too many links, or was asked for more"
            peer.send(encode_result(Status.UNAVAILABLE, text, opaque))
            return
        self.peer_closed(peer)  # ends the branches and waits it began as a client
