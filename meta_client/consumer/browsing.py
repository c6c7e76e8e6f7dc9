"""Reading without a group or registration: one partition to its end, or a whole topic (spec 8.12).

The caller's thread fetches. A partition whose first messages are deleted is read from the first one left; the
ancestor's browser skips such a partition.
"""

import time
from collections.abc import Callable, Iterator

from meta_client.consumer.config import FETCH_BYTES
from meta_client.consumer.fetch_request import FetchRequest
from meta_client.consumer.messages.batch import decode_batch
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.consumer.routing import plan_routes
from meta_client.errors import BrokerAway, NothingToRead
from meta_client.net.calls import checked_broker, checked_value, wait_result
from meta_client.net.connections import CONNECT_TIMEOUT_S
from meta_client.net.opaques import next_opaque
from meta_client.net.transport import Transports
from meta_client.protocol.answers import parse_offset
from meta_client.protocol.errors import Moved, NotFound
from meta_client.protocol.requests import OFFSET_END, Body, Get, OffsetQuery
from zk.brokers.cluster import read_brokers, read_topic, subscribable_partitions
from zk.session.session import ZooKeeperSession
from zk.tree.broker_url import BrokerUrl
from zk.tree.nodes import Partition
from zk.tree.paths import TopicKind

GROUP = "metaq-browser"  # shown in brokers' statistics; nothing is registered or stored under it
FETCH_TIMEOUT_S = 10.0
BACKOFF_S = 0.2


Sleep = Callable[[float], object]


def browse(
    session: ZooKeeperSession, connections: Transports, topic: str, sleep: Sleep = time.sleep
) -> Iterator[ReceivedMessage]:
    """Yield every message of *topic*, each partition up to its end when its turn comes, in the order of partitions.

    Raises NothingToRead, BrokerAway, ConnectionLost, ReplyTimeout, RemoteError, InvalidMessage, ZooKeeperError.
    """
    partitions = subscribable_partitions(read_topic(session, TopicKind.SUB, topic))
    if not partitions:
        raise NothingToRead(f"read {topic}: no broker offers this topic: see `metaq topics`")
    for partition in sorted(partitions):
        url = plan_routes(read_brokers(session)).get(partition.broker_id)
        if (end := _end_offset(connections, topic, partition, url)) is None:
            continue
        request = FetchRequest(topic, partition, 0, FETCH_BYTES, BACKOFF_S)
        yield from read_to_end(connections, request, url, GROUP, end, sleep)


def read_to_end(
    connections: Transports,
    request: FetchRequest,
    url: BrokerUrl | None,
    group: str,
    end: int | None = None,
    sleep: Sleep = time.sleep,
) -> Iterator[ReceivedMessage]:
    """Yield the messages from *request*'s offset until there are no more, or those that begin before *end*; *request*
    is advanced past them.

    *url*: the partition's broker, None if it is not up. Raises as browse, except NothingToRead.
    """
    checked = _checked(request.topic, request.partition, url)
    request.is_at_end = False
    while not request.is_at_end and (end is None or request.offset < end):
        try:
            body = _fetch(connections, request, checked, group)
        except Moved as error:
            request.moved(error.offset)
            continue
        except NotFound:
            request.found_nothing(is_at_end=True)
            continue
        batch, broken = decode_batch(request.topic, request.partition, request.offset, body)
        if batch is not None:
            yield from batch.messages if end is None else (it for it in batch.messages if it.offset < end)
            request.delivered(batch.next_offset)
        elif broken is not None:
            raise broken
        else:
            request.cut_off(body)
            sleep(request.backoff_s)


def _fetch(connections: Transports, request: FetchRequest, url: BrokerUrl, group: str) -> Body:
    connection = connections.get(url, CONNECT_TIMEOUT_S)
    checked_broker(connection, connection.capabilities(FETCH_TIMEOUT_S), request.partition.broker_id)
    get = Get(request.topic, group, request.partition.number, request.offset, request.bytes_max, next_opaque())
    what = f"get {request.topic}/{request.partition} at {request.offset} from {url}"
    return checked_value(connection.submit(get).wait(FETCH_TIMEOUT_S), what).body


def _end_offset(connections: Transports, topic: str, partition: Partition, url: BrokerUrl | None) -> int | None:
    """Return the end offset of the partition; None if it has never had a message."""
    query = OffsetQuery(topic, GROUP, partition.number, OFFSET_END, next_opaque())
    connection = connections.get(_checked(topic, partition, url), CONNECT_TIMEOUT_S)
    checked_broker(connection, connection.capabilities(FETCH_TIMEOUT_S), partition.broker_id)
    try:
        answer = wait_result(connection.submit(query), FETCH_TIMEOUT_S, f"offset {topic}/{partition}")
    except NotFound:
        return None
    return parse_offset(answer.message)


def _checked(topic: str, partition: Partition, url: BrokerUrl | None) -> BrokerUrl:
    if url is None:
        raise BrokerAway(f"read {topic}/{partition}: its broker is not up: start it, or wait")
    return url
