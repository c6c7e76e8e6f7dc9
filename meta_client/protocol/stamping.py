"""Giving the frames of a batch their ids, and checking on the way that they are frames. Pure.

A broker does this for every message of every batch. The native core takes all but compressed messages; without it the
common case, frames of one length, is done by columns (frame_columns.py).
"""

from struct import Struct
from typing import Final

from journal.checksum import crc32
from meta_client import core
from meta_client.protocol.checksum import CRC31_MASK
from meta_client.protocol.compression import FLAG_MAGIC, codec_number
from meta_client.protocol.frame_columns import ALIKE_MIN, have_sound_checksums
from meta_client.protocol.messages import HEADER_BYTES, check_compressed

_LENGTH_AND_CRC: Final = Struct(">ii")
_ID: Final = Struct(">q")
_ID_AT: Final = 8
_FLAG: Final = Struct(">i")
_FLAG_AT: Final = 16
_MAGIC_BYTE: Final = FLAG_MAGIC >> 8  # the first of a flag that may name a codec
_SEQUENCE_MASK: Final = 0xFFF  # the bits of an id that differ within a batch (message_ids)
_LOW: Final = bytes(range(256)) * 17  # lowest byte of ids that follow one another
_HIGH: Final = [bytes(high << 4 | number >> 8 for number in range(4096)) for high in range(16)]  # and the one above


def stamp_ids(
    frames: bytearray, count: int, first_id: int, data_bytes_max: int, frames_end: int | None = None
) -> set[int]:
    """Write ids *first_id*, *first_id* + 1, ... into *count* frames that fill *frames*, up to *frames_end*, exactly.

    Returns the numbers of the codecs that compressed some of them. The ids must agree in all but their lowest twelve
    bits. Raises ValueError for bytes that are not *count* whole frames with sound checksums, none of them longer than
    *data_bytes_max*, compressed or not; some ids may be written then.
    """
    assert (first_id & _SEQUENCE_MASK) + count <= _SEQUENCE_MASK + 1
    end = len(frames) if frames_end is None else frames_end
    if core.core is not None:
        return _stamp_each(frames, end, count, first_id, data_bytes_max)
    size, odd = divmod(end, count)
    if odd or count < ALIKE_MIN or not _are_alike(frames, end, size):
        return _stamp_each(frames, end, count, first_id, data_bytes_max)
    if not HEADER_BYTES <= size <= HEADER_BYTES + data_bytes_max:
        raise ValueError(f"messages of {size - HEADER_BYTES} bytes, message_bytes_max is {data_bytes_max}")
    if not have_sound_checksums(frames, end, size):
        return _stamp_each(frames, end, count, first_id, data_bytes_max)  # which says where
    for at, byte in enumerate(_ID.pack(first_id)[:6], _ID_AT):
        frames[at:end:size] = bytes((byte,)) * count
    sequence = first_id & _SEQUENCE_MASK
    frames[_ID_AT + 6 : end : size] = _HIGH[first_id >> 12 & 0xF][sequence : sequence + count]
    frames[_ID_AT + 7 : end : size] = _LOW[sequence & 0xFF : (sequence & 0xFF) + count]
    return set()


def _are_alike(frames: bytearray, end: int, size: int) -> bool:
    """True if every frame declares a length of *size* bytes, and none is compressed."""
    if size < HEADER_BYTES or _MAGIC_BYTE in frames[_FLAG_AT:end:size]:
        return False
    length = (size - HEADER_BYTES).to_bytes(4)
    count = end // size
    return all(frames[at:end:size] == length[at : at + 1] * count for at in range(4))


def _stamp_each(frames: bytearray, end: int, count: int, first_id: int, data_bytes_max: int) -> set[int]:
    stamped, start = 0, 0
    if core.core is not None:
        stamped, start = core.core.stamp_frames(frames, end, count, first_id, data_bytes_max, FLAG_MAGIC, crc32)
    view = memoryview(frames)
    codecs: set[int] = set()
    for message_id in range(first_id + stamped, first_id + count):
        if start + HEADER_BYTES > end:
            raise ValueError(f"fewer messages than {count}")
        length, checksum = _LENGTH_AND_CRC.unpack_from(view, start)
        if not 0 <= length <= data_bytes_max:
            raise ValueError(f"a message of {length} bytes, message_bytes_max is {data_bytes_max}")
        if (after := start + HEADER_BYTES + length) > end:
            raise ValueError("the last message is cut off")
        if checksum != crc32(view[start + HEADER_BYTES : after]) & CRC31_MASK:
            raise ValueError(f"the message at byte {start} of the batch has another checksum than its data")
        flag: int = _FLAG.unpack_from(view, start + _FLAG_AT)[0]
        if codec_number(flag):
            codecs.add(check_compressed(flag, view[start + HEADER_BYTES : after], data_bytes_max))
        _ID.pack_into(view, start + _ID_AT, message_id)
        start = after
    if start != end:
        raise ValueError(f"more bytes than {count} messages")
    return codecs
