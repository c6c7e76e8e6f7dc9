"""Reads messages for a get or fetch: from the page cache at once, or by a thread from the disk."""

import asyncio
import functools
import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from journal.errors import StorageFailed
from meta_broker.handlers.context import Context, Peer
from meta_broker.handlers.read_from import answer_line
from meta_broker.store.cold_read import ColdRead
from meta_broker.store.cold_reader import ColdReader
from meta_broker.store.index_file import IndexCold
from meta_broker.store.partition_index import JournalSlice, PartitionIndex
from meta_client.protocol.encoder import encode_result, value_line
from meta_client.protocol.requests import Fetch, Find, Get, OffsetQuery, Offsets
from meta_client.protocol.status import Status

log = logging.getLogger(__name__)

T = TypeVar("T")
IndexRequest = Get | Fetch | OffsetQuery | Offsets


class MessageReader:
    """Answers with messages. Loop thread only; never waits for the disk.

    A cold read pauses its connection until it is done: each connection has one at a time, its replies keep their order,
    and asking for more at once gives no larger share of the disk. Other connections do not wait.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._store = context.store
        self._cold_reader = ColdReader()
        self._by_peer: dict[Peer, asyncio.Future[bytes]] = {}

    def answer(self, request: Get | Fetch, index: PartitionIndex, bytes_max: int, peer: Peer) -> bool:
        """Answer *request* with the messages at its offset, at most *bytes_max*; False, and no reply, in a gap.

        Raises IndexDamaged, IndexCold.
        """
        places = list(index.places(request.offset, bytes_max))
        if not places:
            return False
        size = sum(place.bytes for place in places)
        line = head_line(self._context, request, size, index, places)
        read = ColdRead(self._store.journal, places)
        if self._store.page_cache.is_hot(places) and (data := read.cached()) is not None:
            peer.send_buffers([line, *data], len(line) + size)
            return True
        peer.pause()
        self._by_peer[peer] = future = self._cold_reader.read(read)
        future.add_done_callback(functools.partial(self._send_read, request, peer, line))
        return True

    async def read(self, index: PartitionIndex, offset: int, bytes_max: int) -> bytes:
        """Return the bytes at *offset*, for processing before they are sent; none in a gap.

        Raises StorageFailed, IndexDamaged.
        """

        def ask() -> list[JournalSlice]:
            return list(index.places(offset, bytes_max)) if index.start <= offset else []  # deleted meanwhile

        places = await self.when_loaded(ask)
        if not places:
            return b""
        read = ColdRead(self._store.journal, places)
        if self._store.page_cache.is_hot(places) and (data := read.cached()) is not None:
            return b"".join(data)
        return await self._cold_reader.read(read)

    async def when_loaded(self, ask: Callable[[], T]) -> T:
        """Return the result of *ask*, which reads an index; load what is not in memory. Raises IndexDamaged."""
        while True:
            try:
                return ask()
            except IndexCold as cold:
                await self._cold_reader.read(cold)

    def retry_when_loaded(self, cold: IndexCold, request: IndexRequest, peer: Peer) -> None:
        """Load *cold*, then handle *request* again; only its connection waits."""
        peer.pause()
        self._by_peer[peer] = future = self._cold_reader.read(cold)
        future.add_done_callback(functools.partial(self._retry_loaded, request, peer))

    def _retry_loaded(self, request: IndexRequest, peer: Peer, future: "asyncio.Future[bytes]") -> None:
        if not future.cancelled():
            self._by_peer.pop(peer, None)
            if isinstance(error := future.exception(), StorageFailed):  # out of file descriptors: nothing is damaged
                peer.send(encode_result(Status.UNAVAILABLE, str(error).encode(), request.opaque))
                peer.resume()
                return
            future.result()
            peer.retry(request)

    def peer_closed(self, peer: Peer) -> None:
        """Cancel the read of a closed connection."""
        if (future := self._by_peer.pop(peer, None)) is not None:
            future.cancel()

    async def close(self) -> None:
        """Stop the thread. Idempotent."""
        await self._cold_reader.close()

    def _send_read(self, request: Get | Fetch, peer: Peer, line: bytes, future: "asyncio.Future[bytes]") -> None:
        if future.cancelled():
            return
        self._by_peer.pop(peer, None)
        try:
            data = future.result()
        except StorageFailed as error:
            peer.send(unreadable(self._context, request, error))
        else:
            peer.send_buffers([line, data], len(line) + len(data))
        peer.resume()


def head_line(
    context: Context, request: Get | Fetch, size: int, index: PartitionIndex, places: Sequence[JournalSlice]
) -> bytes:
    """Return the header for *size* bytes of messages at *places*."""
    if isinstance(request, Fetch):
        return answer_line(context, request, size, index.end, places)
    return value_line(size, request.opaque)


def unreadable(context: Context, request: Get | Fetch | Find, error: StorageFailed) -> bytes:
    """Return the reply for messages that cannot be read from the disk, and log that once."""
    context.counters.gets_unreadable += 1
    if context.is_new_fault(str(error)):
        log.error(
            "messages unreadable partition=%s-%d offset=%d error=%s",
            *(request.topic, request.partition, request.offset, error),
        )
    where = f"{request.topic}-{request.partition} at offset {request.offset}"
    text = f"cannot read {where}: {error}: check the disk, then run `metaq journal check` and `repair`"
    return encode_result(Status.INTERNAL_ERROR, text.encode(), request.opaque)
