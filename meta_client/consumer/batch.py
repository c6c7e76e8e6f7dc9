"""Batches for a consumer's listener: the messages of one fetch of one partition, in order. Pure."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import repeat
from operator import and_
from struct import Struct
from typing import Final, NamedTuple, Self, cast

from journal.checksum import crc32
from meta_client.protocol.checksum import CRC31_MASK
from meta_client.protocol.errors import InvalidMessage
from meta_client.protocol.messages import DATA_BYTES_MAX, HEADER, HEADER_BYTES, iter_frames
from zk.tree.nodes import Partition

# Neighbours of one length are decoded together, by loops that run in C, in a third of the time. Try so many first, and
# twice as many next while they are alike.
ALIKE_MIN: Final = 8
ALIKE_MAX: Final = 4096
_LENGTH: Final = Struct(">i")
# Same as the class with eight arguments, without a Python frame per message.
_new_tuple: Final = cast("Callable[[type[ReceivedMessage], Iterable[object]], ReceivedMessage]", tuple.__new__)


class ReceivedMessage(NamedTuple):  # the cheapest immutable type: one is made per message
    """A message with its place in a partition."""

    topic: str
    partition: Partition
    offset: int  # of its first byte; identifies the message forever, unlike its id
    message_id: int
    flag: int  # as stored; the payload is decompressed regardless
    attribute: str | None
    payload: bytes
    next_offset: int  # of the message after it


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages of one partition in [offset, next_offset), one at least."""

    topic: str
    partition: Partition
    offset: int
    next_offset: int
    messages: list[ReceivedMessage]

    @classmethod
    def of(cls, message: ReceivedMessage) -> Self:
        """Return a batch of one message."""
        return cls(message.topic, message.partition, message.offset, message.next_offset, [message])


def decode_batch(
    topic: str, partition: Partition, offset: int, body: bytes
) -> tuple[Batch | None, InvalidMessage | None]:
    """Decode the whole messages at the front of a fetch's answer, None if there are none, and the error of the broken
    message after them."""
    messages: list[ReceivedMessage] = []
    position, count = 0, ALIKE_MIN
    broken: InvalidMessage | None = None
    try:
        while position + HEADER_BYTES <= len(body):
            if alike := _decode_alike(topic, partition, offset, body, position, count):
                messages += alike
                position += len(alike) * (HEADER_BYTES + len(alike[0].payload))
                count = min(2 * count, ALIKE_MAX)
                continue
            count = ALIKE_MIN
            for _ in range(count):
                if (decoded := _decode_one(topic, partition, offset, body, position)) is None:
                    return _batch(topic, partition, offset, position, messages), None
                message, position = decoded
                messages.append(message)
    except InvalidMessage as error:
        broken = error
    return _batch(topic, partition, offset, position, messages), broken


def _batch(topic: str, partition: Partition, offset: int, size: int, messages: list[ReceivedMessage]) -> Batch | None:
    return Batch(topic, partition, offset, offset + size, messages) if messages else None


def _decode_one(
    topic: str, partition: Partition, offset: int, body: bytes, position: int
) -> tuple[ReceivedMessage, int] | None:
    """Decode the message at *position*; return it and the next position, None if it is cut off. Raises
    InvalidMessage."""
    data = position + HEADER_BYTES
    if data > len(body):
        return None
    length, checksum, message_id, flag = HEADER.unpack_from(body, position)
    payload = body[data : data + length]
    is_plain = len(payload) == length <= DATA_BYTES_MAX and not flag
    if is_plain and crc32(payload) & CRC31_MASK == checksum:
        following = data + length
        fields = topic, partition, offset + position, message_id, flag, None, payload, offset + following
        return _new_tuple(ReceivedMessage, fields), following
    with memoryview(body)[position:] as view:  # not plain
        for start, next_offset, it in iter_frames(view, offset + position):
            return ReceivedMessage(
                topic, partition, start, it.id, it.flag, it.attribute, it.payload, next_offset
            ), next_offset - offset
    return None


def _decode_alike(
    topic: str, partition: Partition, offset: int, body: bytes, position: int, count: int
) -> list[ReceivedMessage]:
    """Decode the next *count* messages, or as many as there are, if all have one length and are valid and plain.

    Returns none of them otherwise: they are decoded one by one then.
    """
    (length,) = _LENGTH.unpack_from(body, position)
    size = HEADER_BYTES + length
    if not 0 <= length <= DATA_BYTES_MAX or (count := min(count, (len(body) - position) // size)) < ALIKE_MIN:
        return []
    end = position + count * size
    second, last = body[position + size : position + size + 4], body[end - size : end - size + 4]
    if not second == last == body[position : position + 4]:
        return []  # a cheap check first: it finds most differences
    with memoryview(body)[position:end] as view:
        lengths, checksums, ids, flags, payloads = zip(*_frame(length).iter_unpack(view), strict=True)
    if any(flags) or lengths.count(length) != count:
        return []
    if tuple(map(and_, map(crc32, payloads), repeat(CRC31_MASK))) != checksums:
        return []
    fields = zip(
        *(repeat(topic), repeat(partition), range(offset + position, offset + end, size)),
        *(ids, flags, repeat(None), payloads, range(offset + position + size, offset + end + size, size)),
        strict=False,  # repeat() is endless
    )
    return list(map(_new_tuple, repeat(ReceivedMessage), fields))


@lru_cache(maxsize=256)
def _frame(length: int) -> Struct:
    return Struct(f">iiqi{length}s")
