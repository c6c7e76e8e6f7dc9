"""The numbers that match answers to requests (spec 1.2)."""

import itertools

_RESERVED = 16  # the highest ones stay unused: 2147483647 is what an absent opaque is read as
_POSITIVE = 2**31 - _RESERVED
_COUNT = 2**32 - _RESERVED

_numbers = itertools.count()  # one for the process, as in the Java client; next() on it is atomic


def next_opaque() -> int:
    """A number that no request of this process in flight has: from 0 up, then the negative ones. Any thread."""
    number = next(_numbers) % _COUNT
    return number if number < _POSITIVE else number - _COUNT
