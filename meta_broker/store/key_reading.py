"""Reading the keys of messages where they stand, and looking at messages that an index names. A worker thread's job."""

from collections.abc import Sequence
from struct import Struct
from typing import Final

from journal.checksum import crc32
from meta_broker.store.key_block import Block
from meta_broker.store.partition_index import StoredRun
from meta_broker.store.search import BYTES_MAX, FRAMES_MAX, Looked, NoMessageThere, Read
from meta_client.protocol.answers import FoundAt
from meta_client.protocol.messages import FLAG_ATTRIBUTE, HEADER, HEADER_BYTES

_LENGTH: Final = Struct(">i")
_ID: Final = Struct(">q")
_ID_AT: Final = 8


def look_at(key: bytes, read: Read, places: Sequence[tuple[StoredRun, int]], matches_max: int) -> Looked:
    """Look at the messages at *places*, each an offset and the run it lies in, rising, for an attribute.

    Raises NoMessageThere, KeyError.
    """
    matches: list[FoundAt] = []
    next_offset = 0
    for run, offset in places:
        if len(matches) == matches_max:
            break
        skip = offset - run.offset
        view = read(run.lsn + skip, run.bytes - skip)
        size, found = _message(view, 0)
        next_offset = offset + size
        if found == key:
            matches.append(FoundAt(offset, size))
    return Looked(next_offset, matches)


def is_message(read: Read, run: StoredRun, offset: int, message_id: int) -> bool:
    """Whether the message that begins at *offset*, in *run*, has that id. Raises KeyError."""
    skip = offset - run.offset
    if run.bytes - skip < HEADER_BYTES:
        return False
    return bool(_ID.unpack_from(read(run.lsn + skip, HEADER_BYTES), _ID_AT)[0] == message_id)


def gather(keys: Block, read: Read, runs: Sequence[StoredRun], limit: int) -> Block:
    """*keys* with those of the messages that follow, up to *limit* at most and a piece at most, added to its buckets.

    The first of *runs* holds the end of *keys*. Raises NoMessageThere, KeyError.
    """
    start, end, last, last_id, buckets = keys
    frames_left, bytes_left = FRAMES_MAX, BYTES_MAX
    for run in runs:
        end = max(end, min(run.offset, limit))  # nothing is stored where a repair has dropped something
        if end == limit:
            break
        skip = end - run.offset
        view = read(run.lsn + skip, run.bytes - skip)
        at, size = 0, len(view)
        while at < size:
            if not frames_left or bytes_left <= 0:
                return Block(start, end, last, last_id, buckets)
            frame_bytes, key = _message(view, at)
            if end + frame_bytes > limit:
                return Block(start, end, last, last_id, buckets)
            if key is not None:
                crc = crc32(key)
                buckets[crc >> 24].append(crc << 32 | end - start)
            last, last_id = end, _ID.unpack_from(view, at + _ID_AT)[0]
            at += frame_bytes
            end += frame_bytes
            frames_left -= 1
            bytes_left -= frame_bytes
    return Block(start, end, last, last_id, buckets)


def _message(view: memoryview, at: int) -> tuple[int, bytes | None]:
    """The size of the frame at *at*, and its message's key, if it has one. Raises NoMessageThere.

    Nobody checks attribute blocks when they are put: one that does not fit into its message is none.
    """
    room = len(view) - at - HEADER_BYTES
    if room < 0:
        raise NoMessageThere
    length, _, _, flag = HEADER.unpack_from(view, at)
    if not 0 <= length <= room:
        raise NoMessageThere
    if not flag & FLAG_ATTRIBUTE or length < _LENGTH.size:
        return HEADER_BYTES + length, None
    (size,) = _LENGTH.unpack_from(view, at + HEADER_BYTES)
    if not 0 <= size <= length - _LENGTH.size:
        return HEADER_BYTES + length, None
    key = at + HEADER_BYTES + _LENGTH.size
    return HEADER_BYTES + length, bytes(view[key : key + size])
