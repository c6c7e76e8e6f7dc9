"""Reading a topic for the command line: all of it without a trace, or as a member of a group that stores how far the
user has seen.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from meta_client.calls import checked_value
from meta_client.client import Client
from meta_client.connections import CONNECT_TIMEOUT_S
from meta_client.consumer.batch import Batch, ReceivedMessage, decode_batch
from meta_client.consumer.config import FETCH_BYTES, ConsumerConfig
from meta_client.consumer.fetch_request import FetchRequest
from meta_client.consumer.offsets import OffsetEntry, ZooKeeperOffsetStore
from meta_client.consumer.plan import plan_routes
from meta_client.errors import ConnectionLost, ReplyTimeout
from meta_client.opaques import next_opaque
from meta_client.protocol.errors import MetaError, Moved, NotFound, RemoteError
from meta_client.protocol.requests import Get
from zk.broker_url import BrokerUrl
from zk.cluster import read_brokers, read_topic, subscribable_partitions
from zk.nodes import Partition
from zk.paths import TopicKind

GROUP = "metaq-cli"  # what brokers' statistics show; nothing is registered or stored under it
FETCH_TIMEOUT_S = 10.0
REST_S = 0.2

_log = logging.getLogger(__name__)

Show = Callable[[ReceivedMessage], None]


class NothingToRead(MetaError):
    """The topic has no partitions. Correct its name, or start a broker that has it."""


class BrokerAway(MetaError):
    """The broker of a partition is not up, nor a slave of it. Start it, or wait."""


def read_from(
    client: Client, topic: str, partition: Partition, url: BrokerUrl | None, offset: int, bytes_max: int = FETCH_BYTES
) -> Iterator[ReceivedMessage]:
    """The messages of one partition from *offset* on, until there are no more. Raises as `read_topic_messages`.

    *url* is its broker's, None if that is not up; *bytes_max* is what is asked for at a time.
    """
    return _read_to_end(client, FetchRequest(topic, partition, offset, bytes_max, REST_S), url)


def read_topic_messages(client: Client, topic: str, start: int, *, follow: bool) -> Iterator[ReceivedMessage]:
    """Every message of every partition from *start* on, a partition after the other; then end, or wait for more.

    Raises NothingToRead, InvalidMessage, ZooKeeperError; and, unless it follows, BrokerAway, ConnectionLost,
    ReplyTimeout, RemoteError: who follows waits until the broker is back.
    """
    requests: dict[Partition, FetchRequest] = {}
    while True:
        partitions = subscribable_partitions(read_topic(client.session, TopicKind.SUB, topic))
        if not partitions and not follow:
            raise NothingToRead(f"read {topic}: no broker offers this topic: see `metaq topics`")
        for partition in partitions:
            if partition not in requests:
                requests[partition] = FetchRequest(topic, partition, start, FETCH_BYTES, REST_S)
        routes = plan_routes(read_brokers(client.session))
        for request in sorted(requests.values(), key=lambda request: request.partition):
            try:
                yield from _read_to_end(client, request, routes.get(request.partition.broker_id))
            except (BrokerAway, ConnectionLost, ReplyTimeout, RemoteError) as error:
                if not follow:
                    raise
                log = _log.debug if request.is_troubled else _log.warning
                log("waiting for the broker: %s", error)
                request.is_troubled = True
        if not follow:
            return
        time.sleep(REST_S)


def _read_to_end(client: Client, request: FetchRequest, url: BrokerUrl | None) -> Iterator[ReceivedMessage]:
    if url is None:
        raise BrokerAway(f"read {request.topic}/{request.partition}: its broker is not up: start it, or wait")
    request.is_at_end = False
    while not request.is_at_end:
        try:
            body = _fetch(client, request, url)
        except Moved as error:
            request.moved(error.offset)
            continue
        except NotFound:
            request.found_nothing(is_at_end=True)
            continue
        batch, broken = decode_batch(request.topic, request.partition, request.offset, body)
        if batch is not None:
            yield from batch.messages
            request.delivered(batch.next_offset)
        elif broken is not None:
            raise broken
        else:
            request.cut_off(body)
            time.sleep(request.rest_s)


def _fetch(client: Client, request: FetchRequest, url: BrokerUrl) -> bytes:
    connection = client.connections.get(url, CONNECT_TIMEOUT_S)
    get = Get(request.topic, GROUP, request.partition.number, request.offset, request.bytes_max, next_opaque())
    what = f"get {request.topic}/{request.partition} at {request.offset} from {url}"
    return checked_value(connection.submit(get).wait(FETCH_TIMEOUT_S), what).body


class ShownOffsets:
    """An OffsetStore in ZooKeeper that knows what was shown: a batch may be shown in part, and only that counts."""

    def __init__(self, client: Client, group: str) -> None:
        self._store = ZooKeeperOffsetStore(client.session, group)
        self._shown: dict[tuple[str, Partition], OffsetEntry] = {}  # runners write, each its own partitions

    def load(self, topic: str, partition: Partition) -> int | None:
        return self._store.load(topic, partition)

    def commit(self, entries: Sequence[OffsetEntry]) -> None:
        shown = [(e, entry) for e in entries if (entry := self._shown.get((e.topic, e.partition))) is not None]
        self._store.commit([entry._replace(claimed=e.claimed, is_reset=e.is_reset) for e, entry in shown])

    def note(self, message: ReceivedMessage, next_offset: int) -> None:
        """*message* was shown; what follows it begins at *next_offset*."""
        key = message.topic, message.partition
        self._shown[key] = OffsetEntry(*key, next_offset, message.message_id)


class GroupReading:
    """Reads as a member of a group until *count* messages were shown, or, unless it follows, all there were."""

    def __init__(self, client: Client, topic: str, group: str, start: int, show: Show, count: int | None) -> None:
        self._offsets = ShownOffsets(client, group)
        self._show = show
        self._left = count
        self._lock = threading.Lock()  # runners take turns to show
        self._is_done = threading.Event()
        self._failure: BaseException | None = None
        self._consumer = client.consumer(group, self._offsets, config=ConsumerConfig(start=start))
        self._consumer.subscribe(topic, self._on_batch)

    def run(self, *, follow: bool) -> None:
        """Raises what showing raised, such as a BrokenPipeError, and ZooKeeperError."""
        with self._consumer:
            while not self._is_done.wait(REST_S):
                if not follow and self._consumer.is_caught_up():
                    break
        if self._failure is not None:
            raise self._failure

    def _on_batch(self, batch: Batch) -> None:
        following = [message.offset for message in batch.messages[1:]] + [batch.next_offset]
        with self._lock:
            try:
                for message, next_offset in zip(batch.messages, following, strict=True):
                    if self._is_done.is_set():
                        return
                    self._show(message)
                    self._offsets.note(message, next_offset)
                    if self._left is not None:
                        self._left -= 1
                    if self._left == 0:
                        self._is_done.set()
            except OSError as error:  # the reader of our output went away; run() raises it on its thread
                self._failure = error
                self._is_done.set()
