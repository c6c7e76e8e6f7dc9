"""What a consumer's own journal says: a message that its listener refused, and what became of it (record REFUSED).

Pure. Only in the journal of a store of refused messages, never in a broker's.
"""

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Final

import msgspec

HEAD: Final = struct.Struct("<QQQiIIBB")  # offset, next offset, time, broker, partition, attempts, state, topic bytes
REASON_BYTES_MAX: Final = 1024


class RefusedState(IntEnum):
    """What became of a refused message."""

    WAITING = 1  # it is stored here: body
    TRIED = 2  # it was refused again, and waits still
    DELIVERED = 3  # it was taken after all
    DROPPED = 4  # somebody gave it up


class Refused(msgspec.Struct, frozen=True):
    """A message by its place, which names it for ever. Its frame is the body of the record that says WAITING."""

    topic: str
    broker_id: int
    partition: int
    offset: int
    next_offset: int
    time_ms: int  # when it was refused first
    attempts: int  # how often it was offered since
    state: RefusedState
    reason: str  # why it was refused last


def encode_refused(record: Refused, topic: bytes) -> bytes:
    """The meta part. A reason that is too long is cut."""
    head = HEAD.pack(
        record.offset,
        record.next_offset,
        record.time_ms,
        record.broker_id,
        record.partition,
        record.attempts,
        record.state,
        len(topic),
    )
    reason = record.reason.encode(errors="replace")[:REASON_BYTES_MAX].decode(errors="ignore").encode()
    return head + topic + reason


def decode_refused(meta: bytes, topic_of: Callable[[bytes], str]) -> Refused:
    """Raises ValueError, struct.error for a meta part that can't be."""
    offset, next_offset, time_ms, broker_id, partition, attempts, state, topic_bytes = HEAD.unpack_from(meta)
    end = HEAD.size + topic_bytes
    topic, reason = meta[HEAD.size : end], meta[end:]
    if len(topic) != topic_bytes or len(reason) > REASON_BYTES_MAX or next_offset <= offset:
        raise ValueError(f"a refused message in [{offset}, {next_offset}) with {len(meta)} bytes of meta")
    return Refused(
        topic_of(topic),
        broker_id,
        partition,
        offset,
        next_offset,
        time_ms,
        attempts,
        RefusedState(state),
        reason.decode(),
    )


def describe_refused(record: Refused) -> str:
    """For people: which message, and what became of it."""
    return (
        f"{record.topic}/{record.broker_id}-{record.partition}@{record.offset} {record.state.name.lower()} "
        f"attempts={record.attempts}: {record.reason}"
    )
