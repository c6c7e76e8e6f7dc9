"""Codecs of node data and node names: broker children, partitions, topic JSON, offsets, URLs. Pure.

Nodes are written by other processes, so every reader checks them and raises MalformedNode.
Spec 6.2, 6.3.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Self

import msgspec

from zk.errors import MalformedNode
from zk.tree.broker_url import BrokerUrl, InvalidUrl

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
BROKER_ID_MAX = 2**31 - 1
NodeInt = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]  # in nodes of JSON
PARTITIONS_MAX = 65_536  # of one topic on one broker; readers list them all, so the number needs a limit
NO_MESSAGE_ID = -1  # the offset was set by hand or by a tool, not by consuming a message

_NUMBER = r"(0|[1-9][0-9]{0,9})"
_BROKER_NAME = re.compile(rf"{_NUMBER}-(?:m|s{_NUMBER})")
_PARTITION = re.compile(rf"{_NUMBER}-{_NUMBER}")
_INT64 = re.compile(r"-?[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class Node:
    """A node as read. *session_id* is 0 unless it is ephemeral; *version* counts its changes from 0."""

    data: bytes
    session_id: int
    version: int


@dataclass(frozen=True, slots=True, order=True)
class BrokerName:
    """A broker as a child below a topic: ``B-m`` for the master of broker id B, ``B-sS`` for its slave S."""

    broker_id: int
    slave_id: int | None = None

    def __str__(self) -> str:
        return f"{self.broker_id}-m" if self.slave_id is None else f"{self.broker_id}-s{self.slave_id}"

    @classmethod
    def maybe_parse(cls, name: str) -> Self | None:
        """Read a child's name; None for one that is no broker's (such a child is ignored, spec 6.6)."""
        if (match := _BROKER_NAME.fullmatch(name)) is None:
            return None
        broker_id, slave_id = int(match[1]), int(match[2]) if match[2] else None
        return cls(broker_id, slave_id) if max(broker_id, slave_id or 0) <= BROKER_ID_MAX else None


# A struct, because a client makes and looks up some with every message: its functions are C.
class Partition(msgspec.Struct, frozen=True, order=True):
    """Partition *number* (from 0) of a topic on broker *broker_id*, written ``B-p``. Orders numerically."""

    broker_id: int
    number: int

    def __str__(self) -> str:
        return f"{self.broker_id}-{self.number}"

    @classmethod
    def maybe_parse(cls, name: str) -> Self | None:
        """Read ``B-p``; None for anything else."""
        if (match := _PARTITION.fullmatch(name)) is None:
            return None
        broker_id, number = int(match[1]), int(match[2])
        return cls(broker_id, number) if max(broker_id, number) <= BROKER_ID_MAX else None


TopicPartition = tuple[str, Partition]


def string_order(text: object) -> bytes:
    """Return the sort key that all members of a consumer group share: Java's order, by UTF-16 code unit.

    In it ``0-10`` comes before ``0-2`` (spec 6.6, 9.8).
    """
    return str(text).encode("utf-16-be", "surrogatepass")


@dataclass(frozen=True, slots=True)
class TopicNode:
    """Number of partitions of a topic on one broker: data of topics-pub/T/* and topics-sub/T/*."""

    partitions: int
    broker: BrokerName

    def encode(self) -> bytes:
        """Return JSON with exactly these two properties: a Java peer rejects any other (spec 6.2)."""
        return f'{{"numParts":{self.partitions},"broker":"{self.broker}"}}'.encode()


class _TopicJson(msgspec.Struct):
    numParts: Annotated[int, msgspec.Meta(ge=0, le=PARTITIONS_MAX)]  # noqa: N815 - the property's name


_TOPIC_DECODER = msgspec.json.Decoder(_TopicJson)


def decode_topic_node(path: str, data: bytes, name: BrokerName) -> TopicNode:
    """Decode a topic node of broker *name*. Accepts properties in any order; ignores the broker property, which may be
    null, missing or wrong. Raises MalformedNode."""
    try:
        return TopicNode(_TOPIC_DECODER.decode(data).numParts, name)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        expected = f'{{"numParts":N,"broker":"{name}"}} with N up to {PARTITIONS_MAX}'
        raise MalformedNode(path, data, expected) from error


@dataclass(frozen=True, slots=True)
class OffsetNode:
    """Progress of a group in a partition: *offset* is the end of message *message_id*."""

    offset: int
    message_id: int = NO_MESSAGE_ID

    def encode(self) -> bytes:
        return f"{self.message_id}-{self.offset}".encode()


def decode_offset_node(path: str, data: bytes) -> OffsetNode:
    """Read ``<msgId>-<offset>``, split at the last dash because ids may be negative, or the plain ``<offset>``
    of clients before 1.4. Raises MalformedNode."""
    text = data.decode(errors="replace")
    dash = text.rfind("-")
    message_id, offset = (text[:dash], text[dash + 1 :]) if dash > 0 else (str(NO_MESSAGE_ID), text)
    if _INT64.fullmatch(message_id) and _INT64.fullmatch(offset):
        node = OffsetNode(int(offset), int(message_id))
        if 0 <= node.offset <= INT64_MAX and INT64_MIN <= node.message_id <= INT64_MAX:
            return node
    raise MalformedNode(path, data, "<message id>-<offset>")


def decode_broker_url(path: str, data: bytes) -> BrokerUrl | None:
    """Read a broker's URL; None for blank data, which means no broker (spec 6.6). Raises MalformedNode."""
    text = data.decode(errors="replace").strip()
    if not text:
        return None
    try:
        return BrokerUrl.parse(text)
    except InvalidUrl as error:
        raise MalformedNode(path, data, "meta://host:port") from error


def encode_topics(topics: Iterable[str]) -> bytes:
    """Return the data of a consumer's id node: its topics, joined by commas."""
    return ",".join(sorted(topics)).encode()


def decode_topics(path: str, data: bytes) -> frozenset[str]:
    """Read a consumer's id node. Raises MalformedNode when it is not text."""
    try:
        return frozenset(topic for part in data.decode().split(",") if (topic := part.strip()))
    except UnicodeDecodeError as error:
        raise MalformedNode(path, data, "topics joined by commas") from error
