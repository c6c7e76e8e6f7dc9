"""Turns the body of a put into message frames for the journal: verified and numbered."""

from collections.abc import Sequence

import msgspec

from journal.wal.storage_file import Buffer
from meta_broker.handlers.message_ids import MessageIds
from meta_client.protocol.checksum import crc31
from meta_client.protocol.compression import Codec, codec_number
from meta_client.protocol.messages import HEADER_BYTES, check_compressed, frame_header
from meta_client.protocol.requests import MultiPut, Put
from meta_client.protocol.stamping import stamp_ids


class PutRejected(Exception):
    """The put is invalid; the text is the answer's detail."""


class DiskFull(PutRejected):
    """There is no room for new messages."""


class ClosedPartition(PutRejected):
    """An operator closed the partition."""


class NotCompressible(PutRejected):
    """A message uses a codec that its topic does not allow, or an unknown one."""


class MessageFrames(msgspec.Struct, frozen=True):
    """*messages* whole frames of *bytes* in all, with ids from *first_id* on."""

    buffers: Sequence[Buffer]
    bytes: int
    messages: int
    first_id: int


def frames_of(
    put: Put | MultiPut, ids: MessageIds, message_bytes_max: int, compression: Sequence[str]
) -> MessageFrames:
    """Return the frames of *put*: checksums verified, codecs limited to *compression*. Raises PutRejected."""
    checksum = crc31(put.body)
    if put.checksum is not None and put.checksum != checksum:
        raise PutRejected("Checksum failure,message may be corrupted when transfering on networking.")
    if isinstance(put, Put):
        if len(put.body) > message_bytes_max:
            raise PutRejected(
                f"a message of {len(put.body)} bytes is larger than message_bytes_max {message_bytes_max}"
            )
        if codec_number(put.flag):
            _check_put(put, message_bytes_max, compression)
        first_id = ids.next()
        header = frame_header(first_id, put.flag, len(put.body), checksum)
        return MessageFrames((header, put.body), HEADER_BYTES + len(put.body), 1, first_id)
    first_id, stamped = ids.allocate(put.count), bytearray(put.body)
    try:
        codecs = stamp_ids(stamped, put.count, first_id, message_bytes_max)
    except ValueError as error:
        raise PutRejected(f"not a batch of {put.count} messages: {error}") from error
    _check_allowed(put.topic, codecs, compression)
    return MessageFrames((stamped,), len(stamped), put.count, first_id)


def _check_put(put: Put, message_bytes_max: int, compression: Sequence[str]) -> None:
    try:
        number = check_compressed(put.flag, put.body, message_bytes_max)
    except ValueError as error:
        raise NotCompressible(f"not a compressed message: {error}") from error
    _check_allowed(put.topic, {number}, compression)


def _check_allowed(topic: str, codecs: set[int], compression: Sequence[str]) -> None:
    for codec in map(Codec, sorted(codecs)):
        if codec.label not in compression:
            raise NotCompressible(
                f"topic {topic} does not allow {codec.label}: send uncompressed messages, or allow it with "
                f"`metaq topics alter {topic} --compression {codec.label}`"
            )
