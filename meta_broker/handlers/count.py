"""count: tells how many messages a partition holds from an offset on (extension, PROTOCOL.md).

Index entries have counts, so that only the run which the offset lies inside of is looked into, by a thread.
"""

import functools
import struct
from typing import Final

from journal.errors import StorageFailed
from journal.records.record import PartitionName
from meta_broker.handlers.context import Context, Peer
from meta_broker.handlers.get import unknown_partition, visible_index
from meta_broker.handlers.message_reader import MessageReader
from meta_broker.store.cold_read import ColdRead
from meta_broker.store.index_file import IndexCold
from meta_broker.store.partition_index import JournalSlice, StoredExtent
from meta_client.protocol.answers import Counted, format_counted
from meta_client.protocol.encoder import encode_result
from meta_client.protocol.messages import HEADER_BYTES
from meta_client.protocol.requests import Count
from meta_client.protocol.status import Status

_LENGTH: Final = struct.Struct(">i")


class CountHandler:
    """Answers counts. Only acknowledged messages are counted. Loop thread only."""

    def __init__(self, context: Context, reading: MessageReader) -> None:
        self._context = context
        self._reading = reading

    def handle(self, count: Count, peer: Peer) -> None:
        self._reading.answer(count, peer, functools.partial(self._look_up, {}))

    def _look_up(self, below: dict[StoredExtent, int], count: Count) -> bytes:
        """Look up the answer; *below*: messages of fronts of runs, as an earlier look-up had them counted. Raises as
        MessageReader.index_at, IndexDamaged, IndexCold, ArchiveCold, StorageFailed."""
        name = PartitionName(count.topic, count.partition)
        index = visible_index(self._context, name)
        if index is None:
            if not self._context.topics.offers(*name):
                return unknown_partition(count)
            return _encode_counted(count, Counted(0, 0, 0, 0))
        offset = min(max(count.offset, self._reading.start_of(name, index)), index.end)
        if (found := self._reading.index_at(name, index, offset)) is None:
            return _encode_counted(count, Counted(offset, offset, index.end, 0))
        messages, next_offset, front = found.count(offset)
        if front is not None:
            if front not in below:
                store = self._context.store
                read = ColdRead(store.tier or store.journal, [JournalSlice(front.lsn, front.bytes)])
                raise IndexCold(functools.partial(_count_front, read, front, below))
            messages -= below[front]
        return _encode_counted(count, Counted(offset, next_offset, index.end, messages))


def _count_front(read: ColdRead, front: StoredExtent, below: dict[StoredExtent, int]) -> None:
    """Count into *below* the messages that begin in *front*, which *read* reads. Blocks on the disk; any thread. Raises
    StorageFailed."""
    data, at, messages = read.run(), 0, 0
    while at < len(data) and messages < front.messages:
        messages += 1
        length: int = _LENGTH.unpack_from(data, at)[0] if len(data) - at >= _LENGTH.size else len(data)
        if length < 0:
            raise StorageFailed(f"the message at LSN {front.lsn + at} has {length} bytes")
        at += HEADER_BYTES + length
    below[front] = messages


def _encode_counted(count: Count, counted: Counted) -> bytes:
    return encode_result(Status.SUCCESS, format_counted(counted), count.opaque)
