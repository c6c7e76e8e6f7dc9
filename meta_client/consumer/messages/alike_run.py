"""Plain messages of one length that follow one another: a table over the bytes of a fetch's answer. Pure.

Nothing is copied, and no object is made for a message until it is asked for. A run keeps its view of the answer, so
that the buffer below it is not used again.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import chain
from struct import Struct
from typing import Any, Final

from journal.checksum import crc32
from meta_client import core
from meta_client.protocol.frame_columns import checksum_columns
from meta_client.protocol.messages import DATA_BYTES_MAX, HEADER_BYTES
from meta_client.protocol.requests import Body

# Try so many first, and twice as many next while they are alike.
ALIKE_MIN: Final = 8
ALIKE_MAX: Final = 4096
_LENGTH: Final = Struct(">i")
_LENGTH_BYTES: Final = 4
_CRC_AT: Final = 4
_FLAG_AT: Final = 16


class AlikeRun:
    """Messages [position, position + count * size) of *body*, each *size* bytes long with its header. Immutable."""

    __slots__ = ("body", "count", "position", "size")

    def __init__(self, body: Body, position: int, size: int, count: int) -> None:
        self.body = body
        self.position = position
        self.size = size
        self.count = count

    @property
    def end(self) -> int:
        """Position after the last message."""
        return self.position + self.size * self.count

    def ids(self) -> Iterator[int]:
        return chain.from_iterable(self._rows(_id_of(self.size)))

    def payloads(self) -> Iterator[bytes]:
        """Return a copy of each payload."""
        return chain.from_iterable(self._rows(_payload_of(self.size)))

    def part(self, start: int, stop: int) -> "AlikeRun":
        """Return messages [start, stop) of the run."""
        return AlikeRun(self.body, self.position + start * self.size, self.size, stop - start)

    def table(self, numpy: Any) -> Any:
        """Return the bytes as a numpy array, a row for each message; *numpy* is the module."""
        flat = numpy.frombuffer(memoryview(self.body).toreadonly(), numpy.uint8, self.count * self.size, self.position)
        return flat.reshape(self.count, self.size)

    def _rows(self, layout: Struct) -> Iterator[tuple[Any, ...]]:
        return layout.iter_unpack(memoryview(self.body)[self.position : self.end])


def maybe_alike(body: Body, position: int, count_max: int) -> AlikeRun | None:
    """Return the run of *count_max* messages at *position*, or as many as there are, if all are plain and sound.

    The native core needs no *count_max*: it finds where they end."""
    (length,) = _LENGTH.unpack_from(body, position)
    size = HEADER_BYTES + length
    if core.core is not None:
        found: int = core.core.alike_frames(body, position, ALIKE_MIN, len(body), DATA_BYTES_MAX, crc32)
        return AlikeRun(body, position, size, found) if found else None
    if not 0 <= length <= DATA_BYTES_MAX or (count := min(count_max, (len(body) - position) // size)) < ALIKE_MIN:
        return None
    # Strided slices of a view are fifty times as slow as those of what it is a view of, from the first byte on.
    whole = body.obj if isinstance(body, memoryview) else body
    assert isinstance(whole, bytes | bytearray)
    run = AlikeRun(body, position, size, count)
    lengths = length.to_bytes(_LENGTH_BYTES)
    if not all(_column(whole, run, at) == lengths[at : at + 1] * count for at in range(_LENGTH_BYTES)):
        return None
    if any(any(_column(whole, run, at)) for at in range(_FLAG_AT, HEADER_BYTES)):
        return None
    sound = enumerate(checksum_columns(run.payloads()), _CRC_AT)
    return run if all(_column(whole, run, at) == column for at, column in sound) else None


def _column(whole: bytes | bytearray, run: AlikeRun, at: int) -> bytes | bytearray:
    """Return byte *at* of every message."""
    return whole[run.position + at : run.end : run.size]


@lru_cache(maxsize=256)
def _id_of(size: int) -> Struct:
    return Struct(f">8xq{size - _FLAG_AT}x")


@lru_cache(maxsize=256)
def _payload_of(size: int) -> Struct:
    return Struct(f"{HEADER_BYTES}x{size - HEADER_BYTES}s")
