"""Untrusted text, times and ages as people read them."""

from datetime import UTC, datetime
from typing import Final

import click

_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def printable(text: str) -> str:
    """Return *text* without terminal control sequences: data from a disk is untrusted."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text)


def printable_lines(text: str) -> str:
    """Return *text* as `printable` does, keeping its lines."""
    return "\n".join(map(printable, text.split("\n")))


def tell(text: str) -> None:
    """Print *text* on stderr. Strangers choose the names in it: of members, of nodes, of who decided."""
    click.echo(printable_lines(text), err=True)


def time_text(time_ms: int) -> str:
    seconds, ms = divmod(time_ms, 1000)
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{ms:03}Z"
    except (ValueError, OverflowError):
        return f"{time_ms}ms"  # outside the calendar's range


def age_text(seconds: float) -> str:
    """Format as `3 h 12 min`: the two largest units, rounded down."""
    left, words = max(0, int(seconds)), list[str]()
    for size, unit in _UNITS:
        if left >= size or (unit == "s" and not words):
            words.append(f"{left // size} {unit}")
            left %= size
    return " ".join(words[:2])
