"""Message frames: how messages stand in a partition and in the body of a value (spec 3).

Big-endian, packed back to back, no padding:

    | length L: int32 | crc31 of the data part: int32 | message id: int64 | flag: int32 | data part: L bytes |

The data part is what a put carries as its body. With flag bit 0 set it begins with an attribute block,
`| A: int32 | A bytes of UTF-8 |`; the payload follows. With a codec in the flag (compression.py) the payload is
compressed, the attribute never. The checksum covers the data part as it stands, nothing else.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from journal.checksum import crc32
from meta_client.protocol.checksum import CRC31_MASK, crc31
from meta_client.protocol.compression import Codec, codec_number, compress, declared_bytes, decompress
from meta_client.protocol.errors import CodecMissing, InvalidMessage, LocalProtocolError
from meta_client.protocol.trace_context import split_traceparent

HEADER = struct.Struct(">iiqi")
HEADER_BYTES = HEADER.size
DATA_BYTES_MAX = 2 * 1024 * 1024  # what a genuine consumer takes (spec 1.8)
FLAG_ATTRIBUTE = 1

_ATTRIBUTE_LENGTH = struct.Struct(">i")


@dataclass(slots=True)  # not frozen: freezing triples the cost per message (requests.py)
class Message:
    """A stored message. Ids are any int64, neither ordered nor unique forever (spec 3.4)."""

    id: int
    flag: int
    attribute: str | None
    payload: bytes
    traceparent: str | None = None  # trace_context.py


def encode_body(
    payload: bytes, attribute: str | None = None, codec: Codec | None = None, compress_bytes_min: int = 0
) -> tuple[int, bytes]:
    """Return flag and put body (the data part) of a message. An empty attribute counts as one; None is none.

    With *codec* a payload of *compress_bytes_min* bytes or more is compressed if that makes it smaller. Raises
    LocalProtocolError for an attribute without a UTF-8 form, TypeError for one that is no text, ModuleNotFoundError
    without the codec's package.
    """
    flag = 0
    if codec is not None and len(payload) >= compress_bytes_min:
        compressed = compress(codec, payload)
        if len(compressed) < len(payload):
            flag, payload = codec.flag, compressed
    if attribute is None:
        return flag, payload
    if not isinstance(attribute, str):
        raise TypeError(f"an attribute is a str, not {type(attribute).__name__}: decode it")
    try:
        encoded = attribute.encode()
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"attribute {attribute[:40]!r} has no UTF-8 form: {error.reason}") from error
    return flag | FLAG_ATTRIBUTE, _ATTRIBUTE_LENGTH.pack(len(encoded)) + encoded + payload


def decode_body(flag: int, body: bytes, data_bytes_max: int = DATA_BYTES_MAX) -> tuple[str | None, bytes]:
    """The attribute and the payload of a data part, which decompressed may have *data_bytes_max* bytes.

    Raises ValueError if its attribute block doesn't fit in it or its payload does not decompress, ModuleNotFoundError
    without the codec's package. An attribute that is not UTF-8 shows U+FFFD, as in the Java client: no broker checks
    it, and one producer's bad attribute must not stop a consumer for good.
    """
    start = _payload_start(flag, body)
    attribute = body[_ATTRIBUTE_LENGTH.size : start].decode(errors="replace") if flag & FLAG_ATTRIBUTE else None
    payload = body[start:] if start else body
    if codec := codec_number(flag):
        payload = decompress(codec, payload, data_bytes_max - start)
    return attribute, payload


def check_compressed(flag: int, body: bytes | memoryview, data_bytes_max: int) -> int:
    """The codec number of a compressed data part; needs no codec's package.

    Raises ValueError if it can't be one, or is longer than *data_bytes_max* once decompressed.
    """
    start = _payload_start(flag, body)
    number = codec_number(flag)
    declared_bytes(number, body[start:], data_bytes_max - start)
    return number


def _payload_start(flag: int, body: bytes | memoryview) -> int:
    """Return the payload's position. Raises ValueError."""
    if not flag & FLAG_ATTRIBUTE:
        return 0
    start = _ATTRIBUTE_LENGTH.size
    if len(body) < start:
        raise ValueError(f"a data part of {len(body)} bytes has no room for an attribute's length")
    length: int = _ATTRIBUTE_LENGTH.unpack_from(body)[0]
    if not 0 <= length <= len(body) - start:
        raise ValueError(f"attribute length {length} is outside [0, {len(body) - start}]")
    return start + length


def encode_frame(message_id: int, flag: int, body: bytes | memoryview) -> bytes:
    """One whole frame. *body* is copied once."""
    return frame_header(message_id, flag, len(body), crc31(body)) + body


def frame_header(message_id: int, flag: int, body_bytes: int, checksum: int) -> bytes:
    """The 20 bytes before a data part whose crc31 is already known."""
    return HEADER.pack(body_bytes, checksum, message_id, flag)


class Frame(NamedTuple):
    """A frame with its data part unparsed."""

    offset: int
    next_offset: int
    message_id: int
    flag: int
    data: bytes


def walk_frames(
    buffer: bytes | bytearray | memoryview,
    base_offset: int = 0,
    *,
    verify_checksums: bool = True,
    data_bytes_max: int = DATA_BYTES_MAX,
) -> Iterator[Frame]:
    """Yield every frame that is whole; the cut-off tail is left (spec 3.6).

    *base_offset* is the offset of the buffer's first byte. Reading goes on at the last next offset.
    Raises InvalidMessage at a broken frame, after the sound ones before it. Without *verify_checksums* flipped
    bits in a data part pass: only for bytes that were verified before.
    """
    view = buffer if isinstance(buffer, bytes) else memoryview(buffer)
    unpack_header = HEADER.unpack_from
    end = len(view)
    start = 0
    while start + HEADER_BYTES <= end:
        length, checksum, message_id, flag = unpack_header(view, start)
        if not 0 <= length <= data_bytes_max:
            reason = f"length {length} is outside [0, {data_bytes_max}]"
            raise InvalidMessage(base_offset + start, reason)
        data_start = start + HEADER_BYTES
        frame_end = data_start + length
        if frame_end > end:
            return
        data = bytes(view[data_start:frame_end])  # one copy: the slice of a bytes object
        if verify_checksums and crc32(data) & CRC31_MASK != checksum:
            reason = f"checksum {checksum} stored, {crc31(data)} found"
            raise InvalidMessage(base_offset + start, reason)
        yield Frame(base_offset + start, base_offset + frame_end, message_id, flag, data)
        start = frame_end


def iter_frames(
    buffer: bytes | bytearray | memoryview,
    base_offset: int = 0,
    *,
    verify_checksums: bool = True,
    data_bytes_max: int = DATA_BYTES_MAX,
) -> Iterator[tuple[int, int, Message]]:
    """Yield (offset, next offset, message) for every frame that is whole, as walk_frames does.

    Raises CodecMissing, too, at a message that can't be decompressed here.
    """
    for offset, next_offset, message_id, flag, data in walk_frames(
        buffer, base_offset, verify_checksums=verify_checksums, data_bytes_max=data_bytes_max
    ):
        attribute, payload, traceparent = None, data, None
        if flag:
            try:
                attribute, payload = decode_body(flag, data, data_bytes_max)
                if attribute is not None:
                    attribute, traceparent = split_traceparent(attribute)
            except ModuleNotFoundError as error:
                codec = Codec(codec_number(flag))
                raise CodecMissing(offset, codec.label, str(error.name), next_offset) from error
            except ValueError as error:
                # Trust the length only if the checksum matches.
                raise InvalidMessage(offset, str(error), next_offset if verify_checksums else None) from error
        yield offset, next_offset, Message(message_id, flag, attribute, payload, traceparent)
