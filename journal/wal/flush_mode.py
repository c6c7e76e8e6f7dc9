"""Flush modes: the condition under which bytes of a journal count as acknowledged. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FlushMode:
    """Condition under which bytes count as acknowledged.

    interval_ms 0 (`sync`): once fsynced. n (`interval:n`): once written to the OS, fsynced every n ms; a killed process
    loses nothing, a power failure up to n ms.
    """

    interval_ms: int = 0

    @classmethod
    def parse(cls, text: str) -> "FlushMode":
        """Parse `sync` or `interval:<ms>`. Raises ValueError that names both."""
        if text == "sync":
            return cls(0)
        name, _, ms = text.partition(":")
        if name != "interval" or not ms.isascii() or not ms.isdigit() or not 1 <= int(ms) <= 60_000:
            raise ValueError(f"{text!r} is no flush mode: use sync, or interval:<1..60000 milliseconds>")
        return cls(int(ms))

    def __str__(self) -> str:
        return f"interval:{self.interval_ms}" if self.interval_ms else "sync"


SYNC = FlushMode()
