"""get, offset and offsets: read a partition from an offset, or find one to read from (spec 1.5.4, 1.5.5, 4.9)."""

import functools

from journal.records import PartitionName
from meta_broker.processors.context import Context, Peer
from meta_broker.processors.filtering import Filtering
from meta_broker.processors.reading import Reading
from meta_broker.processors.realtime import Statistic
from meta_broker.store.partition_index import PartitionIndex
from meta_client.protocol.answers import OffsetRange, format_offset_range
from meta_client.protocol.encoder import encode_result
from meta_client.protocol.requests import OFFSET_END, Fetch, Find, Get, OffsetQuery, Offsets
from meta_client.protocol.status import Status


class GetProcessor:
    """Answers gets and offset queries of a broker. Only acknowledged messages can be seen.

    A request is counted once it has its answer: what looks into an index may raise IndexCold, and be asked once more.
    """

    def __init__(self, context: Context, reading: Reading, filtering: Filtering) -> None:
        self._context = context
        self._reading = reading
        self._filtering = filtering

    def handle(self, get: Get, peer: Peer) -> None:
        context = self._context
        index = visible_index(context, PartitionName(get.topic, get.partition))
        if context.topics.is_closed(get.topic, get.partition):
            missed(context, get)
            peer.send(closed(context, get))
        elif index is None:
            missed(context, get)
            peer.send(unknown_partition(get))
        elif get.bytes_max <= 0:
            peer.send(bad_size(get))
        elif index.start <= get.offset < index.end:
            bytes_max = min(get.bytes_max, context.config.broker.transfer_bytes_max)
            if (filter_name := self._filtering.name_for(get)) is not None:
                anew = functools.partial(self.handle, get, peer)
                self._filtering.submit(filter_name, get, index, bytes_max, peer, anew)
            elif not self._reading.answer(get, index, bytes_max, peer):
                answer = in_gap(index, get)
                missed(context, get)
                peer.send(answer)
        else:
            missed(context, get)
            peer.send(outside(context, get, index.start, index.end))
        context.counters.gets += 1
        context.count(Statistic.GET, get.topic)

    def handle_offset(self, query: OffsetQuery, peer: Peer) -> None:
        index = visible_index(self._context, PartitionName(query.topic, query.partition))
        if index is None:
            peer.send(unknown_partition(query))
        else:
            peer.send(encode_result(Status.SUCCESS, b"%d" % index.nearest(query.offset), query.opaque))
        self._count(query)

    def handle_offsets(self, query: Offsets, peer: Peer) -> None:
        index = visible_index(self._context, PartitionName(query.topic, query.partition))
        if index is not None:
            found = OffsetRange(index.start, index.end, index.at_time(query.time_ms))
        elif self._context.topics.offers(query.topic, query.partition):
            found = OffsetRange(0, 0, 0)
        else:
            self._count(query)
            peer.send(unknown_partition(query))
            return
        self._count(query)
        peer.send(encode_result(Status.SUCCESS, format_offset_range(found), query.opaque))

    def _count(self, query: OffsetQuery | Offsets) -> None:
        self._context.counters.offsets += 1
        self._context.count(Statistic.OFFSET, query.topic)


def visible_index(context: Context, name: PartitionName) -> PartitionIndex | None:
    """The partition's index, if anything was ever published there; reading never makes one.

    What is left of a deleted topic is the offset at which it would go on; nobody is told of that.
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
    """The answer for a partition that an operator closed."""
    text = b"Partition[%d-%d] has been closed" % (context.config.broker_id, request.partition)
    return encode_result(Status.FORBIDDEN, text, request.opaque)


def outside(context: Context, request: Get | Fetch, start: int, end: int) -> bytes:
    """The answer to an offset at which nothing is stored in a partition that holds [*start*, *end*)."""
    if request.offset < start:
        return encode_result(Status.MOVED, b"%d" % start, request.opaque)
    # A slave's end says nothing about its master's: who is further on there has read what is to come here.
    tells_end = context.config.broker.tell_end_offset and context.slave is None
    wants_end = tells_end or request.offset == OFFSET_END
    if request.offset > end and wants_end:
        return encode_result(Status.MOVED, b"%d" % end, request.opaque)
    if isinstance(request, Fetch) and context.slave is None and request.offset > end:
        stored = context.store.source.state.end_of(PartitionName(request.topic, request.partition))
        if request.offset > stored:  # else it was acknowledged by a former master, and waits for slaves here
            return encode_result(Status.BEYOND_END, b"%d" % stored, request.opaque)
    return encode_result(Status.NOT_FOUND, b"Could not find message at position %d" % request.offset, request.opaque)


def in_gap(index: PartitionIndex, request: Get | Fetch) -> bytes:
    """The answer to an offset whose messages a repair of the journal dropped: where reading goes on.

    Raises IndexDamaged, IndexCold.
    """
    return encode_result(Status.MOVED, b"%d" % index.resumes(request.offset), request.opaque)


def bad_size(request: Get | Fetch) -> bytes:
    """The answer to a request for no bytes at all."""
    return encode_result(Status.BAD_REQUEST, b"Bad request,invalid max size:%d" % request.bytes_max, request.opaque)


def unknown_partition(request: Get | Fetch | Find | OffsetQuery | Offsets) -> bytes:
    """The answer for a partition that does not exist."""
    text = f"The topic `{request.topic}` in partition `{request.partition}` is not exists"
    return encode_result(Status.NOT_FOUND, text.encode(), request.opaque)
