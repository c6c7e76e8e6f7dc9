"""Tests for zeros at memory speed: a start reads the unused rest of a segment."""

from typing import Final

_ZEROS: Final = bytes(2 * 1024 * 1024)


def is_zero(data: bytes) -> bool:
    """True if all of *data* is zero."""
    return _ZEROS.startswith(data) if len(data) <= len(_ZEROS) else data.count(0) == len(data)
