"""get, offset and offsets: read a partition from an offset, or look up offsets (spec 1.5.4, 1.5.5, 4.9)."""

from journal.records.record import PartitionName
from meta_broker.handlers.context import Context
from meta_broker.handlers.message_reader import MessageReader, ReadAnswer
from meta_broker.handlers.realtime import Statistic
from meta_broker.store.partition_index import PartitionIndex
from meta_client.protocol.answers import PartitionOffsets, format_offset_range
from meta_client.protocol.encoder import encode_result
from meta_client.protocol.requests import OFFSET_END, Count, Fetch, Find, Get, OffsetQuery, Offsets
from meta_client.protocol.status import Status


class LookUps:
    """Answers to gets and offset queries, as a MessageReader sends them. Only acknowledged messages are visible.

    Each counts its request at its end: it is repeated if it raises IndexCold or ArchiveCold.
    """

    def __init__(self, context: Context, reading: MessageReader) -> None:
        self._context = context
        self._reading = reading

    def get(self, get: Get) -> ReadAnswer:
        context = self._context
        name = PartitionName(get.topic, get.partition)
        index = visible_index(context, name)
        answer: ReadAnswer
        is_valid = True
        if context.topics.is_closed(get.topic, get.partition):
            answer = closed(context, get)
        elif index is None:
            answer = unknown_partition(get)
        elif get.bytes_max <= 0:
            answer, is_valid = bad_size(get), False
        elif (found := self._reading.index_at(name, index, get.offset)) is not None:
            answer = self._reading.messages(get, found, index)
        else:
            answer = outside(context, get, self._reading.start_of(name, index), index.end)
        if isinstance(answer, bytes) and is_valid:
            missed(context, get)
        context.counters.gets += 1
        context.count(Statistic.GET, get.topic)
        return answer

    def offset(self, query: OffsetQuery) -> ReadAnswer:
        name = PartitionName(query.topic, query.partition)
        index = visible_index(self._context, name)
        if index is None:
            answer = unknown_partition(query)
        else:
            nearest = (self._reading.index_at(name, index, query.offset) or index).nearest(query.offset)
            if nearest == index.start > query.offset:
                nearest = self._reading.start_of(name, index)
            answer = encode_result(Status.SUCCESS, b"%d" % nearest, query.opaque)
        self._count(query)
        return answer

    def offsets(self, query: Offsets) -> ReadAnswer:
        name = PartitionName(query.topic, query.partition)
        index = visible_index(self._context, name)
        if index is not None:
            start, at = self._reading.start_of(name, index), self._reading.at_time(name, index, query.time_ms)
            found = PartitionOffsets(start, index.end, at)
            answer = encode_result(Status.SUCCESS, format_offset_range(found), query.opaque)
        elif self._context.topics.offers(query.topic, query.partition):
            answer = encode_result(Status.SUCCESS, format_offset_range(PartitionOffsets(0, 0, 0)), query.opaque)
        else:
            answer = unknown_partition(query)
        self._count(query)
        return answer

    def _count(self, query: OffsetQuery | Offsets) -> None:
        self._context.counters.offsets += 1
        self._context.count(Statistic.OFFSET, query.topic)


def visible_index(context: Context, name: PartitionName) -> PartitionIndex | None:
    """Return the partition's index if anything was ever published there; reading never creates one.

    A deleted topic keeps only the offset at which it would continue, which is not visible.
    """
    index = context.store.indexes.by_name.get(name)
    if index is not None and index.start == index.end and not context.topics.offers(*name):
        return None
    return index


def missed(context: Context, request: Get | Fetch) -> None:
    """Count a request that got no messages."""
    context.counters.gets_missed += 1
    context.count(Statistic.GET_MISS, request.topic)


def closed(context: Context, request: Get | Fetch | Find) -> bytes:
    """Return the reply for a partition that an operator closed."""
    text = b"Partition[%d-%d] has been closed" % (context.config.broker_id, request.partition)
    return encode_result(Status.FORBIDDEN, text, request.opaque)


def outside(context: Context, request: Get | Fetch, start: int, end: int) -> bytes:
    """Return the reply for an offset outside the stored [*start*, *end*)."""
    if request.offset < start:
        return encode_result(Status.MOVED, b"%d" % start, request.opaque)
    # A slave's end may be below its master's: a reader beyond it has read what is still to arrive here.
    tells_end = context.config.broker.tell_end_offset and context.slave is None
    wants_end = tells_end or request.offset == OFFSET_END
    if request.offset > end and wants_end:
        return encode_result(Status.MOVED, b"%d" % end, request.opaque)
    if isinstance(request, Fetch) and context.slave is None and request.offset > end:
        stored = context.store.source.state.end_of(PartitionName(request.topic, request.partition))
        if request.offset > stored:  # else acknowledged by a former master, and waiting for slaves here
            return encode_result(Status.BEYOND_END, b"%d" % stored, request.opaque)
    return encode_result(Status.NOT_FOUND, b"Could not find message at position %d" % request.offset, request.opaque)


def bad_size(request: Get | Fetch) -> bytes:
    """Return the reply for a request for no bytes."""
    return encode_result(Status.BAD_REQUEST, b"Bad request,invalid max size:%d" % request.bytes_max, request.opaque)


def unknown_partition(request: Get | Fetch | Find | OffsetQuery | Offsets | Count) -> bytes:
    text = f"The topic `{request.topic}` in partition `{request.partition}` is not exists"
    return encode_result(Status.NOT_FOUND, text.encode(), request.opaque)
