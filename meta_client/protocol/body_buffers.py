"""Buffers for large bodies, used again: fresh memory of that size costs a page fault for each 4 KiB.

A body is a view of its buffer, and so is everything made of it without a copy. A buffer is free again once no view of
it is left, however late that is: a bytearray with a view can't be resized, which is the test.
"""

from typing import Final

REUSED_BYTES_MIN: Final = 32 * 1024  # smaller bodies are copied: cheaper than a buffer each
REUSED_BYTES_MAX: Final = 1024 * 1024  # larger ones grow as they arrive: a peer that announces one need not send it
_UNIT: Final = 64 * 1024  # buffers have a multiple of it, to suit more bodies
_BUFFERS_MAX: Final = 16  # looked through for each body


class BodyBuffers:
    """Keeps buffers of *kept_bytes_max* in all. One thread at a time."""

    def __init__(self, kept_bytes_max: int) -> None:
        self._kept: list[bytearray] = []  # the most recently allocated last
        self._left = kept_bytes_max

    def allocate(self, size: int) -> memoryview:
        """Return a writable view of *size* bytes; what they hold is undefined."""
        for index, buffer in enumerate(self._kept):
            if len(buffer) >= size and _is_free(buffer):
                self._kept.append(self._kept.pop(index))
                return memoryview(buffer)[:size]
        buffer = bytearray(-(-size // _UNIT) * _UNIT)
        if len(buffer) <= self._left and len(self._kept) < _BUFFERS_MAX:
            self._left -= len(buffer)
            self._kept.append(buffer)
        return memoryview(buffer)[:size]


def _is_free(buffer: bytearray) -> bool:
    """Return True if there is no view of *buffer*."""
    try:
        buffer.append(buffer.pop())  # in place: it takes no memory and gives none back
    except BufferError:
        return False
    return True
