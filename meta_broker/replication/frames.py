"""The frames of a replication link, and their bytes. Pure. Drawn in PROTOCOL.md.

The bytes of the journal are handed on as they come, never gathered: a link holds a header, or one short frame.
"""

import struct
from collections.abc import Sequence
from typing import Annotated, Final, Literal, NamedTuple

import msgspec

from journal.checksum import crc32
from journal.frame import Lsn
from meta_client.protocol.errors import RemoteProtocolError

# +-------+--------+--------+----------+-----------------+  little-endian. crc covers every byte after it, but not the
# | crc:4 | kind:1 | zero:3 | length:4 | payload: length |  bulk of PART and DATA: a checkpoint has its checksum, and
# +-------+--------+--------+----------+-----------------+  records have theirs. Kind 0 is none.
_HEAD = struct.Struct("<IB3xI")
_PLACE = struct.Struct("<Q")  # where the bulk of a PART or DATA belongs: the first 8 bytes of its payload
_POSITION = struct.Struct("<QQQB")  # fence, end, milliseconds, flags
_REPORT = struct.Struct("<Q")  # flushed LSN
_IN_SYNC, _IS_SYNC = 1, 2
HEAD_BYTES: Final = _HEAD.size
TEXT_BYTES_MAX: Final = 128 * 1024  # of a HELLO with a thousand lives, twice over
BULK_BYTES_MAX: Final = 1024 * 1024
LIVES_MAX: Final = 1000  # a history is no longer
VERSION: Final = 1

Natural = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Number = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
Text = Annotated[str, msgspec.Meta(max_length=1024)]
LifeNumbers = tuple[Number, Number, Natural]  # epoch, incarnation, LSN of its first record


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """Slave: who I am and what I have, bytes [start, end) of a journal of these lives."""

    version: Number
    cluster: Text
    broker_id: Number
    slave_id: Number
    lives: Annotated[tuple[LifeNumbers, ...], msgspec.Meta(max_length=LIVES_MAX)]
    start: Natural
    end: Natural
    serves: bool = False  # does it answer gets and fetches?
    product: Text = ""


class Welcome(msgspec.Struct, frozen=True, kw_only=True):
    """Master: our logs part at *parting*, where the stream begins.

    *proof* is the CRC-32 of the *proof_bytes* before it: who finds another one has another journal.
    """

    epoch: Number
    parting: Natural
    proof_bytes: Number
    proof: Number
    beat_ms: Number
    silence_ms: Number
    master: Text


class Anew(msgspec.Struct, frozen=True, kw_only=True):
    """Master: what you have is of no use here. A checkpoint follows in PARTs, then the stream from *start* on.

    With no checkpoint, *checkpoint_bytes* 0, the journal is whole: it begins at *start* with nothing before it.
    """

    epoch: Number
    start: Natural
    checkpoint_bytes: Natural
    reason: Text
    beat_ms: Number
    silence_ms: Number
    master: Text


class Fetch(msgspec.Struct, frozen=True, kw_only=True):
    """Master: you have more of what I once wrote than I have. Send it in DATA, from *parting* to the end you named.

    *proof* as in Welcome. Nothing follows: the master closes, and begins again with what it has then.
    """

    epoch: Number
    parting: Natural
    proof_bytes: Number
    proof: Number
    master: Text


class Refused(msgspec.Struct, frozen=True, kw_only=True):
    """Either: not with you, and why. Nothing follows."""

    text: Annotated[str, msgspec.Meta(max_length=4096)]


class Part(NamedTuple):
    """Master: bytes of the checkpoint's file, from *position* on."""

    position: int
    data: bytes | memoryview


class Data(NamedTuple):
    """Master, or a slave after FETCH: bytes of the journal, from *lsn* on."""

    lsn: Lsn
    data: bytes | memoryview


class Position(NamedTuple):
    """Master: how far it is; at least each beat_ms."""

    fence: Lsn  # everything below is acknowledged
    end: Lsn
    time_ms: int  # its clock
    is_in_sync: bool  # does it count on this slave?
    mode: Literal["async", "sync"]


class Report(NamedTuple):
    """Slave: everything below *flushed* is fsynced; at least each beat_ms."""

    flushed: Lsn


Frame = Hello | Welcome | Anew | Fetch | Refused | Part | Data | Position | Report

_Text = Hello | Welcome | Anew | Fetch | Refused
_TEXTS: Final[dict[int, type[_Text]]] = {1: Hello, 2: Welcome, 3: Anew, 4: Refused, 9: Fetch}
_PART, _DATA, _POSITION_KIND, _REPORT_KIND = 5, 6, 7, 8
_KINDS: Final = {cls: kind for kind, cls in _TEXTS.items()}


def encode(frame: _Text | Position | Report) -> bytes:
    """The bytes of a frame without bulk."""
    match frame:
        case Position(fence, end, time_ms, is_in_sync, mode):
            flags = _IN_SYNC * is_in_sync | _IS_SYNC * (mode == "sync")
            return _framed(_POSITION_KIND, _POSITION.pack(fence, end, time_ms, flags))
        case Report(flushed):
            return _framed(_REPORT_KIND, _REPORT.pack(flushed))
        case _:
            payload = msgspec.json.encode(frame)
            assert len(payload) <= TEXT_BYTES_MAX
            return _framed(_KINDS[type(frame)], payload)


def data_head(lsn: int, size: int) -> bytes:
    """What goes before *size* bytes of the journal."""
    return _bulk_head(_DATA, lsn, size)


def part_head(position: int, size: int) -> bytes:
    """What goes before *size* bytes of a checkpoint."""
    return _bulk_head(_PART, position, size)


def _framed(kind: int, covered: bytes, bulk_bytes: int = 0) -> bytes:
    tail = _HEAD.pack(0, kind, len(covered) + bulk_bytes)[4:] + covered
    return struct.pack("<I", crc32(tail)) + tail


def _bulk_head(kind: int, place: int, size: int) -> bytes:
    assert 0 < size <= BULK_BYTES_MAX
    return _framed(kind, _PLACE.pack(place), size)


class FrameDecoder:
    """One side's ear: bytes in, frames out; bulk in pieces, as it comes. One caller at a time."""

    def __init__(self, *hears: type[Frame]) -> None:
        """*hears*: what the other side may say."""
        self._hears = frozenset(hears)
        self._held = bytearray()  # a head, or a frame without bulk, that is not all here
        self._bulk: tuple[type[Part | Data], int, int] | None = None  # kind, next place, bytes to come

    @property
    def held_bytes(self) -> int:
        return len(self._held)

    def receive_data(self, chunk: bytes) -> Sequence[Frame]:
        """What *chunk* completes, in order; bulk frames refer to it. Raises RemoteProtocolError: close the link."""
        frames: list[Frame] = []
        view = memoryview(chunk)
        while view:
            view = self._take_bulk(view, frames) if self._bulk is not None else self._take_frame(view, frames)
        return frames

    def _take_bulk(self, view: memoryview, frames: list[Frame]) -> memoryview:
        assert self._bulk is not None
        cls, place, left = self._bulk
        size = min(left, len(view))
        frames.append(Data(Lsn(place), view[:size]) if cls is Data else Part(place, view[:size]))
        self._bulk = (cls, place + size, left - size) if left > size else None
        return view[size:]

    def _take_frame(self, view: memoryview, frames: list[Frame]) -> memoryview:
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
        if kind in (_PART, _DATA):
            self._bulk = (Data if kind == _DATA else Part, *_PLACE.unpack(payload), length - covered)
        else:
            frames.append(_decode(kind, payload))
        return view

    def _fill(self, view: memoryview, size: int) -> memoryview:
        """Hold *size* bytes, as far as they are here; what is left of *view*."""
        wanted = max(size - len(self._held), 0)
        self._held += view[:wanted]
        return view[wanted:]

    def _covered_bytes(self, kind: int, length: int) -> int:
        """How much of a payload is covered by the head's checksum, before that can be checked: bounded."""
        cls, least, most = _LENGTHS.get(kind, (None, 0, 0))
        if cls not in self._hears:
            raise RemoteProtocolError(f"a frame of kind {kind}, which nobody says here")
        if not least <= length <= most:
            raise RemoteProtocolError(f"a frame of kind {kind} with {length} bytes: {least} to {most} are right")
        return _PLACE.size if kind in (_PART, _DATA) else length


_LENGTHS: Final[dict[int, tuple[type[Frame], int, int]]] = {
    **{kind: (cls, 2, TEXT_BYTES_MAX) for kind, cls in _TEXTS.items()},
    _PART: (Part, _PLACE.size + 1, _PLACE.size + BULK_BYTES_MAX),
    _DATA: (Data, _PLACE.size + 1, _PLACE.size + BULK_BYTES_MAX),
    _POSITION_KIND: (Position, _POSITION.size, _POSITION.size),
    _REPORT_KIND: (Report, _REPORT.size, _REPORT.size),
}


def _decode(kind: int, payload: bytes) -> Frame:
    if kind == _POSITION_KIND:
        fence, end, time_ms, flags = _POSITION.unpack(payload)
        if flags & ~(_IN_SYNC | _IS_SYNC):
            raise RemoteProtocolError(f"flags {flags} of a position")
        return Position(Lsn(fence), Lsn(end), time_ms, bool(flags & _IN_SYNC), "sync" if flags & _IS_SYNC else "async")
    if kind == _REPORT_KIND:
        return Report(Lsn(*_REPORT.unpack(payload)))
    try:
        return msgspec.json.decode(payload, type=_TEXTS[kind])
    except (ValueError, RecursionError) as error:  # msgspec's errors, and those of UTF-8, are ValueErrors
        raise RemoteProtocolError(f"a {_TEXTS[kind].__name__.lower()} that is none: {error}") from error
