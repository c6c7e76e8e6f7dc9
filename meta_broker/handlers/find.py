"""find: searches for messages with an attribute or an id (extension, PROTOCOL.md).

A search may cover gigabytes. A request searches a bounded part of them, in pieces on a worker thread, and its answer
says where to continue: a search delays only the searches behind it.
"""

import asyncio
import functools
import logging
from collections import OrderedDict, deque
from concurrent.futures import Executor
from time import perf_counter
from typing import Final

from journal.checksum import crc32
from journal.errors import StorageFailed
from journal.records.record import PartitionName
from meta_broker.handlers.context import Context, Peer
from meta_broker.handlers.get import closed, unknown_partition, visible_index
from meta_broker.handlers.message_reader import index_damaged, unreadable
from meta_broker.store.index_file import IndexDamaged
from meta_broker.store.indexes import when_loaded
from meta_broker.store.key_indexer import KeyIndexer, run_at, runs_from
from meta_broker.store.key_reading import look_at
from meta_broker.store.partition_index import PartitionIndex, StoredExtent
from meta_broker.store.search import NotAMessageStart, ReadAhead, SearchStep, search_step
from meta_broker.task_errors import raise_task_error
from meta_client.protocol.answers import Found, FoundAt, format_found
from meta_client.protocol.encoder import encode_result
from meta_client.protocol.id_layout import broker_of, time_ms_of
from meta_client.protocol.requests import Find
from meta_client.protocol.status import Status

log = logging.getLogger(__name__)

PIECES_MAX: Final = 32  # of one request: some 30 ms of the worker, for which other connections may wait
BLOCKS_MAX: Final = 16  # of a key index, in one piece
CANDIDATES_MAX: Final = 256  # messages named by a key index, in one piece


class FindHandler:
    """Answers finds one after the other; connections take turns. Loop thread only.

    Waiting finds are bounded by each connection's requests in flight.
    """

    def __init__(self, context: Context, keys: KeyIndexer, worker: Executor) -> None:
        self._context = context
        self._keys = keys
        self._worker = worker
        self._waiting: OrderedDict[Peer, deque[Find]] = OrderedDict()  # next turn first; no empty queues
        self._task: asyncio.Task[None] | None = None

    def handle(self, find: Find, peer: Peer) -> None:
        self._context.times.defer()  # measured from its turn
        self._waiting.setdefault(peer, deque()).append(find)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._drain())
            self._task.add_done_callback(raise_task_error)

    def peer_closed(self, peer: Peer) -> None:
        self._waiting.pop(peer, None)

    async def close(self) -> None:
        """Refuse unanswered finds. Idempotent."""
        if (task := self._task) is not None:
            task.cancel()
            await asyncio.wait([task])
        while self._waiting:
            find, peer = self._next()
            peer.send(encode_result(Status.UNAVAILABLE, b"the broker stops: search again once it is back", find.opaque))

    async def _drain(self) -> None:
        times = self._context.times
        try:
            while self._waiting:
                find, peer = self._next()
                began = perf_counter()
                try:
                    answer = await self._answer_to(find)
                except asyncio.CancelledError:
                    self._waiting.setdefault(peer, deque()).appendleft(find)
                    raise
                times.observe(times.of(find), began)
                peer.send(answer)
        finally:
            self._task = None  # here, not in the task's callback: a find that arrives in between would not be handled

    def _next(self) -> tuple[Find, Peer]:
        """Take the next find; the turn passes to another connection."""
        peer, finds = self._waiting.popitem(last=False)
        find = finds.popleft()
        if finds:
            self._waiting[peer] = finds
        return find, peer

    async def _answer_to(self, find: Find) -> bytes:
        context = self._context
        name = PartitionName(find.topic, find.partition)
        if context.topics.is_closed(*name):
            return closed(context, find)
        index = visible_index(context, name)
        if index is None:
            if not context.topics.offers(*name):
                return unknown_partition(find)
            return encode_result(Status.SUCCESS, format_found(Found(0, 0, [])), find.opaque)
        try:
            found = await self._find(find, index)
        except NotAMessageStart:
            text = b"no message begins at offset %d: ask from where one does" % find.offset
            return encode_result(Status.BAD_REQUEST, text, find.opaque)
        except IndexDamaged as error:
            return index_damaged(self._context, error, find.opaque)
        except StorageFailed as error:
            return unreadable(self._context, find, error)
        return encode_result(Status.SUCCESS, format_found(found), find.opaque)

    async def _find(self, find: Find, index: PartitionIndex) -> Found:
        """Search a bounded part of the partition. Raises NotAMessageStart, IndexDamaged, StorageFailed."""
        wanted, end = find.wanted, index.end
        offset = find.offset
        if isinstance(wanted, int):
            if broker_of(wanted) != self._context.config.broker_id:
                return Found(end, end, [])
            earliest = await when_loaded(self._worker, lambda: index.at_time(time_ms_of(wanted)))
            offset = max(offset, earliest)  # a record is never older than its ids
        matches: list[FoundAt] = []
        for _ in range(PIECES_MAX):
            offset = min(max(offset, index.start), end)  # retention may have moved the start
            if offset == end or len(matches) == find.matches_max:
                break
            left = find.matches_max - len(matches)
            try:
                looked = await self._look_up(find, index, offset, left)
                if looked is None and index.start <= offset:
                    looked = await self._scan(find, index, offset, left)
            except KeyError:
                if index.start <= offset:
                    raise
                looked = None
            if looked is None:
                continue  # deleted meanwhile: the partition begins later
            offset = looked.next_offset
            matches += looked.matches
        return Found(min(offset, end), end, matches)

    async def _look_up(self, find: Find, index: PartitionIndex, offset: int, matches_max: int) -> SearchStep | None:
        """Search the key index; None: it does not cover *offset*."""
        key = find.wanted
        if isinstance(key, int):
            return None
        loop = asyncio.get_running_loop()
        name = PartitionName(find.topic, find.partition)
        try:
            files = await self._keys.files_of(name, index)
            if files is None:
                return None
            found = await loop.run_in_executor(
                self._worker, files.candidates, crc32(key), offset, CANDIDATES_MAX, BLOCKS_MAX
            )
        except StorageFailed as error:
            log.error("key index not used partition=%s error=%s", name, error)
            return None
        if found.next_offset == offset and not found.offsets:
            return None
        places = list[tuple[StoredExtent, int]]()
        for at in found.offsets:
            if (run := await when_loaded(self._worker, functools.partial(run_at, index, at))) is not None:
                places.append((run, at))
        read = ReadAhead(self._context.store.journal).read
        try:
            looked = await loop.run_in_executor(self._worker, look_at, key, read, places, matches_max)
        except NotAMessageStart:
            log.error("key index is wrong, and is made again partition=%s", name)
            await self._keys.discard(name)
            return None
        return looked if len(looked.matches) == matches_max else SearchStep(found.next_offset, looked.matches)

    async def _scan(self, find: Find, index: PartitionIndex, offset: int, matches_max: int) -> SearchStep:
        """Search the messages themselves."""
        extents = await when_loaded(self._worker, functools.partial(runs_from, index, offset))
        read = ReadAhead(self._context.store.journal).read
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._worker, search_step, find.wanted, read, extents, offset, matches_max)
