"""Queries to brokers: partition ranges, offsets by time, and put times of messages.

Partitions are asked about concurrently. Genuine brokers are asked with their own verbs; they have no times.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from meta_client.client import Client
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.consumer.routing import plan_routes
from meta_client.errors import NotConnected
from meta_client.metadata.topology import no_master
from meta_client.net.calls import checked_broker, checked_result, checked_value, wait_result
from meta_client.net.connections import CONNECT_TIMEOUT_S
from meta_client.net.opaques import next_opaque
from meta_client.net.pending_reply import PendingReply
from meta_client.net.transport import Transport
from meta_client.operations.placement import brokers_of
from meta_client.operations.text import tell
from meta_client.protocol.answers import PartitionOffsets, parse_counted, parse_offset, parse_offset_range
from meta_client.protocol.errors import InvalidMessage, MetaError, Moved, NotFound, RemoteError
from meta_client.protocol.id_layout import broker_of, time_ms_of
from meta_client.protocol.messages import HEADER, HEADER_BYTES, walk_frames
from meta_client.protocol.requests import (
    OFFSET_END,
    Body,
    Count,
    Fetch,
    Get,
    OffsetQuery,
    Offsets,
    Request,
    ResetGroup,
)
from zk.tree.broker_url import BrokerUrl
from zk.tree.nodes import Partition, TopicPartition

ANSWER_TIMEOUT_S: Final = 5.0
GROUP: Final = "metaq-cli"  # shown in brokers' statistics; never registered or stored
AT_ONCE_MAX: Final = 256  # requests before waiting for the first answer
PROBE_BYTES: Final = 4096  # of a message, to check that there is one


class Range(NamedTuple):
    """A partition holds [start, end). *at*: first offset put at the requested time or later; None without a time, or if
    the broker has no times."""

    start: int
    end: int
    at: int | None


def warn(text: str) -> None:
    tell(f"warning: {text}")


class Positions:
    """Positions from the running brokers. A broker that does not answer is told once, and its partitions are missing
    from the results."""

    def __init__(self, client: Client, tell: Callable[[str], None] = warn) -> None:
        """Look up the brokers. Raises ZooKeeperError."""
        self.client = client
        self._tell = tell
        brokers = brokers_of(client)
        self._routes = plan_routes(brokers)
        self._slaves = {broker_id for broker_id in self._routes if brokers[broker_id].master is None}
        self._silent: set[int] = set()
        self.missing: set[TopicPartition] = set()  # partitions that their broker does not have

    def url(self, partition: Partition) -> BrokerUrl | None:
        """Return the broker to read a partition from; None while it is down."""
        return self._routes.get(partition.broker_id)

    def is_slave(self, partition: Partition) -> bool:
        """Return True if a slave answers for the partition, whose end may be before its master's."""
        return partition.broker_id in self._slaves

    def ranges(self, keys: Collection[TopicPartition], time_ms: int | None = None) -> dict[TopicPartition, Range]:
        """Return the partitions' ranges, and their offsets at *time_ms*."""

        def requests(connection: Transport, key: TopicPartition) -> Sequence[Request]:
            topic, partition = key
            if "offsets" in connection.capabilities(ANSWER_TIMEOUT_S).extensions:
                return [Offsets(topic, partition.number, time_ms or 0, next_opaque())]
            places = (0, OFFSET_END)
            return [OffsetQuery(topic, GROUP, partition.number, place, next_opaque()) for place in places]

        found: dict[TopicPartition, Range] = {}
        for key, replies in self._asked(keys, requests):
            try:
                texts = [wait_result(reply, ANSWER_TIMEOUT_S, f"offsets of {_name(key)}").message for reply in replies]
                if len(texts) == 1:
                    start, end, at = parse_offset_range(texts[0])
                    found[key] = Range(start, end, None if time_ms is None else at)
                else:
                    start, end = map(parse_offset, texts)
                    found[key] = Range(start, end, None)
            except NotFound:
                found[key] = Range(0, 0, None if time_ms is None else 0)  # no message was ever put there
                self.missing.add(key)
            except MetaError as error:
                self._fell_silent(key, error)
        return found

    def put_times(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the put time of the first message at or after each offset, in Unix milliseconds. Partitions without
        such a message, or with ids that contain no time, are missing."""
        found: dict[TopicPartition, int] = {}
        wanted = dict(offsets)
        while wanted:
            wanted = self._put_times(wanted, found)
        return found

    def _put_times(
        self, wanted: Mapping[TopicPartition, int], found: dict[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Add to *found*; return the offsets to ask again, where retention deleted the message."""
        moved: dict[TopicPartition, int] = {}
        for key, replies in self._asked(wanted, lambda connection, key: _first_bytes(connection, key, wanted[key])):
            try:
                for reply in replies:
                    body = checked_value(reply.wait(ANSWER_TIMEOUT_S), f"get {_name(key)} at {wanted[key]}").body
                    if (put_ms := _put_ms(body, key[1].broker_id)) is not None:
                        found[key] = put_ms
            except Moved as error:
                if error.offset > wanted[key]:
                    moved[key] = error.offset
            except NotFound:
                pass  # no such message yet
            except MetaError as error:
                self._fell_silent(key, error)
        return moved

    def messages(
        self, offsets: Mapping[TopicPartition, int], timeout_s: float = ANSWER_TIMEOUT_S
    ) -> dict[TopicPartition, int]:
        """Return how many messages there are from each offset on. Partitions whose broker can't count, begin later by
        now, or take longer than *timeout_s*, are missing."""
        deadline = time.monotonic() + timeout_s
        counts = dict.fromkeys(offsets, 0)
        found: dict[TopicPartition, int] = {}
        wanted = dict(offsets)
        while wanted and time.monotonic() < deadline:
            wanted = self._count(wanted, counts)
            found |= {key: counts[key] for key in counts.keys() - wanted.keys() - found.keys()}
        return found

    def _count(
        self, wanted: Mapping[TopicPartition, int], counts: dict[TopicPartition, int]
    ) -> dict[TopicPartition, int]:
        """Add to *counts*, and remove those that nobody can tell; return the offsets to go on from."""
        left: dict[TopicPartition, int] = {}
        told: set[TopicPartition] = set()
        for key, replies in self._asked(wanted, lambda connection, key: _count(connection, key, wanted[key])):
            try:
                for reply in replies:
                    answer = wait_result(reply, ANSWER_TIMEOUT_S, f"count {_name(key)}").message
                    start, after, end, messages = parse_counted(answer)
                    if start == wanted[key] and (start < after or after == end):  # else it would never end
                        told.add(key)
                        counts[key] += messages
                        if after < end:
                            left[key] = after
            except RemoteError:
                pass  # unknown of this partition: its topic was deleted meanwhile, or its index is being rebuilt
            except MetaError as error:
                self._fell_silent(key, error)
        for key in wanted.keys() - told:
            del counts[key]
        return left

    def tell_reset(self, group: str, offsets: Mapping[TopicPartition, tuple[int | None, int]]) -> None:
        """Have brokers put into their audit log that the group's stored offsets are set, from each first to its second.
        Skips brokers that keep no record of it. Raises MetaError if one refuses, or does not answer; others may have
        their lines then."""

        def request(connection: Transport, key: TopicPartition) -> Sequence[Request]:
            if "reset" not in connection.capabilities(ANSWER_TIMEOUT_S).extensions:
                return []
            before, after = offsets[key]
            return [ResetGroup(key[0], group, key[1].number, -1 if before is None else before, after, next_opaque())]

        left = set(offsets)
        for key, replies in self._asked(offsets, request):
            left.discard(key)
            for reply in replies:
                wait_result(reply, ANSWER_TIMEOUT_S, f"reset of group {group} at {_name(key)}, for the audit log")
        if left:
            names = ", ".join(map(_name, sorted(left)))
            raise NotConnected(f"the brokers of {names} can't note the reset in their audit logs: nothing was reset")

    def tell_epochs(self, group: str, epochs: Mapping[TopicPartition, int]) -> None:
        """Announce new epochs of partitions to brokers, which then reject waiting fetches of former owners. Skips
        brokers without epochs."""

        def request(connection: Transport, key: TopicPartition) -> Sequence[Request]:
            if not {"fetch", "owner"} <= connection.capabilities(ANSWER_TIMEOUT_S).extensions:
                return []
            return [Fetch(key[0], group, key[1].number, 0, HEADER_BYTES, 1, 0, next_opaque(), epochs[key])]

        for key, replies in self._asked(epochs, request):
            try:
                for reply in replies:
                    reply.wait(ANSWER_TIMEOUT_S)  # any answer will do, even an error
            except MetaError as error:
                self._fell_silent(key, error)

    def run_start(self, topic: str, partition: Partition, offset: int) -> int:
        """Return the nearest message boundary at or before *offset* that the broker can name. Raises MetaError."""
        if (url := self.url(partition)) is None:
            raise NotConnected(f"no broker with id {partition.broker_id} is up: start it, or wait")
        query = OffsetQuery(topic, GROUP, partition.number, offset, next_opaque())
        what = f"offset {_name((topic, partition))} at {offset}"
        reply = _connect(self.client, url, partition.broker_id).submit(query)
        return parse_offset(checked_result(reply.wait(ANSWER_TIMEOUT_S), what).message)

    def _asked(
        self,
        keys: Collection[TopicPartition],
        requests: Callable[[Transport, TopicPartition], Sequence[Request]],
    ) -> Iterator[tuple[TopicPartition, list[PendingReply]]]:
        """Each partition whose broker could be asked, with what it was asked."""
        ordered = sorted(keys)
        for first in range(0, len(ordered), AT_ONCE_MAX):
            asked = []
            for key in ordered[first : first + AT_ONCE_MAX]:
                if key[1].broker_id in self._silent:
                    continue
                if (url := self.url(key[1])) is None:
                    self._fell_silent(key, no_master(key[1].broker_id))
                    continue
                try:
                    connection = _connect(self.client, url, key[1].broker_id)
                    asked.append((key, [connection.submit(request) for request in requests(connection, key)]))
                except MetaError as error:
                    self._fell_silent(key, error)
            for key, replies in asked:
                if key[1].broker_id not in self._silent:  # by now
                    yield key, replies

    def _fell_silent(self, key: TopicPartition, error: MetaError) -> None:
        broker_id = key[1].broker_id
        if broker_id not in self._silent:
            self._silent.add(broker_id)
            self._tell(f"the ends of broker {broker_id}'s partitions are missing: {error}")


class PutTimes:
    """Put times of messages, from the ids of metaq brokers. Any thread."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._is_metaq: dict[int, bool] = {}  # by broker id; asked once each

    def of(self, message: ReceivedMessage) -> int | None:
        """Return a message's put time in Unix milliseconds; None if its id contains none, or the broker can't be
        asked."""
        broker_id = message.partition.broker_id
        if (is_metaq := self._is_metaq.get(broker_id)) is None:
            is_metaq = self._is_metaq[broker_id] = self._speaks_metaq(broker_id)
        return time_ms_of(message.message_id) if is_metaq else None

    def _speaks_metaq(self, broker_id: int) -> bool:
        url = plan_routes(brokers_of(self._client)).get(broker_id)
        if url is None:
            return False
        connection = _connect(self._client, url, broker_id)
        return connection.capabilities(ANSWER_TIMEOUT_S).metaq_version is not None


def _connect(client: Client, url: BrokerUrl, broker_id: int) -> Transport:
    connection = client.connections.get(url, CONNECT_TIMEOUT_S)
    return checked_broker(connection, connection.capabilities(ANSWER_TIMEOUT_S), broker_id)


def ask_range(connection: Transport, topic: str, partition: Partition, time_ms: int) -> PartitionOffsets | None:
    """Return a partition's start, end, and offset at *time_ms*; None if the broker has no times. Raises MetaError."""
    if "offsets" not in connection.capabilities(ANSWER_TIMEOUT_S).extensions:
        return None
    reply = connection.submit(Offsets(topic, partition.number, time_ms, next_opaque()))
    return parse_offset_range(wait_result(reply, ANSWER_TIMEOUT_S, f"offsets {topic}/{partition}").message)


def _first_bytes(connection: Transport, key: TopicPartition, offset: int) -> Sequence[Request]:
    """Return the request for the message's beginning; none if its id contains no time."""
    if connection.capabilities(ANSWER_TIMEOUT_S).metaq_version is None:
        return []
    return [Get(key[0], GROUP, key[1].number, offset, PROBE_BYTES, next_opaque())]


def _put_ms(body: Body, broker_id: int) -> int | None:
    """Return when the message that *body* begins with was put; None: *body* begins inside of one, as far as can be
    told."""
    if len(body) < HEADER_BYTES:
        return None
    length, _, message_id, _ = HEADER.unpack_from(body)
    if message_id < 0 or broker_of(message_id) != broker_id:
        return None
    try:
        is_whole = next(walk_frames(body), None) is not None  # with the right checksum
    except InvalidMessage:
        return None
    is_cut = len(body) == PROBE_BYTES and length > PROBE_BYTES - HEADER_BYTES
    return time_ms_of(message_id) if is_whole or is_cut else None


def _count(connection: Transport, key: TopicPartition, offset: int) -> Sequence[Request]:
    if "count" not in connection.capabilities(ANSWER_TIMEOUT_S).extensions:
        return []
    return [Count(key[0], key[1].number, offset, next_opaque())]


def _name(key: TopicPartition) -> str:
    return f"{key[0]}/{key[1]}"
