"""Looking through runs of message frames for a message, a bounded piece at a time. A worker thread's job.

Only the headers and attributes of the frames are looked at: a payload of megabytes costs as much as one of a byte.
"""

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final, NamedTuple

from meta_broker.store.partition_index import StoredRun
from meta_client.protocol.answers import FoundAt
from meta_client.protocol.messages import FLAG_ATTRIBUTE, HEADER, HEADER_BYTES

# Of one piece. The thread holds the interpreter while it looks: more than a millisecond or two, and answers to others
# would be late.
FRAMES_MAX: Final = 2048
BYTES_MAX: Final = 1024 * 1024  # of which pages may have to come from the disk
_LENGTH: Final = Struct(">i")
_ID: Final = Struct(">q")
_ID_AT: Final = 8

Read = Callable[[int, int], memoryview]  # LSN and size; raises KeyError for what is no longer stored


class NoMessageThere(Exception):
    """No message begins at the offset that was asked for."""


class Looked(NamedTuple):
    """What a piece gave: everything below *next_offset* was looked at."""

    next_offset: int
    matches: list[FoundAt]


def look_for(wanted: bytes | int, read: Read, runs: Sequence[StoredRun], offset: int, matches_max: int) -> Looked:
    """Look through *runs*, of which the first holds *offset*, for an attribute or a message id; stop after a piece.

    Raises NoMessageThere, KeyError.
    """
    matches: list[FoundAt] = []
    frames_left, bytes_left = FRAMES_MAX, BYTES_MAX
    for run in runs:
        skip = max(offset - run.offset, 0)
        if isinstance(wanted, int) and not skip and not _may_hold(read, run, wanted):
            offset = run.offset + run.bytes
            continue
        view = read(run.lsn + skip, run.bytes - skip)
        at, end = 0, len(view)
        while at < end:
            if not frames_left or bytes_left <= 0 or len(matches) == matches_max:
                return Looked(run.offset + skip + at, matches)
            size, is_match = _look(view, at, wanted)
            if is_match:
                matches.append(FoundAt(run.offset + skip + at, size))
            at += size
            frames_left -= 1
            bytes_left -= size
        offset = run.offset + run.bytes
    return Looked(offset, matches)


def _may_hold(read: Read, run: StoredRun, message_id: int) -> bool:
    """Whether *run*, whose ids follow one another, may hold *message_id*."""
    (first,) = _ID.unpack_from(read(run.lsn, HEADER_BYTES), _ID_AT)
    return bool(first <= message_id < first + run.messages)


def _look(view: memoryview, at: int, wanted: bytes | int) -> tuple[int, bool]:
    """The size of the frame at *at*, and whether it is wanted. Raises NoMessageThere."""
    room = len(view) - at - HEADER_BYTES
    if room < 0:
        raise NoMessageThere
    length, _, message_id, flag = HEADER.unpack_from(view, at)
    if not 0 <= length <= room:
        raise NoMessageThere
    if isinstance(wanted, int):
        return HEADER_BYTES + length, message_id == wanted
    if not flag & FLAG_ATTRIBUTE:
        return HEADER_BYTES + length, False
    key = attribute(view, at + HEADER_BYTES, length, len(wanted))
    return HEADER_BYTES + length, key is not None and key == wanted


def attribute(view: memoryview, data: int, length: int, wanted_bytes: int | None = None) -> bytes | None:
    """The attribute of the data part of *length* bytes at *data*, if it has *wanted_bytes*; None: it has no such one.

    Nobody checks attribute blocks when they are put: one that does not fit into its message is none.
    """
    if length < _LENGTH.size:
        return None
    (size,) = _LENGTH.unpack_from(view, data)
    if not 0 <= size <= length - _LENGTH.size or (wanted_bytes is not None and size != wanted_bytes):
        return None
    return bytes(view[data + _LENGTH.size : data + _LENGTH.size + size])
