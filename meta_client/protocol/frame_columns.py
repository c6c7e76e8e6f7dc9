"""The frames of a batch as a table. Pure.

Frames of one length are a table's rows, and byte k of every frame is a column: one strided slice. Work on every message
of a batch takes a few column copies instead of a loop over messages.
"""

import sys
from array import array
from collections.abc import Iterable, Sequence
from itertools import chain, repeat
from struct import Struct
from typing import Final

from journal.checksum import crc32
from meta_client.protocol.checksum import CRC31_MASK
from meta_client.protocol.messages import HEADER, HEADER_BYTES
from meta_client.protocol.requests import Body

ALIKE_MIN: Final = 8  # fewer messages are processed faster one by one
_CRC_AT: Final = 4
_CRC_BYTES: Final = 4
_CRCS: Final = "I"  # array's unsigned 32-bit type
_PLACES: Final = range(_CRC_BYTES) if sys.byteorder == "big" else range(_CRC_BYTES)[::-1]
_WITHOUT_TOP_BIT: Final = bytes(byte & CRC31_MASK >> 24 for byte in range(256))  # clears the sign bit: crc32 to crc31


def encode_frames(flags: Sequence[int], bodies: Sequence[bytes]) -> Body:
    """One frame for each body, with id 0, as an mput carries them."""
    count = len(bodies)
    if count >= ALIKE_MIN:
        length, flag = len(bodies[0]), flags[0]
        if flags.count(flag) == count and list(map(len, bodies)).count(length) == count:
            header = bytearray(HEADER.pack(length, 0, 0, flag))
            frames = header.join(chain((b"",), bodies))
            for at, column in enumerate(checksum_columns(bodies), _CRC_AT):
                frames[at :: HEADER_BYTES + length] = column
            return memoryview(frames)  # a copy as bytes is fresh memory: its page faults cost more than all before
    checksums = [crc & CRC31_MASK for crc in map(crc32, bodies)]
    headers = map(HEADER.pack, map(len, bodies), checksums, repeat(0), flags)
    return b"".join(chain.from_iterable(zip(headers, bodies, strict=True)))


def have_sound_checksums(frames: bytearray, end: int, size: int) -> bool:
    """True if every frame of *frames* up to *end*, each *size* bytes long, has the checksum of its data.

    A bytearray is asked, not a view of it: strided slices of views are fifty times as slow.
    """
    with memoryview(frames)[:end] as view:
        datas = chain.from_iterable(Struct(f"{HEADER_BYTES}x{size - HEADER_BYTES}s").iter_unpack(view))
        columns = checksum_columns(datas)
    return all(frames[at:end:size] == column for at, column in enumerate(columns, _CRC_AT))


def checksum_columns(datas: Iterable[bytes]) -> list[bytes]:
    """Return the crc31 of each of *datas* as columns: all first bytes, all second bytes and so on, most significant
    first."""
    crcs = array(_CRCS, map(crc32, datas)).tobytes()
    top, *others = (crcs[at::_CRC_BYTES] for at in _PLACES)
    return [top.translate(_WITHOUT_TOP_BIT), *others]
