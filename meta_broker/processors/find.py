"""find: where messages with an attribute or an id stand (extension, PROTOCOL.md).

A search may have gigabytes before it. A request looks at a bounded part of them, in pieces that a worker thread takes
between the loop's turns, and its answer says where to go on: so no search holds up anybody but those behind it.
"""

import asyncio
import functools
import logging
from collections import OrderedDict, deque
from concurrent.futures import Executor
from itertools import islice
from typing import Final

from journal.checksum import crc32
from journal.errors import StorageFailed
from journal.records import PartitionName
from meta_broker.processors.context import Context, Peer
from meta_broker.processors.filtering import index_damaged
from meta_broker.processors.get import closed, unknown_partition, visible_index
from meta_broker.processors.reading import unreadable
from meta_broker.raised import raise_error
from meta_broker.store.index_file import IndexDamaged
from meta_broker.store.indexes import warmed
from meta_broker.store.key_indexer import KeyIndexer, run_at
from meta_broker.store.key_reading import look_at
from meta_broker.store.partition_index import PartitionIndex, StoredRun
from meta_broker.store.search import Looked, NoMessageThere, look_for
from meta_broker.store.window import Window
from meta_client.protocol.answers import Found, FoundAt, format_found
from meta_client.protocol.encoder import encode_result
from meta_client.protocol.id_layout import broker_of, time_ms_of
from meta_client.protocol.requests import Find
from meta_client.protocol.status import Status

log = logging.getLogger(__name__)

PIECES_MAX: Final = 32  # of one request: some 30 ms of the worker, which another connection's request may wait for
BLOCKS_MAX: Final = 16  # of a key index, and
CANDIDATES_MAX: Final = 256  # messages that it names: what a piece looks at instead
RUNS_MAX: Final = 512  # of one piece: what the loop gathers for it, in a fraction of a millisecond


class FindProcessor:
    """Answers finds, one after the other; connections take turns. Loop thread only.

    How many wait is bounded by who asks: a connection's requests in flight.
    """

    def __init__(self, context: Context, keys: KeyIndexer, worker: Executor) -> None:
        self._context = context
        self._keys = keys
        self._worker = worker
        self._waiting: OrderedDict[Peer, deque[Find]] = OrderedDict()  # whose turn is next stands first; no empty ones
        self._task: asyncio.Task[None] | None = None

    def handle(self, find: Find, peer: Peer) -> None:
        self._waiting.setdefault(peer, deque()).append(find)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._drain())
            self._task.add_done_callback(raise_error)

    def peer_gone(self, peer: Peer) -> None:
        """Nobody waits for these answers any more."""
        self._waiting.pop(peer, None)

    async def close(self) -> None:
        """Refuse what has no answer yet. Idempotent."""
        if (task := self._task) is not None:
            task.cancel()
            await asyncio.wait([task])
        while self._waiting:
            find, peer = self._next()
            peer.send(encode_result(Status.UNAVAILABLE, b"the broker stops: search again once it is back", find.opaque))

    async def _drain(self) -> None:
        try:
            while self._waiting:
                find, peer = self._next()
                try:
                    answer = await self._answer(find)
                except asyncio.CancelledError:
                    self._waiting.setdefault(peer, deque()).appendleft(find)
                    raise
                peer.send(answer)
        finally:
            self._task = None  # at once, not when the loop tells: nobody would see to what comes in between

    def _next(self) -> tuple[Find, Peer]:
        """Take out whose turn it is; the next turn is another connection's."""
        peer, finds = self._waiting.popitem(last=False)
        find = finds.popleft()
        if finds:
            self._waiting[peer] = finds
        return find, peer

    async def _answer(self, find: Find) -> bytes:
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
        except NoMessageThere:
            text = b"no message begins at offset %d: ask from where one does" % find.offset
            return encode_result(Status.BAD_REQUEST, text, find.opaque)
        except IndexDamaged as error:
            return index_damaged(error, find.opaque)
        except StorageFailed as error:
            return unreadable(self._context, find, error)
        return encode_result(Status.SUCCESS, format_found(found), find.opaque)

    async def _find(self, find: Find, index: PartitionIndex) -> Found:
        """Raises NoMessageThere, IndexDamaged, StorageFailed."""
        wanted, end = find.wanted, index.end
        offset = find.offset
        if isinstance(wanted, int):
            if broker_of(wanted) != self._context.config.broker_id:
                return Found(end, end, [])
            earliest = await warmed(self._worker, lambda: index.at_time(time_ms_of(wanted)))
            offset = max(offset, earliest)  # no record is older than the ids in it
        matches: list[FoundAt] = []
        for _ in range(PIECES_MAX):
            offset = min(max(offset, index.start), end)  # retention may have moved the start
            if offset == end or len(matches) == find.matches_max:
                break
            left = find.matches_max - len(matches)
            try:
                looked = await self._look_up(find, index, offset, left)
                if looked is None and index.start <= offset:
                    looked = await self._look(find, index, offset, left)
            except KeyError:
                if index.start <= offset:
                    raise
                looked = None
            if looked is None:
                continue  # deleted meanwhile, and the partition begins further on
            offset = looked.next_offset
            matches += looked.matches
        return Found(min(offset, end), end, matches)

    async def _look_up(self, find: Find, index: PartitionIndex, offset: int, matches_max: int) -> Looked | None:
        """Look for a key in the index; None: it does not cover *offset*."""
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
        places = list[tuple[StoredRun, int]]()
        for at in found.offsets:
            if (run := await warmed(self._worker, functools.partial(run_at, index, at))) is not None:
                places.append((run, at))
        read = Window(self._context.store.journal).read
        try:
            looked = await loop.run_in_executor(self._worker, look_at, key, read, places, matches_max)
        except NoMessageThere:
            log.error("key index names places where no message is, and is made anew partition=%s", name)
            await self._keys.forget(name)
            return None
        return looked if len(looked.matches) == matches_max else Looked(found.next_offset, looked.matches)

    async def _look(self, find: Find, index: PartitionIndex, offset: int, matches_max: int) -> Looked:
        """Look at the messages themselves."""

        def ask() -> list[StoredRun]:
            if offset < index.start:
                raise KeyError(offset)  # deleted meanwhile
            return list(islice(index.runs(offset), RUNS_MAX))

        if not (runs := await warmed(self._worker, ask)):
            return Looked(index.end, [])  # a repair has dropped what stood there
        read = Window(self._context.store.journal).read
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._worker, look_for, find.wanted, read, runs, offset, matches_max)
