"""Reading without a group, a registration or a trace: one partition to its end, or all there is of a topic (spec 8.12).

The caller's thread fetches. A partition whose first messages are deleted is read from what is left; the ancestor's
browser leaves such a partition out.
"""

import time
from collections.abc import Callable, Iterator

from meta_client.calls import checked_value, wait_result
from meta_client.connections import CONNECT_TIMEOUT_S
from meta_client.consumer.batch import ReceivedMessage, decode_batch
from meta_client.consumer.config import FETCH_BYTES
from meta_client.consumer.fetch_request import FetchRequest
from meta_client.consumer.plan import plan_routes
from meta_client.errors import BrokerAway, NothingToRead
from meta_client.opaques import next_opaque
from meta_client.protocol.answers import parse_offset
from meta_client.protocol.errors import Moved, NotFound
from meta_client.protocol.requests import OFFSET_END, Get, OffsetQuery
from meta_client.transport import Transports
from zk.broker_url import BrokerUrl
from zk.cluster import read_brokers, read_topic, subscribable_partitions
from zk.nodes import Partition
from zk.paths import TopicKind
from zk.session import ZooKeeperSession

GROUP = "metaq-browser"  # what brokers' statistics show; nothing is registered or stored under it
FETCH_TIMEOUT_S = 10.0
REST_S = 0.2


Sleep = Callable[[float], object]


def browse(
    session: ZooKeeperSession, connections: Transports, topic: str, sleep: Sleep = time.sleep
) -> Iterator[ReceivedMessage]:
    """Every message that *topic* holds when a partition's turn comes, partitions in the order of their numbers.

    Raises NothingToRead, BrokerAway, ConnectionLost, ReplyTimeout, RemoteError, InvalidMessage, ZooKeeperError.
    """
    partitions = subscribable_partitions(read_topic(session, TopicKind.SUB, topic))
    if not partitions:
        raise NothingToRead(f"read {topic}: no broker offers this topic: see `metaq topics`")
    for partition in sorted(partitions):
        url = plan_routes(read_brokers(session)).get(partition.broker_id)
        if (end := _end(connections, topic, partition, url)) is None:
            continue
        request = FetchRequest(topic, partition, 0, FETCH_BYTES, REST_S)
        yield from read_to_end(connections, request, url, GROUP, end, sleep)


def read_to_end(
    connections: Transports,
    request: FetchRequest,
    url: BrokerUrl | None,
    group: str,
    end: int | None = None,
    sleep: Sleep = time.sleep,
) -> Iterator[ReceivedMessage]:
    """The messages from where *request* stands on, until there are no more, or that begin before *end*; it stands
    behind them then.

    *url* is the partition's broker's, None if that is not up. Raises as browse, but for NothingToRead.
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
            sleep(request.rest_s)


def _fetch(connections: Transports, request: FetchRequest, url: BrokerUrl, group: str) -> bytes:
    connection = connections.get(url, CONNECT_TIMEOUT_S)
    get = Get(request.topic, group, request.partition.number, request.offset, request.bytes_max, next_opaque())
    what = f"get {request.topic}/{request.partition} at {request.offset} from {url}"
    return checked_value(connection.submit(get).wait(FETCH_TIMEOUT_S), what).body


def _end(connections: Transports, topic: str, partition: Partition, url: BrokerUrl | None) -> int | None:
    """Where the partition ends now; None if nothing was ever put there."""
    query = OffsetQuery(topic, GROUP, partition.number, OFFSET_END, next_opaque())
    connection = connections.get(_checked(topic, partition, url), CONNECT_TIMEOUT_S)
    try:
        answer = wait_result(connection.submit(query), FETCH_TIMEOUT_S, f"offset {topic}/{partition}")
    except NotFound:
        return None
    return parse_offset(answer.message)


def _checked(topic: str, partition: Partition, url: BrokerUrl | None) -> BrokerUrl:
    if url is None:
        raise BrokerAway(f"read {topic}/{partition}: its broker is not up: start it, or wait")
    return url
