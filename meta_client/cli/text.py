"""Times and untrusted texts in commands' output."""

from datetime import UTC, datetime


def printable(text: str) -> str:
    """Return *text* without terminal control sequences: data from a disk is untrusted."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def time_text(time_ms: int) -> str:
    seconds, ms = divmod(time_ms, 1000)
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{ms:03}Z"
    except (ValueError, OverflowError):
        return f"{time_ms}ms"  # outside the calendar's range
