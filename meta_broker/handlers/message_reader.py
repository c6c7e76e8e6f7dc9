"""Answers requests that read a partition: at once, by a thread from the disk, or through a filter (spec 4.8)."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar
from zlib import crc32

import msgspec

from journal.archive.download import ObjectDamaged, ObjectMissing
from journal.errors import StorageFailed
from journal.records.record import PartitionName
from meta_broker.filters.emulation import Skip, choose_reply
from meta_broker.filters.process import FilterFailed, FilterProcess
from meta_broker.filters.runner import Filters
from meta_broker.handlers.context import Context, Peer
from meta_broker.store.archive_cache import ArchiveCold
from meta_broker.store.cold_read import ColdRead, SegmentReaders
from meta_broker.store.cold_reader import ColdReader
from meta_broker.store.index_file import IndexCold, IndexDamaged
from meta_broker.store.partition_index import JournalSlice, PartitionIndex
from meta_broker.task_errors import raise_task_error
from meta_client.protocol.encoder import data_line, encode_result, value_line
from meta_client.protocol.requests import Count, Fetch, Find, Get, OffsetQuery, Offsets
from meta_client.protocol.responses import FILTERED, READ_FROM_MASTER
from meta_client.protocol.status import Status

log = logging.getLogger(__name__)

# A slave sends a reader back below this part of the distance at which the master sends it away: hysteresis.
LEAVE_RATIO: float = 0.5

# A connection waits that long for the archive, its other partitions too; then the client asks again.
ARCHIVE_WAIT_S: float = 2.0

T = TypeVar("T")
IndexRequest = Get | Fetch | OffsetQuery | Offsets | Count


class Messages(msgspec.Struct, frozen=True):
    """Messages that answer a get or fetch: *size* bytes after *line*. *count*: those of the runs that end with them."""

    line: bytes
    size: int
    count: int
    places: Sequence[JournalSlice]
    read: ColdRead  # keeps their segments open


class ToFilter(msgspec.Struct, frozen=True):
    """Messages of *index* that filter *name* has to process first, at most *bytes_max*."""

    name: str
    index: PartitionIndex
    bytes_max: int
    log: PartitionIndex  # the partition's own


ReadAnswer = bytes | Messages | ToFilter
LookUp = Callable[[Any], ReadAnswer]  # of a request


class MessageReader:
    """Looks up and sends answers. Loop thread only; never waits for the disk.

    A cold read pauses its connection until it is done: each connection has one at a time, its replies keep their order,
    and asking for more at once gives no larger share of the disk. Other connections do not wait.
    """

    def __init__(self, context: Context, filters: Filters) -> None:
        self._context = context
        self._store = context.store
        self._filters = filters
        self._cold_reader = ColdReader()
        self._by_peer: dict[Peer, asyncio.Task[None]] = {}

    def start_of(self, name: PartitionName, index: PartitionIndex) -> int:
        """Return the first offset of a partition that can be read. Raises ArchiveCold, StorageFailed."""
        tier = self._store.tier
        return index.start if tier is None else tier.start_of(name, index)

    def at_time(self, name: PartitionName, index: PartitionIndex, time_ms: int) -> int:
        """Return the first offset of *time_ms* or later. Raises IndexDamaged, IndexCold, ArchiveCold, StorageFailed."""
        found, tier = index.at_time(time_ms), self._store.tier
        return found if tier is None or found > index.start else tier.at_time(name, index, time_ms)

    def index_at(self, name: PartitionName, index: PartitionIndex, offset: int) -> PartitionIndex | None:
        """Return *index*, or an archived one, whichever has *offset*; None: neither has. Raises ArchiveCold,
        StorageFailed."""
        tier = self._store.tier
        if index.start <= offset < index.end:
            return index
        return tier.index_at(name, index, offset) if tier is not None and offset < index.start else None

    def messages(self, request: Get | Fetch, index: PartitionIndex, log: PartitionIndex) -> ReadAnswer:
        """Look up the messages at the offset of *request*, which *index* has: *log*, the partition's own, or an
        archived one.

        Raises IndexDamaged, IndexCold, ArchiveCold, StorageFailed.
        """
        context = self._context
        bytes_max = min(request.bytes_max, context.config.broker.transfer_bytes_max)
        if (of_topic := context.config.filters.get(request.topic)) is not None and request.group in of_topic:
            self._count_archived(index, log)
            return ToFilter(of_topic[request.group], index, bytes_max, log)
        places = self._places(index, request.offset, bytes_max)
        if not places:
            return _in_gap(index, request)
        self._count_archived(index, log)
        size = sum(place.bytes for place in places)
        count = sum(place.messages for place in places)
        # No slave has the archive of its master.
        line = _head_line(context, request, size, log.end, places if index is log else ())
        return Messages(line, size, count, places, ColdRead(self._segments, places))

    def _count_archived(self, index: PartitionIndex, log: PartitionIndex) -> None:
        if index is not log and self._store.tier is not None:
            self._store.tier.reads += 1

    @property
    def _segments(self) -> SegmentReaders:
        return self._store.tier or self._store.journal

    def _places(self, index: PartitionIndex, offset: int, bytes_max: int) -> list[JournalSlice]:
        places, tier = list(index.places(offset, bytes_max)), self._store.tier
        return places if tier is None or not places else tier.at_hand(places)

    def answer(self, request: IndexRequest, peer: Peer, look_up: LookUp) -> None:
        """Answer *request* with what *look_up* returns; while that raises IndexCold or ArchiveCold, load what it lacks
        and repeat it."""
        try:
            found = look_up(request)
        except (IndexDamaged, StorageFailed) as error:
            peer.send(self._refusal(request, error, is_found=False))
            return
        except (IndexCold, ArchiveCold):
            found = None
        if found is None or not self._send(request, peer, look_up, found):
            peer.pause()
            answering = self._answer_paused(request, peer, look_up, found, self._context.times.defer())
            self._by_peer[peer] = task = asyncio.get_running_loop().create_task(answering)
            task.add_done_callback(raise_task_error)

    def _send(self, request: IndexRequest, peer: Peer, look_up: LookUp, found: ReadAnswer) -> bool:
        """Answer with *found*; False: it has to be read from the disk first."""
        if isinstance(found, bytes):
            peer.send(found)
        elif isinstance(found, Messages):
            if (data := self._cached(found.places, found.read)) is None:
                return False
            self._context.traffic.sent(request.topic, found.count, found.size)
            peer.send_buffers([found.line, *data], len(found.line) + found.size)
        else:
            assert isinstance(request, Get | Fetch)
            self._filter(request, peer, look_up, found)
        return True

    async def _answer_paused(
        self, request: IndexRequest, peer: Peer, look_up: LookUp, found: ReadAnswer | None, began: float
    ) -> None:
        """Answer *request*, for which *peer* is paused, then resume; *found* None: its index is to be loaded."""
        times = self._context.times
        try:
            if found is None:
                found = await self._when_loaded(partial(look_up, request))
            if not self._send(request, peer, look_up, found):
                assert isinstance(found, Messages)
                data = await self._cold_reader.read(found.read)
                self._context.traffic.sent(request.topic, found.count, len(data))
                peer.send_buffers([found.line, data], len(found.line) + len(data))
        except (IndexDamaged, StorageFailed) as error:
            peer.send(self._refusal(request, error, is_found=found is not None))
        times.observe(times.of(request), began)
        del self._by_peer[peer]
        peer.resume()

    def _refusal(self, request: IndexRequest, error: IndexDamaged | StorageFailed, *, is_found: bool) -> bytes:
        """Return the reply to a request whose messages can't be read, once they are found; or can't be looked up now:
        the archive is away, or descriptors ran out."""
        if isinstance(error, IndexDamaged):
            return index_damaged(self._context, error, request.opaque)
        if is_found:
            assert isinstance(request, Get | Fetch)
            return unreadable(self._context, request, error)
        if isinstance(error, ObjectDamaged | ObjectMissing):
            self._context.counters.gets_unreadable += 1
            return encode_result(Status.INTERNAL_ERROR, str(error).encode(), request.opaque)
        return encode_result(Status.UNAVAILABLE, str(error).encode(), request.opaque)

    def _filter(self, request: Get | Fetch, peer: Peer, look_up: LookUp, found: ToFilter) -> None:
        """Answer *request* once the filter has processed its messages."""
        index = found.index

        def places() -> list[JournalSlice]:
            return self._places(index, request.offset, found.bytes_max) if index.start <= request.offset else []

        async def run(process: FilterProcess) -> None:
            if not index.start <= request.offset < index.end:  # deleted before its turn
                self.answer(request, peer, look_up)
                return
            slices: list[JournalSlice] | None = None
            # Read only now: a waiting request holds no bytes.
            try:
                slices = await self._when_loaded(places)
                chunk = await self._read(slices)
                if not chunk:
                    peer.send(await self._when_loaded(lambda: _in_gap(index, request)))
                    return
                verdicts = await process.judge(request.group, chunk)
                answer = choose_reply(verdicts, len(chunk))
            except (IndexDamaged, StorageFailed) as error:
                peer.send(self._refusal(request, error, is_found=slices is not None))
                return
            except FilterFailed as error:
                text = f"group {request.group} of topic {request.topic}: {error}"
                peer.send(encode_result(Status.INTERNAL_ERROR, text.encode(), request.opaque))
                return
            if isinstance(answer, Skip):
                # Genuine clients send gets, and parse only a number.
                why = FILTERED if isinstance(request, Fetch) else b""
                moved_to = b"%d%b" % (request.offset + answer.size, why)
                peer.send(encode_result(Status.MOVED, moved_to, request.opaque))
                return
            count = sum(verdict.end <= answer.size for verdict in verdicts)
            self._context.traffic.sent(request.topic, count, answer.size)
            # No places: a filtered reader is not sent to a slave, whose configuration may lack the filter.
            peer.send(_head_line(self._context, request, answer.size, found.log.end, ()) + chunk[: answer.size])

        times = self._context.times
        durations, began = times.of(request), times.defer()

        async def run_timed(process: FilterProcess) -> None:
            await run(process)
            times.observe(durations, began)

        self._filters.submit(found.name, run_timed)

    async def _read(self, places: Sequence[JournalSlice]) -> bytes:
        if not places:
            return b""
        read = ColdRead(self._segments, places)
        if (data := self._cached(places, read)) is not None:
            return b"".join(data)
        return await self._cold_reader.read(read)

    def _cached(self, places: Sequence[JournalSlice], read: ColdRead) -> list[bytes | memoryview] | None:
        return read.cached() if self._store.page_cache.is_hot(places) else None

    async def _when_loaded(self, ask: Callable[[], T]) -> T:
        """Return the result of *ask*, which reads an index; load what is not in memory. Raises as *ask*,
        StorageFailed, also if the archive takes longer than ARCHIVE_WAIT_S.
        """
        left_s = ARCHIVE_WAIT_S
        while True:
            try:
                return ask()
            except IndexCold as cold:
                await self._cold_reader.read(cold)
            except ArchiveCold as cold:
                began = time.monotonic()
                await asyncio.wait([cold.loading], timeout=left_s)
                if not cold.loading.done():
                    raise StorageFailed("it is being read from the archive: ask again later") from None
                cold.loading.result()
                left_s = max(left_s - (time.monotonic() - began), 0.0)

    def peer_closed(self, peer: Peer) -> None:
        if (task := self._by_peer.pop(peer, None)) is not None:
            task.cancel()

    async def close(self) -> None:
        """Stop the thread. Idempotent."""
        await self._cold_reader.close()


def _head_line(
    context: Context, request: Get | Fetch, size: int, log_end: int, places: Sequence[JournalSlice]
) -> bytes:
    """Return the header for *size* bytes of messages at *places*."""
    if isinstance(request, Fetch):
        return answer_line(context, request, size, log_end, places)
    return value_line(size, request.opaque)


def answer_line(context: Context, fetch: Fetch, size: int, log_end: int, places: Sequence[JournalSlice] = ()) -> bytes:
    """Return the header for the *size* bytes of *places* that answer *fetch*."""
    behind = context.slave.lag() if context.slave is not None else None
    return data_line(size, log_end, read_from(context, fetch, places), fetch.opaque, behind)


def read_from(context: Context, fetch: Fetch, places: Sequence[JournalSlice]) -> str:
    """Return the replica to fetch from next, as responses.READ_FROM; no *places*: at the end of the partition.

    A master names a slave to readers that are further behind than memory reaches, so that its disk is left to writes:
    the same slave each time, with partitions spread over all slaves that have got so far.
    """
    if not places:
        return READ_FROM_MASTER
    lsn = places[-1].lsn
    distance, hot_bytes = context.store.journal.end - lsn, context.store.page_cache.hot_bytes
    if context.slave is not None:
        return f"s{context.slave.slave_id}" if distance > hot_bytes * LEAVE_RATIO else READ_FROM_MASTER
    if distance <= hot_bytes:
        return READ_FROM_MASTER
    able = [replica.slave_id for replica in context.replicas() if replica.flushed > lsn]
    if not able:
        return READ_FROM_MASTER
    return f"s{able[crc32(b'%b-%d' % (fetch.topic.encode(), fetch.partition)) % len(able)]}"


def _in_gap(index: PartitionIndex, request: Get | Fetch) -> bytes:
    """Return the reply for an offset whose messages a repair dropped: where reading continues.

    Raises IndexDamaged, IndexCold.
    """
    return encode_result(Status.MOVED, b"%d" % index.resumes(request.offset), request.opaque)


def index_damaged(context: Context, error: IndexDamaged, opaque: int) -> bytes:
    """Return the reply while an index is being rebuilt, or is damaged until the journal is repaired."""
    is_lost = context.store.indexes.is_given_up
    hope = "it can't be rebuilt: run `metaq journal check`" if is_lost else "it is being rebuilt, ask again later"
    return encode_result(Status.UNAVAILABLE, f"{error}: {hope}".encode(), opaque)


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
