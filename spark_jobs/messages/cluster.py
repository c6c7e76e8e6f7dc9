"""Partitions that a cluster offers to a query: where each is read, begins and ends. The driver asks.

Without ZooKeeper, brokers are asked themselves; then a topic must be named.
"""

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from meta_client.client import Client
from meta_client.consumer.routing import Routes
from meta_client.errors import BrokerAway, ConnectionLost, NothingToRead, ReplyTimeout
from meta_client.net.calls import checked_broker, wait_result
from meta_client.net.connections import CONNECT_TIMEOUT_S
from meta_client.net.opaques import next_opaque
from meta_client.net.pending_reply import PendingReply
from meta_client.protocol.answers import PartitionOffsets, parse_offset, parse_offset_range
from meta_client.protocol.errors import MetaError, NotFound
from meta_client.protocol.requests import OFFSET_END, OffsetQuery, Offsets
from spark_jobs.messages.batches import PartitionId
from spark_jobs.messages.options import ClusterAddress, InvalidOption
from spark_jobs.messages.selection import Selection
from zk.brokers.cluster import (
    BrokerEntries,
    BrokerEntry,
    read_brokers,
    read_topic,
    read_topic_names,
    subscribable_partitions,
)
from zk.tree.broker_url import BrokerUrl
from zk.tree.nodes import Partition
from zk.tree.paths import TopicKind

GROUP: Final = "metaq-spark"  # shown in brokers' statistics; nothing is registered or stored under it
ANSWER_TIMEOUT_S: Final = 10.0
AT_ONCE_MAX: Final = 256  # requests before waiting for the first answer
_CONNECT_TIMEOUT_MS: Final = 15_000

_log = logging.getLogger(__name__)


class OfferedPartition(NamedTuple):
    """A partition, the broker that tells its offsets, and all of its replicas that are up."""

    topic: str
    partition: Partition
    url: BrokerUrl
    replicas: BrokerEntry

    @property
    def name(self) -> PartitionId:
        return self.topic, str(self.partition)


@dataclass(frozen=True, slots=True)
class Cut:
    """Begin and end of partitions at one moment, and the offset of a time, if one was asked for."""

    places: Mapping[PartitionId, OfferedPartition]
    ranges: Mapping[PartitionId, PartitionOffsets]


class Cluster:
    """A connection to a cluster. One thread."""

    def __init__(self, brokers: ClusterAddress) -> None:
        """Connect. Raises ZooKeeperError, NotConnected, InvalidUrl."""
        security = brokers.security._asdict()
        if brokers.zookeeper is None:
            self._client = Client.direct(*brokers.addresses, **security)
        else:
            self._client = Client(brokers.zookeeper, brokers.root, connect_timeout_ms=_CONNECT_TIMEOUT_MS, **security)
        self._is_direct = brokers.zookeeper is None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection. Idempotent."""
        self._client.close()

    def cut(self, selection: Selection, time_ms: int = 0, *, may_lack: bool = False) -> Cut:
        """Return where the selected partitions begin and end now, and where each reaches *time_ms*. *may_lack*: leave
        out partitions whose broker is not up.

        Raises NothingToRead for a named topic that no broker offers, BrokerAway, MetaError, ZooKeeperError.
        """
        places = {place.name: place for place in self._places(selection, may_lack=may_lack)}
        ranges = self._ranges(places.values(), time_ms, may_lack=may_lack)
        return Cut({name: places[name] for name in ranges}, ranges)

    def is_up(self, topic: str, broker_id: int) -> bool:
        """Return True if the broker answers for its partitions. Raises MetaError, ZooKeeperError."""
        return broker_id in self._offered(topic)[2]

    def _places(self, selection: Selection, *, may_lack: bool) -> Iterable[OfferedPartition]:
        for topic in self._topics(selection):
            partitions, routes, brokers = self._offered(topic)
            if not partitions and selection.topics is not None and not may_lack:
                raise NothingToRead(f"read {topic}: no broker offers this topic: see `metaq topics`")
            for partition in partitions:
                if selection.span(topic, str(partition)) is None:
                    continue
                if (route := routes.choose(partition, None)) is not None:
                    yield OfferedPartition(topic, partition, route.url, brokers[partition.broker_id])
                elif not may_lack:
                    raise BrokerAway(f"read {topic}/{partition}: its broker is not up: start it, or wait")

    def _topics(self, selection: Selection) -> Collection[str]:
        if selection.topics is not None:
            return sorted(topic for topic in selection.topics if selection.wants_topic(topic))
        if self._is_direct:
            raise InvalidOption('option "subscribePattern" needs "zookeeper": brokers do not list their topics')
        return [topic for topic in read_topic_names(self._client.session) if selection.wants_topic(topic)]

    def _offered(self, topic: str) -> tuple[list[Partition], Routes, BrokerEntries]:
        partitions: list[Partition]
        brokers: BrokerEntries
        if self._is_direct:
            view = self._client.topology.view(topic, ANSWER_TIMEOUT_S)
            partitions = list(view.partitions)
            brokers = {broker_id: BrokerEntry(url) for broker_id, url in view.urls.items()}
        else:
            session = self._client.session
            partitions = subscribable_partitions(read_topic(session, TopicKind.SUB, topic))
            brokers = read_brokers(session)
        routes = Routes()
        routes.set_brokers(brokers)
        return partitions, routes, brokers

    def _ranges(
        self, places: Collection[OfferedPartition], time_ms: int, *, may_lack: bool
    ) -> dict[PartitionId, PartitionOffsets]:
        found: dict[PartitionId, PartitionOffsets] = {}
        ordered = sorted(places, key=lambda place: (place.topic, place.partition))
        for first in range(0, len(ordered), AT_ONCE_MAX):
            asked: list[tuple[OfferedPartition, list[PendingReply]]] = []
            for place in ordered[first : first + AT_ONCE_MAX]:
                try:
                    asked.append((place, self._request_offsets(place, time_ms, is_patient=not may_lack)))
                except ConnectionLost as error:
                    _refuse_or_log(error, may_lack=may_lack)
            for place, replies in asked:
                try:
                    found[place.name] = _range(place, replies)
                except (ConnectionLost, ReplyTimeout) as error:
                    _refuse_or_log(error, may_lack=may_lack)
        return found

    def _request_offsets(self, place: OfferedPartition, time_ms: int, *, is_patient: bool) -> list[PendingReply]:
        connection = self._client.consumer_connections.get(place.url, CONNECT_TIMEOUT_S, patient=is_patient)
        checked_broker(connection, connection.capabilities(ANSWER_TIMEOUT_S), place.partition.broker_id)
        topic, number = place.topic, place.partition.number
        if "offsets" in connection.capabilities(ANSWER_TIMEOUT_S).extensions:
            return [connection.submit(Offsets(topic, number, time_ms, next_opaque()))]
        if time_ms:
            raise InvalidOption(f"the broker of {topic}/{place.partition} knows no times: it is no metaq broker")
        return [connection.submit(OffsetQuery(topic, GROUP, number, end, next_opaque())) for end in (0, OFFSET_END)]


def _range(place: OfferedPartition, replies: list[PendingReply]) -> PartitionOffsets:
    what = f"offsets of {place.topic}/{place.partition}"
    try:
        texts = [wait_result(reply, ANSWER_TIMEOUT_S, what).message for reply in replies]
    except NotFound:
        return PartitionOffsets(0, 0, 0)  # no message was ever put there
    if len(texts) == 1:
        return parse_offset_range(texts[0])
    start, end = map(parse_offset, texts)
    return PartitionOffsets(start, end, start)


def _refuse_or_log(error: MetaError, *, may_lack: bool) -> None:
    if not may_lack:
        raise error
    _log.warning("partitions of a broker are left out: %s", error)
