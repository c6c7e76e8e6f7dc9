"""The numbers that match answers to requests (spec 1.2)."""

import itertools

from meta_client.protocol.integers import INT32_MIN

_RESERVED = 16  # the highest ones stay unused: 2147483647 is what an absent opaque is read as
_COUNT = 2**32 - _RESERVED

_numbers = itertools.count()  # one for the process, as in the Java client; next() on it is atomic


def next_opaque() -> int:
    """A number that no request of this process in flight has. Any thread."""
    return next(_numbers) % _COUNT + INT32_MIN
