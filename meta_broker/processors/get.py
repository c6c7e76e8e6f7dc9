"""get and offset: read a partition from an offset, or find one to read from (spec 1.5.4, 1.5.5, 4.9)."""

from journal.records import PartitionName
from meta_broker.processors.context import Context, Peer
from meta_broker.store.partition_index import PartitionIndex
from meta_client.protocol.encoder import encode_result, value_line
from meta_client.protocol.requests import OFFSET_END, Get, OffsetQuery
from meta_client.protocol.status import Status


class GetProcessor:
    """Answers gets and offset queries of a broker. Only acknowledged messages can be seen."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def handle(self, get: Get, peer: Peer) -> None:
        context = self._context
        context.counters.gets += 1
        index = self._index(get.topic, get.partition)
        if index is None:
            context.counters.gets_missed += 1
            peer.send(_unknown_partition(get))
        elif get.bytes_max <= 0:
            text = b"Bad request,invalid max size:%d" % get.bytes_max
            peer.send(encode_result(Status.BAD_REQUEST, text, get.opaque))
        elif index.start <= get.offset < index.end:
            bytes_max = min(get.bytes_max, context.config.broker.transfer_bytes_max)
            size, buffers = context.store.read(index, get.offset, bytes_max)
            line = value_line(size, get.opaque)
            peer.send_buffers([line, *buffers], len(line) + size)
        else:
            context.counters.gets_missed += 1
            peer.send(self._outside(get, index))

    def _outside(self, get: Get, index: PartitionIndex) -> bytes:
        if get.offset < index.start:
            return encode_result(Status.MOVED, b"%d" % index.start, get.opaque)
        wants_end = self._context.config.broker.tell_end_offset or get.offset == OFFSET_END
        if get.offset > index.end and wants_end:
            return encode_result(Status.MOVED, b"%d" % index.end, get.opaque)
        return encode_result(Status.NOT_FOUND, b"Could not find message at position %d" % get.offset, get.opaque)

    def handle_offset(self, query: OffsetQuery, peer: Peer) -> None:
        self._context.counters.offsets += 1
        index = self._index(query.topic, query.partition)
        if index is None:
            peer.send(_unknown_partition(query))
        else:
            peer.send(encode_result(Status.SUCCESS, b"%d" % index.nearest(query.offset), query.opaque))

    def _index(self, topic: str, partition: int) -> PartitionIndex | None:
        """The partition's index, if anything was ever published there; reading never makes one."""
        return self._context.store.indexes.by_name.get(PartitionName(topic, partition))


def _unknown_partition(request: Get | OffsetQuery) -> bytes:
    text = f"The topic `{request.topic}` in partition `{request.partition}` is not exists"
    return encode_result(Status.NOT_FOUND, text.encode(), request.opaque)
