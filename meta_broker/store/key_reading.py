"""Reads the keys of stored messages, and messages a key index names. A worker thread's job."""

from collections.abc import Sequence
from struct import Struct
from typing import Final

from journal.checksum import crc32
from meta_broker.store.key_block import KeyBlock
from meta_broker.store.partition_index import StoredExtent
from meta_broker.store.search import BYTES_MAX, FRAMES_MAX, NotAMessageStart, ReadJournal, SearchStep
from meta_client.protocol.answers import FoundAt
from meta_client.protocol.limits import FIND_KEY_BYTES_MAX
from meta_client.protocol.messages import FLAG_ATTRIBUTE, HEADER, HEADER_BYTES

_LENGTH: Final = Struct(">i")
_ID: Final = Struct(">q")
_ID_AT: Final = 8
_HEAD: Final = Struct(HEADER.format + "i")  # with the length of an attribute
_HEAD_BYTES_MAX: Final = HEADER_BYTES + _LENGTH.size + FIND_KEY_BYTES_MAX  # of a message: the bytes needed
READ_BYTES: Final = 256 * 1024  # in one read


def look_at(key: bytes, read: ReadJournal, places: Sequence[tuple[StoredExtent, int]], matches_max: int) -> SearchStep:
    """Compare the key of the messages at *places*, ascending pairs of a run and an offset in it.

    Raises NotAMessageStart, KeyError.
    """
    matches: list[FoundAt] = []
    next_offset = 0
    for run, offset in places:
        if len(matches) == matches_max:
            break
        skip = offset - run.offset
        room = run.bytes - skip
        size, found = _message(read(run.lsn + skip, min(room, HEADER_BYTES + _LENGTH.size + len(key))), 0, room)
        next_offset = offset + size
        if found == key:
            matches.append(FoundAt(offset, size))
    return SearchStep(next_offset, matches)


def is_message(read: ReadJournal, run: StoredExtent, offset: int, message_id: int) -> bool:
    """Return whether the message at *offset*, in *run*, has that id. Raises KeyError."""
    skip = offset - run.offset
    if run.bytes - skip < HEADER_BYTES:
        return False
    return bool(_ID.unpack_from(read(run.lsn + skip, HEADER_BYTES), _ID_AT)[0] == message_id)


def gather(keys: KeyBlock, read: ReadJournal, extents: Sequence[StoredExtent], limit: int) -> KeyBlock:
    """Return *keys* extended by the messages that follow, up to *limit* and at most a piece.

    The first of *extents* contains the end of *keys*. Raises NotAMessageStart, KeyError.
    """
    start, end, last, last_id, buckets = keys
    unpack_head = _HEAD.unpack_from
    frames_left, bytes_left = FRAMES_MAX, BYTES_MAX
    for run in extents:
        end = max(end, min(run.offset, limit))  # a repair leaves gaps
        if end == limit:
            break
        data, at, run_end = b"", 0, run.offset + run.bytes
        while end < run_end:
            if not frames_left or bytes_left <= 0:
                return KeyBlock(start, end, last, last_id, buckets)
            room = run_end - end
            if (here := len(data) - at) < room and here < _HEAD_BYTES_MAX:
                data, at = bytes(read(run.lsn + end - run.offset, min(room, READ_BYTES))), 0
                here = len(data)
            # _message inlined: this loop is the cost of an index.
            if here < _HEAD.size:
                frame_bytes, key = _message(data, at, room)
                (message_id,) = _ID.unpack_from(data, at + _ID_AT)
            else:
                length, _, message_id, flag, size = unpack_head(data, at)
                if not HEADER_BYTES <= (frame_bytes := HEADER_BYTES + length) <= room:
                    raise NotAMessageStart
                key = None
                if flag & FLAG_ATTRIBUTE and 0 <= size <= length - _LENGTH.size and size <= FIND_KEY_BYTES_MAX:
                    key = data[at + _HEAD.size : at + _HEAD.size + size]
            if end + frame_bytes > limit:
                return KeyBlock(start, end, last, last_id, buckets)
            if key is not None:
                crc = crc32(key)
                buckets[crc >> 24].append(crc << 32 | end - start)
            last, last_id = end, message_id
            at += frame_bytes
            end += frame_bytes
            frames_left -= 1
            bytes_left -= frame_bytes
    return KeyBlock(start, end, last, last_id, buckets)


def _message(view: bytes | memoryview, at: int, room: int) -> tuple[int, bytes | None]:
    """Return the size of the frame at *at*, and its message's key, if it has a searchable one and *view* contains
    it.

    The frame has at most *room* bytes. Attribute blocks are not checked when they are put: one that does not fit into
    its message counts as none. Raises NotAMessageStart.
    """
    if room < HEADER_BYTES or len(view) - at < HEADER_BYTES:
        raise NotAMessageStart
    length, _, _, flag = HEADER.unpack_from(view, at)
    if not 0 <= length <= room - HEADER_BYTES:
        raise NotAMessageStart
    key = at + HEADER_BYTES + _LENGTH.size
    if not flag & FLAG_ATTRIBUTE or length < _LENGTH.size or key > len(view):
        return HEADER_BYTES + length, None
    (size,) = _LENGTH.unpack_from(view, key - _LENGTH.size)
    if not 0 <= size <= min(length - _LENGTH.size, FIND_KEY_BYTES_MAX) or key + size > len(view):
        return HEADER_BYTES + length, None
    return HEADER_BYTES + length, bytes(view[key : key + size])
