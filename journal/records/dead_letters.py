"""Dead letters as records of a consumer's own journal (record REFUSED). Pure.

Only in the journal of a dead-letter store, never in a broker's.
"""

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Final

import msgspec

HEAD: Final = struct.Struct("<QQQiIIBB")  # offset, next offset, time, broker, partition, attempts, state, topic bytes
REASON_BYTES_MAX: Final = 1024


class DeadLetterState(IntEnum):
    """State of a dead letter."""

    WAITING = 1  # it is stored here: body
    TRIED = 2  # it was refused again, and still waits
    DELIVERED = 3  # a listener accepted it
    DROPPED = 4  # an operator or the policy dropped it


class DeadLetter(msgspec.Struct, frozen=True):
    """A refused message, identified by its position for good. Its frame is the body of the record with state
    WAITING."""

    topic: str
    broker_id: int
    partition: int
    offset: int
    next_offset: int
    time_ms: int  # when it was refused first
    attempts: int  # how often it was offered since
    state: DeadLetterState
    reason: str  # why it was refused last


def encode_dead_letter(record: DeadLetter, topic: bytes) -> bytes:
    """Return the meta part. Truncates a reason that is too long."""
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


def decode_dead_letter(meta: bytes, topic_of: Callable[[bytes], str]) -> DeadLetter:
    """Decode a meta part. Raises ValueError, struct.error if it is invalid."""
    offset, next_offset, time_ms, broker_id, partition, attempts, state, topic_bytes = HEAD.unpack_from(meta)
    end = HEAD.size + topic_bytes
    topic, reason = meta[HEAD.size : end], meta[end:]
    if len(topic) != topic_bytes or len(reason) > REASON_BYTES_MAX or next_offset <= offset:
        raise ValueError(f"a refused message in [{offset}, {next_offset}) with {len(meta)} bytes of meta")
    return DeadLetter(
        topic_of(topic),
        broker_id,
        partition,
        offset,
        next_offset,
        time_ms,
        attempts,
        DeadLetterState(state),
        reason.decode(),
    )


def describe_dead_letter(record: DeadLetter) -> str:
    """Format for people: the message and its state."""
    return (
        f"{record.topic}/{record.broker_id}-{record.partition}@{record.offset} {record.state.name.lower()} "
        f"attempts={record.attempts}: {record.reason}"
    )
