"""Compressed payloads: the codec in a message's flag, compression and decompression (PROTOCOL.md, Compression).

Extension `compression`. Genuine clients neither send nor check such a flag, so brokers accept compressed messages only
for topics where an operator allows them. The libraries are an extra, imported on first use; a broker needs none.
"""

import struct
import threading
from collections.abc import Callable
from enum import IntEnum
from importlib.util import find_spec
from typing import Final, NamedTuple

# A flag with this upper half has a codec's number in its third byte. A word, not a bit: brokers keep any flag that a
# client sends, and an application's private flag must never read as "compressed".
FLAG_MAGIC: Final = 0x4D51
LENGTH: Final = struct.Struct(">i")  # decompressed length of the payload; precedes the codec's output
ZSTD_LEVEL: Final = 3  # the library's own default: beyond it, time grows faster than bytes shrink
ZSTD_WINDOW_BYTES_MAX: Final = 8 * 1024 * 1024  # every decoder must support it, by the format's specification


class Codec(IntEnum):
    """Compression codec. The numbers are the wire's."""

    ZSTD = 1
    LZ4 = 2

    @property
    def label(self) -> str:
        """Name in configuration files and command lines."""
        return self.name.lower()

    @property
    def flag(self) -> int:
        return FLAG_MAGIC << 16 | self.value << 8


CODEC_NUMBERS: Final = frozenset(codec.value for codec in Codec)
LABELS: Final = tuple(sorted(codec.label for codec in Codec))
NO_COMPRESSION: Final = "none"  # setting: no codec is allowed
PACKAGES: Final = {Codec.ZSTD: "zstandard", Codec.LZ4: "lz4"}


def codec_of(label: str) -> Codec:
    """Return the codec of that name. Raises ValueError."""
    for codec in Codec:
        if codec.label == label:
            return codec
    raise ValueError(f"{label[:40]!r} is no codec: use {' or '.join(LABELS)}")


def codec_number(flag: int) -> int:
    """Return the number of a payload's codec, which may be unknown here; 0: not compressed."""
    return flag >> 8 & 0xFF if flag >> 16 == FLAG_MAGIC else 0


def is_installed(codec: Codec) -> bool:
    """True if this process can compress and decompress with *codec*."""
    return find_spec(PACKAGES[codec]) is not None


def compress(codec: Codec, payload: bytes) -> bytes:
    """Return the data part's form of *payload*. Raises ModuleNotFoundError without the codec's package. Any thread."""
    return LENGTH.pack(len(payload)) + _engine(codec).compress(payload)


def decompress(number: int, data: bytes, bytes_max: int) -> bytes:
    """Return the payload in *data*, compressed by codec *number*: *bytes_max* bytes at most.

    Checks the declared length first and never produces more. Raises ValueError for bytes that the codec does not write,
    ModuleNotFoundError without its package. Any thread.
    """
    length = declared_bytes(number, data, bytes_max)
    codec = Codec(number)
    payload = _engine(codec).decompress(data[LENGTH.size :], length)
    if len(payload) != length:
        raise ValueError(f"{codec.label} gives {len(payload)} bytes, {length} are declared")
    return payload


def declared_bytes(number: int, data: bytes | memoryview, bytes_max: int) -> int:
    """Return the decompressed length declared in *data*. Needs no package. Raises ValueError, also beyond
    *bytes_max*."""
    if number not in CODEC_NUMBERS:
        raise ValueError(f"codec {number} is not known: a newer metaq may have sent it")
    if len(data) < LENGTH.size:
        raise ValueError(f"{len(data)} compressed bytes have no room for their length")
    length: int = LENGTH.unpack_from(data)[0]
    if not 0 <= length <= bytes_max:
        raise ValueError(f"{length} bytes once decompressed are outside [0, {bytes_max}]")
    return length


class _Engine(NamedTuple):
    compress: Callable[[bytes], bytes]
    decompress: Callable[[bytes, int], bytes]  # of data and declared length; raises ValueError


class _Engines(threading.local):
    """One engine per codec and thread: zstandard's contexts are not thread-safe and expensive to create."""

    def __init__(self) -> None:
        self.by_codec: dict[Codec, _Engine] = {}


_engines = _Engines()


def _engine(codec: Codec) -> _Engine:
    engine = _engines.by_codec.get(codec)
    if engine is None:
        engine = _engines.by_codec[codec] = _zstd() if codec is Codec.ZSTD else _lz4()
    return engine


def _zstd() -> _Engine:
    import zstandard

    # No content size in the frame: the length precedes it, and a decoder would allocate any size that a frame claims.
    compressor = zstandard.ZstdCompressor(ZSTD_LEVEL, write_content_size=False, write_dict_id=False)
    decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW_BYTES_MAX)

    def decompress(data: bytes, length: int) -> bytes:
        try:
            if zstandard.frame_content_size(data) not in (-1, length):
                raise ValueError("the zstd frame claims another length than is declared")
            # One byte for an empty payload: 0 would mean no limit.
            return decompressor.decompress(data, max_output_size=length or 1, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise ValueError(f"zstd: {error}") from error

    return _Engine(compressor.compress, decompress)


def _lz4() -> _Engine:
    from lz4 import block

    def compress(payload: bytes) -> bytes:
        compressed: bytes = block.compress(payload, store_size=False)
        return compressed

    def decompress(data: bytes, length: int) -> bytes:
        try:
            payload: bytes = block.decompress(data, uncompressed_size=length)
        except block.LZ4BlockError as error:
            raise ValueError(f"lz4: {error}") from error
        return payload

    return _Engine(compress, decompress)
