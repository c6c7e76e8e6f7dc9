"""Putting one message: choice of the partition, encoding, and the answer (spec 7.3, 7.4)."""

import random
import time
from collections.abc import Collection
from dataclasses import dataclass

from journal.records.producer_state import BatchSequence
from journal.records.xid import BranchKey
from meta_client.errors import (
    ConnectionLost,
    Destination,
    NoBroker,
    NoPartition,
    TooManyRequests,
)
from meta_client.metadata.topology import Directory, TopicView
from meta_client.net.calls import checked_result
from meta_client.net.opaques import next_opaque
from meta_client.net.pending_reply import PendingReply
from meta_client.net.transport import Transport
from meta_client.producer.results import SendResult, put_failure
from meta_client.protocol.answers import parse_put_place
from meta_client.protocol.checksum import crc31
from meta_client.protocol.compression import Codec
from meta_client.protocol.errors import LocalProtocolError, MetaError
from meta_client.protocol.messages import DATA_BYTES_MAX, encode_body, encode_frame
from meta_client.protocol.requests import MultiPut, Put
from meta_client.protocol.responses import Result
from meta_client.tracing import TRACING
from zk.errors import ZooKeeperUnavailable
from zk.tree.nodes import Partition

STICKY_S = 0.01
REFUSED_S = 1.0
COUNTER_MASK = 0x7FFF_FFFF  # the ancestor's round robin counts in a signed int32 and drops the sign


@dataclass(frozen=True, slots=True)
class Compression:
    """Compression of a producer: of payloads of *bytes_min* bytes or more, if the topic allows it and it saves
    space."""

    codec: Codec
    bytes_min: int


def encode_message(
    topic: str, payload: bytes, attribute: str | None, compression: Compression | None = None
) -> tuple[int, bytes]:
    """Return the flag and the body of a message; the payload is copied unless it is bytes.

    Raises LocalProtocolError for a message that no consumer could take, TypeError for a payload that is not bytes or an
    attribute that is not text.
    """
    if TRACING.hooks is not None:
        attribute = TRACING.hooks.attribute(topic, attribute)
    whole = payload if type(payload) is bytes else payload_bytes(payload)
    if len(whole) > DATA_BYTES_MAX:  # also if compressed: consumers decompress no more
        raise message_too_long(topic, len(whole))
    if compression is not None:
        flag, body = encode_body(whole, attribute, compression.codec, compression.bytes_min)
    elif attribute is not None:
        flag, body = encode_body(whole, attribute)
    else:
        return 0, whole
    if len(body) > DATA_BYTES_MAX:
        raise message_too_long(topic, len(body))
    return flag, body


def payload_bytes(payload: object) -> bytes:
    """Return a copy of a bytes-like object: bytearray, memoryview, an array. Raises TypeError for anything else."""
    try:
        return bytes(memoryview(payload))  # type: ignore[arg-type]  # raises TypeError if not
    except TypeError:
        raise TypeError(f"a payload is bytes, not {type(payload).__name__}: encode it") from None


def message_too_long(topic: str, size: int) -> LocalProtocolError:
    """Return the error for a message of *size* bytes."""
    return LocalProtocolError(
        f"send {topic}: a message of {size} bytes is longer than {DATA_BYTES_MAX}, "
        "which consumers refuse: send it in parts, or a reference to it"
    )


@dataclass(slots=True, eq=False)
class Outgoing:
    """A message as encode_message has encoded it, for partition *wanted*, or for one of *choice*."""

    view: TopicView
    flag: int
    body: bytes
    wanted: Partition | None
    choice: "RoundRobin"

    def submit(
        self,
        connection: Transport,
        partition: Partition,
        key: BranchKey | None,
        sequence: BatchSequence | None = None,
    ) -> "PendingSend":
        """Send it to *partition*, as part of branch *key* if given. With *sequence* it may be sent again, which needs a
        broker with `mput`. Raises NoBroker: nothing was sent."""
        put: Put | MultiPut
        topic = self.view.topic
        if sequence is None:
            put = Put(topic, partition.number, self.flag, crc31(self.body), key, next_opaque(), self.body)
        else:
            frame = encode_frame(0, self.flag, self.body)
            put = MultiPut(topic, partition.number, 1, crc31(frame), sequence, key, next_opaque(), frame)
        try:
            return PendingSend(connection.submit(put), topic, partition, connection)
        except (ConnectionLost, TooManyRequests) as error:
            raise NoBroker(str(error), Destination(topic, partition, connection.url)) from error


class PendingSend:
    """A put whose answer is due. Any thread may wait for it."""

    __slots__ = ("_broker", "_partition", "_reply", "_topic")

    def __init__(self, reply: PendingReply, topic: str, partition: Partition, connection: Transport) -> None:
        self._reply = reply
        self._topic = topic
        self._partition = partition
        self._broker = connection.url

    @property
    def is_done(self) -> bool:
        """True if `wait` would return or raise at once."""
        return self._reply.is_done

    def wait(self, timeout_s: float) -> SendResult:
        """Wait for the answer and return the message's place. Raises SendRefused (PartitionClosed) if not stored;
        NotReplicated, SendUnknown."""
        try:
            response = self._reply.wait(timeout_s)
            if not (isinstance(response, Result) and response.is_success):
                response = checked_result(response, f"put {self._topic}/{self._partition}")
            place = parse_put_place(response.message)
        except MetaError as error:
            raise put_failure(error, Destination(self._topic, self._partition, self._broker)) from error
        return SendResult(place.message_id, Partition(self._partition.broker_id, place.partition), place.offset)


class RoundRobin:
    """Chooses partitions in turn, from a random one on: producers that send one message each reach all of them. Any
    thread: two that choose at the same time may choose the same."""

    def __init__(self) -> None:
        self._count = _first_count()
        self._refusing: dict[int, float] = {}  # by broker id: avoid it until then; replaced as a whole

    def avoid(self, broker_id: int) -> None:
        """Leave a broker alone for REFUSED_S, if there is another: it takes no writes for now."""
        now = time.monotonic()
        still = {other: until for other, until in self._refusing.items() if until > now}
        self._refusing = still | {broker_id: now + REFUSED_S}

    def choose(self, view: TopicView, wanted: Partition | None = None, broker_id: int | None = None) -> Partition:
        """Return *wanted* if it is available, else the next partition, of broker *broker_id* only if given.

        Raises NoPartition, NoBroker.
        """
        available = view.available if broker_id is None else view.on_broker(broker_id)
        if wanted is not None:
            return _checked(view, wanted, available, broker_id)
        if not available:
            raise _nowhere(view, broker_id)
        return self._next(available)

    def choose_allowing_down(
        self, view: TopicView, wanted: Partition | None = None, avoided: Collection[int] = ()
    ) -> Partition:
        """Choose as `choose`, for callers that can wait: without another partition, accept one whose broker is down or
        *avoided*, or has refused a moment ago. Raises NoPartition."""
        if wanted is not None:
            is_away = wanted.broker_id not in view.urls  # its partitions are known once it is back
            if wanted in view.known or (is_away and view.known):
                return wanted
            return _checked(view, wanted, view.available, None)
        elsewhere = view.available
        if self._refusing:
            now = time.monotonic()
            avoided = {*avoided, *(broker_id for broker_id, until in self._refusing.items() if until > now)}
        if avoided:
            elsewhere = tuple(partition for partition in elsewhere if partition.broker_id not in avoided)
        if not (among := elsewhere or view.available or view.known):
            raise _nowhere(view, None)
        return self._next(among)

    def _next(self, among: tuple[Partition, ...]) -> Partition:
        self._count = (self._count + 1) & COUNTER_MASK
        return among[self._count % len(among)]


def _first_count() -> int:
    return random.randrange(COUNTER_MASK)  # noqa: S311 - no secret


class StickyRoundRobin(RoundRobin):
    """A RoundRobin that keeps a partition for STICKY_S: messages sent singly in quick succession reach a consumer in
    one answer instead of many."""

    def __init__(self) -> None:
        super().__init__()
        self._moves_at = 0.0

    def _next(self, among: tuple[Partition, ...]) -> Partition:
        if (now := time.monotonic()) >= self._moves_at:
            self._moves_at = now + STICKY_S
            return super()._next(among)
        return among[self._count % len(among)]


def available_in(view: TopicView) -> tuple[Partition, ...]:
    """Return the partitions available now, one at least. Raises NoPartition, NoBroker."""
    if not view.available:
        raise _nowhere(view, None)
    return view.available


def view_of(directory: Directory, topic: str, timeout_s: float) -> TopicView:
    """Return the view of *topic*. Raises NoBroker if ZooKeeper can't be asked, and zk's InvalidName."""
    try:
        return directory.view(topic, timeout_s)
    except ZooKeeperUnavailable as error:
        raise NoBroker(str(error), Destination(topic)) from error


def parse_partition(text: str | Partition) -> Partition:
    """Parse a partition as callers give it. Raises ValueError."""
    partition = text if isinstance(text, Partition) else Partition.maybe_parse(str(text))
    if partition is None:
        raise ValueError(f"{text!r} is no partition: give <broker id>-<number>, as in 0-3")
    return partition


def _checked(view: TopicView, wanted: Partition, available: tuple[Partition, ...], broker_id: int | None) -> Partition:
    if wanted in available:
        return wanted
    where = Destination(view.topic, wanted)
    if wanted not in view.known:
        others = len(view.partitions)
        raise NoPartition(f"the topic has no such partition, but {others} others: see `metaq topics`", where)
    if wanted.broker_id not in view.urls:
        raise NoBroker(f"broker {wanted.broker_id} is not up: start it, or wait", where)
    if wanted not in view.partitions:
        raise NoPartition("its broker does not offer it any more: send to another one, see `metaq topics`", where)
    raise NoPartition(f"the transaction is on broker {broker_id}: send to that broker's partitions", where)


def _nowhere(view: TopicView, broker_id: int | None) -> NoPartition | NoBroker:
    where = Destination(view.topic, broker=broker_id)
    if not view.partitions:
        return NoPartition("no broker offers this topic: start one that does, or correct the name", where)
    if not view.available:
        return NoBroker("no broker of this topic is up: start one, or wait", where)
    if any(partition.broker_id == broker_id for partition in view.partitions):
        return NoBroker("the broker with the transaction is not up: start it, or wait", where)
    return NoPartition("the broker with the transaction does not have this topic: name all topics at its begin", where)
