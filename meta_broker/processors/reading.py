"""The bytes that a get or fetch is answered with: out of the page cache at once, or by way of the disk."""

import asyncio
import functools
import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from journal.errors import StorageFailed
from meta_broker.processors.context import Context, Peer
from meta_broker.processors.read_from import answer_line
from meta_broker.store.far_read import FarRead
from meta_broker.store.far_reads import FarReads
from meta_broker.store.index_file import IndexCold
from meta_broker.store.partition_index import PartitionIndex, Place
from meta_client.protocol.encoder import encode_result, value_line
from meta_client.protocol.requests import Fetch, Find, Get, OffsetQuery, Offsets
from meta_client.protocol.status import Status

log = logging.getLogger(__name__)

T = TypeVar("T")
IndexRequest = Get | Fetch | OffsetQuery | Offsets


class Reading:
    """Answers with messages. Loop thread only, which never waits for the disk here.

    A connection whose read is far waits for it: what it asks next is handled after. So it has one at a time, its
    answers keep their order, and nobody gets more of the disk by asking for more at once. Others do not wait.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._store = context.store
        self._far = FarReads()
        self._by_peer: dict[Peer, asyncio.Future[bytes]] = {}

    def answer(self, request: Get | Fetch, index: PartitionIndex, bytes_max: int, peer: Peer) -> bool:
        """Answer *request* with what there is at its offset, *bytes_max* at most; False, and nothing, in a gap.

        Raises IndexDamaged, IndexCold.
        """
        places = list(index.places(request.offset, bytes_max))
        if not places:
            return False
        size = sum(place.bytes for place in places)
        line = head_line(self._context, request, size, index, places)
        read = FarRead(self._store.journal, places)
        if self._store.horizon.is_near(places) and (data := read.cached()) is not None:
            peer.send_buffers([line, *data], len(line) + size)
            return True
        peer.hold()
        self._by_peer[peer] = future = self._far.read(read)
        future.add_done_callback(functools.partial(self._take, request, peer, line))
        return True

    async def read(self, index: PartitionIndex, offset: int, bytes_max: int) -> bytes:
        """The bytes at *offset*, for who looks at them before anybody gets them; none in a gap.

        Raises StorageFailed, IndexDamaged.
        """

        def ask() -> list[Place]:
            return list(index.places(offset, bytes_max)) if index.start <= offset else []  # deleted meanwhile

        places = await self.warmed(ask)
        if not places:
            return b""
        read = FarRead(self._store.journal, places)
        if self._store.horizon.is_near(places) and (data := read.cached()) is not None:
            return b"".join(data)
        return await self._far.read(read)

    async def warmed(self, ask: Callable[[], T]) -> T:
        """Return what *ask* says, which looks into an index; read what is not in memory. Raises IndexDamaged."""
        while True:
            try:
                return ask()
            except IndexCold as cold:
                await self._far.read(cold)

    def retry_warm(self, cold: IndexCold, request: IndexRequest, peer: Peer) -> None:
        """Have *cold* read, then *request* handled once more; its connection waits for that, and nobody else does."""
        peer.hold()
        self._by_peer[peer] = future = self._far.read(cold)
        future.add_done_callback(functools.partial(self._take_warm, request, peer))

    def _take_warm(self, request: IndexRequest, peer: Peer, future: "asyncio.Future[bytes]") -> None:
        if not future.cancelled():
            self._by_peer.pop(peer, None)
            if isinstance(error := future.exception(), StorageFailed):  # for want of descriptors: nothing is damaged
                peer.send(encode_result(Status.UNAVAILABLE, str(error).encode(), request.opaque))
                peer.go_on()
                return
            future.result()
            peer.retry(request)

    def peer_gone(self, peer: Peer) -> None:
        """Forget what a connection that ended waits for."""
        if (future := self._by_peer.pop(peer, None)) is not None:
            future.cancel()

    async def close(self) -> None:
        """End the thread. Idempotent."""
        await self._far.close()

    def _take(self, request: Get | Fetch, peer: Peer, line: bytes, future: "asyncio.Future[bytes]") -> None:
        if future.cancelled():
            return
        self._by_peer.pop(peer, None)
        try:
            data = future.result()
        except StorageFailed as error:
            peer.send(unreadable(self._context, request, error))
        else:
            peer.send_buffers([line, data], len(line) + len(data))
        peer.go_on()


def head_line(
    context: Context, request: Get | Fetch, size: int, index: PartitionIndex, places: Sequence[Place]
) -> bytes:
    """What goes before *size* bytes of messages, which stand at *places*."""
    if isinstance(request, Fetch):
        return answer_line(context, request, size, index.end, places)
    return value_line(size, request.opaque)


def unreadable(context: Context, request: Get | Fetch | Find, error: StorageFailed) -> bytes:
    """The answer for messages that the disk does not give back, and a line of log, once. All else goes on."""
    context.counters.gets_unreadable += 1
    if context.is_new_fault(str(error)):
        log.error(
            "messages unreadable partition=%s-%d offset=%d error=%s",
            *(request.topic, request.partition, request.offset, error),
        )
    where = f"{request.topic}-{request.partition} at offset {request.offset}"
    text = f"cannot read {where}: {error}: look after the disk, then run `metaq journal check` and `repair`"
    return encode_result(Status.INTERNAL_ERROR, text.encode(), request.opaque)
