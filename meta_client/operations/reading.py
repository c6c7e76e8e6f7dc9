"""Reads a topic, or part of it, for the command line, without registration or stored offsets."""

import logging
import time
from collections.abc import Callable, Collection, Iterator
from datetime import datetime
from typing import NamedTuple

from meta_client.client import Client
from meta_client.consumer.browsing import read_to_end
from meta_client.consumer.config import FETCH_BYTES
from meta_client.consumer.fetch_request import FetchRequest
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.consumer.position import EARLIEST, Position, milliseconds, offset_of
from meta_client.consumer.routing import plan_routes
from meta_client.errors import BrokerAway, ConnectionLost, NothingToRead, NotSupported, ReplyTimeout
from meta_client.operations.placement import brokers_of, partitions_of
from meta_client.operations.positions import GROUP, Positions, Range
from meta_client.operations.progress import Progress
from meta_client.operations.waiting import Waiting
from meta_client.protocol.errors import MetaError, RemoteError
from zk.tree.broker_url import BrokerUrl
from zk.tree.nodes import Partition, TopicPartition

REST_S = 0.2

_log = logging.getLogger(__name__)


def read_from(
    client: Client, topic: str, partition: Partition, url: BrokerUrl | None, offset: int, bytes_max: int = FETCH_BYTES
) -> Iterator[ReceivedMessage]:
    """Yield one partition's messages from *offset* to its end. Raises as `read_topic_messages`.

    *url* is its broker's, None if that is down; *bytes_max* is the size of a request.
    """
    return read_to_end(client.connections, FetchRequest(topic, partition, offset, bytes_max, REST_S), url, GROUP)


def read_partition(
    positions: Positions, key: TopicPartition, offset: int, bytes_max: int = FETCH_BYTES
) -> Iterator[ReceivedMessage]:
    """Do as read_from, at the broker that *positions* asks."""
    return read_from(positions.client, *key, positions.url(key[1]), offset, bytes_max)


def message_start(positions: Positions, key: TopicPartition, offset: int, found: Range) -> int:
    """Return the beginning of the message that holds *offset*, in a partition with the range *found*. Raises as
    `read_topic_messages`."""
    topic, partition = key
    if offset in (found.start, found.end):
        return offset
    last = begin = max(positions.run_start(topic, partition, offset), found.start)
    with Progress(f"reading {topic}/{partition}", "messages") as progress:
        for message in read_partition(positions, key, begin):
            if message.offset > offset:
                break
            last = message.offset
            progress.advance()
    return last


class Span(NamedTuple):
    start: Position = EARLIEST
    end: int | datetime | None = None  # exclusive; None: the end at the start of reading, or none if following
    partitions: Collection[Partition] = ()  # empty: all


class InsideMessage(MetaError):
    """The start is inside a message. Begin at the offset in the text."""


class _Reading(NamedTuple):
    request: FetchRequest
    end: int | None


def read_topic_messages(
    client: Client,
    topic: str,
    span: Span,
    *,
    follow: bool,
    total: Callable[[int], None] = lambda size: None,
    waiting: Waiting | None = None,
) -> Iterator[ReceivedMessage]:
    """Yield the messages of a topic in *span*, partition by partition; then end, or wait for more.

    *total* gets the number of bytes to read, unless following; *waiting* is called while following a topic that no
    broker offers. Raises NothingToRead, InsideMessage, InvalidMessage, NotSupported (times, at a broker without them),
    ZooKeeperError; and, unless following, BrokerAway, ConnectionLost, ReplyTimeout, RemoteError: following waits for
    the broker instead.
    """
    readings: dict[Partition, _Reading] = {}
    is_first = True
    while True:
        offered = _partitions(client, topic, span, may_lack=follow)
        if waiting is not None:
            waiting.update(is_offered=bool(offered))
        new = [partition for partition in offered if partition not in readings]
        # Partitions created while following are read from their beginning.
        readings |= _begin(client, topic, new, span if is_first else Span(), follow=follow)
        if is_first and not follow:
            total(sum((it.end or 0) - it.request.offset for it in readings.values()))
        is_first = False
        routes = plan_routes(brokers_of(client))
        for partition, (request, end) in sorted(readings.items()):
            try:
                yield from read_to_end(client.connections, request, routes.get(partition.broker_id), GROUP, end)
            except (BrokerAway, ConnectionLost, ReplyTimeout, RemoteError) as error:
                if not follow:
                    raise
                log = _log.debug if request.has_error else _log.warning
                log("waiting for the broker: %s", error)
                request.has_error = True
        if not follow:
            return
        time.sleep(REST_S)


def _partitions(client: Client, topic: str, span: Span, *, may_lack: bool) -> list[Partition]:
    """Return the partitions to read. Raises NothingToRead."""
    offered = partitions_of(client, topic)
    if not offered and not may_lack:
        raise NothingToRead(f"read {topic}: no broker offers this topic: see `metaq topics`")
    if not span.partitions:
        return offered
    if not may_lack and (absent := sorted(set(span.partitions) - set(offered))):
        raise NothingToRead(f"read {topic}: there is no partition {', '.join(map(str, absent))}: see `metaq offsets`")
    return [partition for partition in offered if partition in span.partitions]


def _begin(
    client: Client, topic: str, partitions: Collection[Partition], span: Span, *, follow: bool
) -> dict[Partition, _Reading]:
    """Look up the ranges of the partitions. Raises BrokerAway, NotSupported."""
    positions = Positions(client)
    keys = [(topic, partition) for partition in partitions]
    starts: dict[TopicPartition, int | None] = dict.fromkeys(keys, offset_of(span.start))
    ends: dict[TopicPartition, int | None] = dict.fromkeys(keys, span.end if isinstance(span.end, int) else None)
    if isinstance(span.start, datetime):
        starts |= _at(positions, keys, span.start)
    if isinstance(span.end, datetime):
        ends |= _at(positions, keys, span.end)
    if isinstance(span.start, int):
        _check_start(positions, keys, span.start)
    if not follow:
        ranges = _known(keys, positions.ranges(keys))
        starts = {key: min(max(starts[key] or 0, ranges[key].start), ranges[key].end) for key in keys}
        ends = {key: min(end if (end := ends[key]) is not None else ranges[key].end, ranges[key].end) for key in keys}
    return {
        key[1]: _Reading(
            FetchRequest(*key, start if (start := starts[key]) is not None else 0, FETCH_BYTES, REST_S), ends[key]
        )
        for key in keys
    }


def _check_start(positions: Positions, keys: Collection[TopicPartition], start: int) -> None:
    """Raise InsideMessage unless a message begins at *start*: reading there would report a broken message."""
    for key, found in positions.ranges(keys).items():
        if not found.start < start < found.end:
            continue  # reading begins at the nearest end
        if (begin := message_start(positions, key, start, found)) != start:
            raise InsideMessage(f"{start} is inside of a message of {key[0]}/{key[1]}: {begin} is where that begins")


def _at(positions: Positions, keys: Collection[TopicPartition], moment: datetime) -> dict[TopicPartition, int]:
    """Return the offsets at a time. Raises BrokerAway, NotSupported."""
    found: dict[TopicPartition, int] = {}
    for key, place in _known(keys, positions.ranges(keys, milliseconds(moment))).items():
        if place.at is None:
            raise NotSupported(f"the broker of {key[0]}/{key[1]} knows nothing of times: it is no metaq broker")
        found[key] = place.at
    return found


def _known(keys: Collection[TopicPartition], ranges: dict[TopicPartition, Range]) -> dict[TopicPartition, Range]:
    """Return *ranges* if all *keys* are in it. Raises BrokerAway."""
    if missing := sorted(set(keys) - ranges.keys()):
        names = ", ".join(f"{topic}/{partition}" for topic, partition in missing)
        raise BrokerAway(f"read {names}: the broker is not up, or does not answer: start it, or wait")
    return ranges
