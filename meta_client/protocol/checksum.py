"""The checksum of message bodies (spec 0.5). Stands alone: broker, producer and consumer share it; the journal has all
32 bits."""

from journal.checksum import crc32

CRC31_MASK = 0x7FFF_FFFF  # the ancestor keeps a checksum in a signed int32 and clears the sign bit


def crc31(data: bytes | bytearray | memoryview) -> int:
    """CRC-32 of *data* without its highest bit: always in [0, 2147483647]."""
    return crc32(data) & CRC31_MASK
