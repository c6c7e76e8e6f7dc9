"""Decimal integers of command lines, parsed as by Java (spec 0.4).

One optional sign, then ASCII digits, then a range check. Python's int() also accepts underscores and white space, so
that two readers of one line would disagree: such tokens are rejected.
"""

from functools import lru_cache

INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
_TOKEN_BYTES_MAX = 20  # of "-9223372036854775808"; Java would also take any number of leading zeros


def int32(token: bytes) -> int:
    """Parse an int32. Raises ValueError."""
    if token.isdigit() and len(token) < 10:  # every number of nine digits fits: the common case skips the range
        return int(token)
    return _checked(token, INT32_MIN, INT32_MAX, "int32")


# For numbers of which a peer sends the same few again and again, partitions and lengths: three times as fast.
int32_repeated = lru_cache(maxsize=4096)(int32)


def int64(token: bytes) -> int:
    """Parse an int64. Raises ValueError."""
    if token.isdigit() and len(token) < 19:
        return int(token)
    return _checked(token, INT64_MIN, INT64_MAX, "int64")


def _checked(token: bytes, lowest: int, highest: int, kind: str) -> int:
    digits = token[1:] if token[:1] in (b"-", b"+") else token
    if len(token) <= _TOKEN_BYTES_MAX and digits.isdigit() and lowest <= (number := int(token)) <= highest:
        return number
    raise ValueError(f"{token[: 2 * _TOKEN_BYTES_MAX]!r} is not an {kind}")
