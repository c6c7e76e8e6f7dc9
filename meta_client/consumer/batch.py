"""What a consumer's listener gets: the messages of one fetch, of one partition, in order. Pure."""

from dataclasses import dataclass
from typing import NamedTuple

from meta_client.protocol.errors import InvalidMessage
from meta_client.protocol.messages import iter_frames
from zk.nodes import Partition


class ReceivedMessage(NamedTuple):  # the cheapest immutable thing to make, and one is made for every message
    """A message as it stands in its partition."""

    topic: str
    partition: Partition
    offset: int  # of its first byte; names the message for ever, unlike its id
    message_id: int
    flag: int
    attribute: str | None
    payload: bytes


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages of one partition in [offset, next_offset), one at least."""

    topic: str
    partition: Partition
    offset: int
    next_offset: int
    messages: list[ReceivedMessage]


def decode_batch(
    topic: str, partition: Partition, offset: int, body: bytes
) -> tuple[Batch | None, InvalidMessage | None]:
    """The whole messages at the front of a fetch's answer, None if there is none, and the broken one after them."""
    messages: list[ReceivedMessage] = []
    next_offset = offset
    broken: InvalidMessage | None = None
    try:
        for start, next_offset, message in iter_frames(body, offset):  # noqa: B007 - the last one is used below
            messages.append(
                ReceivedMessage(topic, partition, start, message.id, message.flag, message.attribute, message.payload)
            )
    except InvalidMessage as error:
        broken = error
    return (Batch(topic, partition, offset, next_offset, messages) if messages else None), broken
