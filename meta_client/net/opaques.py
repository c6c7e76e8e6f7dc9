"""Opaques: the numbers that match replies to requests (spec 1.2). Stands alone: the process has one counter for all of
its connections, with threads and in a loop."""

import itertools

_RESERVED = 16  # the highest ones stay unused: an absent opaque reads as 2147483647
_POSITIVE = 2**31 - _RESERVED
_COUNT = 2**32 - _RESERVED

_numbers = itertools.count()  # one per process, as in the Java client; next() on it is atomic


def next_opaque() -> int:
    """Return an opaque no request in flight of this process has: from 0 up, then the negative ones. Any thread."""
    number = next(_numbers) % _COUNT
    return number if number < _POSITIVE else number - _COUNT
