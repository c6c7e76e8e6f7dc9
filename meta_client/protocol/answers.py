"""The result texts that a client parses, both ways (spec 1.4.4); all other texts are for display.

The parsers raise RemoteProtocolError: a broker that answers 200 with another text breaks the protocol.
"""

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import NamedTuple

from journal.records.xid import BranchKey, parse_key
from meta_client.protocol.errors import RemoteProtocolError
from meta_client.protocol.integers import INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, int32, int64
from meta_client.protocol.messages import HEADER_BYTES
from meta_client.protocol.status import Status
from meta_client.protocol.xa import XaCode

_QUOTED_MAX = 80
_INTEGER = rb"([+-][0-9]{1,19}|[0-9]{1,20})"  # as in integers.py; the range is checked later
_PUT_PLACE = re.compile(b" ".join([_INTEGER] * 3))


class PutPlace(NamedTuple):
    """Place of a put message. The offset is None (-1 on the wire) until its branch commits."""

    message_id: int
    partition: int
    offset: int | None


class PartitionOffsets(NamedTuple):
    """A partition holds [start, end); *at* is the first offset put at a given time or later."""

    start: int
    end: int
    at: int


def format_offset_range(found: PartitionOffsets) -> bytes:
    """The text of an offsets' 200."""
    return b"%d %d %d" % found


def parse_offset_range(message: bytes) -> PartitionOffsets:
    """Read the three numbers of an offsets' 200."""
    with _reading("an offsets' answer", message):
        start, end, at = map(int64, message.split(b" "))
        if not 0 <= start <= at <= end:
            raise ValueError("they are in no order")
    return PartitionOffsets(start, end, at)


class Counted(NamedTuple):
    """[start, next_offset) of a partition that ends at *end* hold *messages*: those that begin there."""

    start: int
    next_offset: int
    end: int
    messages: int


def format_counted(counted: Counted) -> bytes:
    """The text of a count's 200."""
    return b"%d %d %d %d" % counted


def parse_counted(message: bytes) -> Counted:
    """Read the four numbers of a count's 200."""
    with _reading("a count's answer", message):
        start, next_offset, end, messages = map(int64, message.split(b" "))
        if not 0 <= start <= next_offset <= end or not 0 <= messages <= next_offset - start:
            raise ValueError("they contradict each other")
    return Counted(start, next_offset, end, messages)


class CheckpointTaken(NamedTuple):
    """File checkpoint.<number> holds everything below *lsn*; *bytes_left* of journal a start would replay."""

    number: int
    lsn: int
    bytes_left: int


def format_checkpoint_taken(taken: CheckpointTaken) -> bytes:
    """The text of a checkpoint's 200."""
    return b"%d %d %d" % taken


def parse_checkpoint_taken(message: bytes) -> CheckpointTaken:
    """Read the text of a checkpoint's 200."""
    with _reading("a checkpoint's answer", message):
        number, lsn, bytes_left = map(int64, message.split(b" "))
        taken = CheckpointTaken(number, lsn, bytes_left)
        if taken.number < 1 or min(taken) < 0:
            raise ValueError("no checkpoint has such numbers")
    return taken


class FoundAt(NamedTuple):
    """A matching message: its offset, and its frame's length."""

    offset: int
    bytes: int


class Found(NamedTuple):
    """Result of a find that searched everything below *next_offset* of a partition that ends at *end*."""

    next_offset: int
    end: int
    matches: list[FoundAt]


def format_found(found: Found) -> bytes:
    """The text of a find's 200."""
    return b" ".join([b"%d %d" % found[:2], *(b"%d:%d" % match for match in found.matches)])


def parse_found(message: bytes) -> Found:
    """Read the text of a find's 200."""
    with _reading("a find's answer", message):
        next_offset, end, *words = message.split(b" ")
        pairs = [word.partition(b":") for word in words]
        found = Found(int64(next_offset), int64(end), [FoundAt(int64(at), int32(size)) for at, _, size in pairs])
        offsets = [match.offset for match in found.matches]
        if not 0 <= found.next_offset <= found.end or offsets != sorted(set(offsets)):
            raise ValueError("its offsets are in no order")
        if any(match.offset < 0 or match.bytes < HEADER_BYTES for match in found.matches):
            raise ValueError("no message is so short, or begins there")
    return found


def format_put_place(place: PutPlace) -> bytes:
    """The text of a put's 200."""
    return b"%d %d %d" % (place.message_id, place.partition, -1 if place.offset is None else place.offset)


# Text of a master in mode sync for a write that no slave has stored yet; compared as a whole.
NOTHING_DONE = "nothing was done"  # of a refusal for now, which may be repeated, there or elsewhere
NOT_REPLICATED = "Message stored on master and not yet replicated"


def is_try_again(status: int, text: str) -> bool:
    """Return True if a put was refused for now: nothing of it is stored."""
    return status in (Status.UNAVAILABLE, Status.TOO_MANY) or (status == Status.INTERNAL_ERROR and NOTHING_DONE in text)


def is_not_replicated(text: str) -> bool:
    """True if a refusal means "stored on the master alone": it may become visible, or be lost with the master."""
    return NOT_REPLICATED in text


def parse_put_place(message: bytes) -> PutPlace:
    """Read the three numbers of a put's 200."""
    if (numbers := _PUT_PLACE.fullmatch(message)) is None:
        raise _malformed("a put's answer", message, ValueError("three integers are expected"))
    message_id, partition, offset = map(int, numbers.groups())
    if not (INT64_MIN <= message_id <= INT64_MAX and INT32_MIN <= partition <= INT32_MAX and -1 <= offset <= INT64_MAX):
        raise _malformed("a put's answer", message, ValueError("one of them is out of its range"))
    return PutPlace(message_id, partition, None if offset == -1 else offset)


def parse_offset(message: bytes) -> int:
    """Read the decimal of an offset query's 200."""
    with _reading("an offset", message):
        return int64(message)


def parse_vote(message: bytes) -> XaCode:
    """Read the vote of a PREPARE's 200: XA_OK, or XA_RDONLY for a branch that needs no commit."""
    if message == b"0":
        return XaCode.XA_OK
    if message == b"3":
        return XaCode.XA_RDONLY
    raise _malformed("a vote", message, ValueError("neither 0 nor 3"))


class BranchStatus(StrEnum):
    """A broker's state of a branch. Extension `status`."""

    ACTIVE = "active"
    PREPARED = "prepared"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled_back"
    HEURISTICALLY_COMMITTED = "heuristically_committed"  # by an operator, and not forgotten yet
    HEURISTICALLY_ROLLED_BACK = "heuristically_rolled_back"
    HEURISTICALLY_COMPLETED = "heuristically_completed"
    UNKNOWN = "unknown"  # never begun, without messages, or finished and dropped from memory


def parse_status(message: bytes) -> BranchStatus:
    """Read the word of a STATUS's 200."""
    with _reading("a branch's status", message):
        return BranchStatus(message.decode())


def format_keys(keys: Iterable[BranchKey]) -> bytes:
    """Return the text of a RECOVER's 200: keys, without a line break after the last."""
    return "\r\n".join(map(str, keys)).encode()


def parse_keys(message: bytes) -> list[BranchKey]:
    """Read the keys of a RECOVER's 200, in the broker's order. White space alone means none."""
    if not message.strip():
        return []
    with _reading("a list of transaction keys", message):
        return [parse_key(line) for line in message.decode().split("\r\n")]


@contextmanager
def _reading(what: str, message: bytes) -> Iterator[None]:
    """Raise ValueErrors of the block as RemoteProtocolError: *message* is not *what*."""
    try:
        yield
    except ValueError as error:
        raise _malformed(what, message, error) from error


def _malformed(what: str, message: bytes, error: ValueError) -> RemoteProtocolError:
    return RemoteProtocolError(f"{message[:_QUOTED_MAX]!r} is not {what}: {error}")
