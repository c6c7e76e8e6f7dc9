"""Frames of a replication link and their encoding. Pure. Layout: PROTOCOL.md.

Journal bytes are passed on as they arrive: a link buffers at most a header or one short frame.
"""

import struct
from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec

from journal.checksum import crc32
from journal.records.header import Lsn, Natural
from meta_broker.errors import BrokerError
from meta_client.protocol.errors import RemoteProtocolError

# +-------+--------+--------+----------+-----------------+  little-endian. crc covers every byte after it, but not the
# | crc:4 | kind:1 | zero:3 | length:4 | payload: length |  bulk of SNAPSHOT_CHUNK and JOURNAL_CHUNK: a checkpoint has
# +-------+--------+--------+----------+-----------------+  its checksum, and records have theirs. Kind 0 is none.
_HEAD = struct.Struct("<IB3xI")
_POSITION = struct.Struct("<Q")  # position of a chunk's bulk: the first 8 bytes of its payload
_HEARTBEAT_LAYOUT = struct.Struct("<QQQB")  # high watermark, end, milliseconds, flags
_FLUSH_ACK_LAYOUT = struct.Struct("<Q")  # flushed LSN
_IN_SYNC, _IS_SYNC = 1, 2
HEAD_BYTES: Final = _HEAD.size
TEXT_BYTES_MAX: Final = 128 * 1024  # twice a HANDSHAKE with EPOCH_HISTORY_MAX epochs
BULK_BYTES_MAX: Final = 1024 * 1024
EPOCH_HISTORY_MAX: Final = 1000  # longest epoch history
VERSION: Final = 1
# Journal bytes in one JOURNAL_CHUNK: sent to a slave that catches up before others have their turn, and buffered for
# one that does not read.
CHUNK_BYTES_MAX: Final = 256 * 1024

Number = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
LinkText = Annotated[str, msgspec.Meta(max_length=1024)]
EpochNumbers = tuple[Number, Number, Natural]  # epoch, incarnation, LSN of its first record


class LinkRefused(BrokerError):
    """The two sides of a link do not belong together, or one broke the protocol. Close the link; the text says why."""


class Handshake(msgspec.Struct, frozen=True, kw_only=True):
    """Slave: its identity, and what it has: bytes [start, end) of a journal written in the epochs *epoch_history*."""

    version: Number
    cluster: LinkText
    broker_id: Number
    slave_id: Number
    epoch_history: Annotated[tuple[EpochNumbers, ...], msgspec.Meta(max_length=EPOCH_HISTORY_MAX)] = msgspec.field(
        name="lives"
    )
    start: Natural
    end: Natural
    serves: bool = False  # does it answer gets and fetches?
    product: LinkText = ""
    cluster_id: LinkText = ""  # of its directory; blank: unknown


class Accept(msgspec.Struct, frozen=True, kw_only=True):
    """Master: the journals diverge at *divergence_lsn*; the stream begins there.

    *proof* is the CRC-32 of the *proof_bytes* before it: a slave that computes another one has another journal.
    """

    epoch: Number
    divergence_lsn: Natural = msgspec.field(name="parting")
    proof_bytes: Number
    proof: Number
    heartbeat_ms: Number = msgspec.field(name="beat_ms")
    silence_ms: Number
    master: LinkText


class FullResync(msgspec.Struct, frozen=True, kw_only=True):
    """Master: the slave's data is unusable. A checkpoint follows in SNAPSHOT_CHUNKs, then the stream from *start*.

    *checkpoint_bytes* 0: no checkpoint is needed, the journal is complete from *start*.
    """

    epoch: Number
    start: Natural
    checkpoint_bytes: Natural
    reason: LinkText
    heartbeat_ms: Number = msgspec.field(name="beat_ms")
    silence_ms: Number
    master: LinkText


class FetchTail(msgspec.Struct, frozen=True, kw_only=True):
    """Master: the slave has more of this master's journal than the master itself. Send it, from *divergence_lsn* to the
    slave's end.

    *proof* as in Accept. No other frame follows: the master closes the link, and starts again with the restored
    tail.
    """

    epoch: Number
    divergence_lsn: Natural = msgspec.field(name="parting")
    proof_bytes: Number
    proof: Number
    master: LinkText


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    """Either side: refuses the link, with the reason. No other frame follows."""

    text: Annotated[str, msgspec.Meta(max_length=4096)]


class SnapshotChunk(msgspec.Struct, frozen=True):
    """Master: bytes of the checkpoint file from *position* on."""

    position: int
    data: bytes | memoryview


class JournalChunk(msgspec.Struct, frozen=True):
    """Master, or a slave after FETCH_TAIL: bytes of the journal from *lsn* on."""

    lsn: Lsn
    data: bytes | memoryview


class Heartbeat(msgspec.Struct, frozen=True):
    """Master: its position. Sent at least every beat_ms."""

    high_watermark: Lsn  # everything below is acknowledged
    end: Lsn
    time_ms: int  # its clock
    is_in_sync: bool  # does it count on this slave?
    mode: Literal["async", "sync"]


class FlushAck(msgspec.Struct, frozen=True):
    """Slave: everything below *flushed* is fsynced. Sent at least every beat_ms."""

    flushed: Lsn


LinkFrame = Handshake | Accept | FullResync | FetchTail | Rejected | SnapshotChunk | JournalChunk | Heartbeat | FlushAck

_Text = Handshake | Accept | FullResync | FetchTail | Rejected
_TEXTS: Final[dict[int, type[_Text]]] = {1: Handshake, 2: Accept, 3: FullResync, 4: Rejected, 9: FetchTail}
_SNAPSHOT_CHUNK, _JOURNAL_CHUNK, _HEARTBEAT, _FLUSH_ACK = 5, 6, 7, 8
_KINDS: Final = {cls: kind for kind, cls in _TEXTS.items()}


def encode(frame: _Text | Heartbeat | FlushAck) -> bytes:
    """Encode a frame without bulk."""
    match frame:
        case Heartbeat(high_watermark, end, time_ms, is_in_sync, mode):
            flags = _IN_SYNC * is_in_sync | _IS_SYNC * (mode == "sync")
            return _framed(_HEARTBEAT, _HEARTBEAT_LAYOUT.pack(high_watermark, end, time_ms, flags))
        case FlushAck(flushed):
            return _framed(_FLUSH_ACK, _FLUSH_ACK_LAYOUT.pack(flushed))
        case _:
            payload = msgspec.json.encode(frame)
            assert len(payload) <= TEXT_BYTES_MAX
            return _framed(_KINDS[type(frame)], payload)


def journal_chunk_head(lsn: int, size: int) -> bytes:
    return _bulk_head(_JOURNAL_CHUNK, lsn, size)


def snapshot_chunk_head(position: int, size: int) -> bytes:
    return _bulk_head(_SNAPSHOT_CHUNK, position, size)


def _framed(kind: int, covered: bytes, bulk_bytes: int = 0) -> bytes:
    tail = _HEAD.pack(0, kind, len(covered) + bulk_bytes)[4:] + covered
    return struct.pack("<I", crc32(tail)) + tail


def _bulk_head(kind: int, position: int, size: int) -> bytes:
    assert 0 < size <= BULK_BYTES_MAX
    return _framed(kind, _POSITION.pack(position), size)


class LinkDecoder:
    """Decodes one direction of a link: bytes in, frames out; bulk in pieces, as it arrives. One caller at a time."""

    def __init__(self, *expected: type[LinkFrame]) -> None:
        self._expected = frozenset(expected)
        self._held = bytearray()  # an incomplete header, or an incomplete frame without bulk
        self._bulk: tuple[type[SnapshotChunk | JournalChunk], int, int] | None = None  # type, next position, bytes left

    @property
    def held_bytes(self) -> int:
        return len(self._held)

    def receive_data(self, chunk: bytes) -> Sequence[LinkFrame]:
        """Return the frames that *chunk* completes, in order; bulk frames refer to *chunk*.

        Raises RemoteProtocolError: close the link.
        """
        frames: list[LinkFrame] = []
        view = memoryview(chunk)
        while view:
            view = self._read_bulk(view, frames) if self._bulk is not None else self._read_frame(view, frames)
        return frames

    def _read_bulk(self, view: memoryview, frames: list[LinkFrame]) -> memoryview:
        assert self._bulk is not None
        cls, position, left = self._bulk
        size = min(left, len(view))
        frames.append(
            JournalChunk(Lsn(position), view[:size]) if cls is JournalChunk else SnapshotChunk(position, view[:size])
        )
        self._bulk = (cls, position + size, left - size) if left > size else None
        return view[size:]

    def _read_frame(self, view: memoryview, frames: list[LinkFrame]) -> memoryview:
        held = self._held
        view = self._fill(view, HEAD_BYTES)
        if len(held) < HEAD_BYTES:
            return view
        crc, kind, length = _HEAD.unpack_from(held)
        covered = self._covered_bytes(kind, length)
        view = self._fill(view, HEAD_BYTES + covered)
        if len(held) < HEAD_BYTES + covered:
            return view
        raw = bytes(held)
        held.clear()
        if crc32(raw[4:]) != crc:
            raise RemoteProtocolError("a frame whose checksum is wrong")
        payload = raw[HEAD_BYTES:]
        if kind in (_SNAPSHOT_CHUNK, _JOURNAL_CHUNK):
            self._bulk = (
                JournalChunk if kind == _JOURNAL_CHUNK else SnapshotChunk,
                *_POSITION.unpack(payload),
                length - covered,
            )
        else:
            frames.append(_decode(kind, payload))
        return view

    def _fill(self, view: memoryview, size: int) -> memoryview:
        """Buffer up to *size* bytes; return the rest of *view*."""
        wanted = max(size - len(self._held), 0)
        self._held += view[:wanted]
        return view[wanted:]

    def _covered_bytes(self, kind: int, length: int) -> int:
        """Return how many payload bytes the header's checksum covers. Bounded: called before the checksum can be
        verified.
        """
        cls, least, most = _LENGTHS.get(kind, (None, 0, 0))
        if cls not in self._expected:
            raise RemoteProtocolError(f"an unexpected frame of kind {kind}")
        if not least <= length <= most:
            raise RemoteProtocolError(f"a frame of kind {kind} with {length} bytes: {least} to {most} are allowed")
        return _POSITION.size if kind in (_SNAPSHOT_CHUNK, _JOURNAL_CHUNK) else length


_LENGTHS: Final[dict[int, tuple[type[LinkFrame], int, int]]] = {
    **{kind: (cls, 2, TEXT_BYTES_MAX) for kind, cls in _TEXTS.items()},
    _SNAPSHOT_CHUNK: (SnapshotChunk, _POSITION.size + 1, _POSITION.size + BULK_BYTES_MAX),
    _JOURNAL_CHUNK: (JournalChunk, _POSITION.size + 1, _POSITION.size + BULK_BYTES_MAX),
    _HEARTBEAT: (Heartbeat, _HEARTBEAT_LAYOUT.size, _HEARTBEAT_LAYOUT.size),
    _FLUSH_ACK: (FlushAck, _FLUSH_ACK_LAYOUT.size, _FLUSH_ACK_LAYOUT.size),
}


def _decode(kind: int, payload: bytes) -> LinkFrame:
    if kind == _HEARTBEAT:
        high_watermark, end, time_ms, flags = _HEARTBEAT_LAYOUT.unpack(payload)
        if flags & ~(_IN_SYNC | _IS_SYNC):
            raise RemoteProtocolError(f"flags {flags} of a position")
        return Heartbeat(
            Lsn(high_watermark), Lsn(end), time_ms, bool(flags & _IN_SYNC), "sync" if flags & _IS_SYNC else "async"
        )
    if kind == _FLUSH_ACK:
        return FlushAck(Lsn(*_FLUSH_ACK_LAYOUT.unpack(payload)))
    try:
        return msgspec.json.decode(payload, type=_TEXTS[kind])
    except (ValueError, RecursionError) as error:  # msgspec's errors, and those of UTF-8, are ValueErrors
        raise RemoteProtocolError(f"an invalid {_TEXTS[kind].__name__}: {error}") from error
