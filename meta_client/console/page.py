"""A page: its path, templates, and the function that reads what it shows.

The part in `parts/` is what server-sent events replace. A page has no state; what a stream has seen since it was
opened is in its Past.
"""

import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from starlette.datastructures import QueryParams

from meta_client.console.reads import Reads
from meta_client.console.settings import ConsoleSettings

ROWS_MAX: Final = 100  # of a page
SAMPLES_MAX: Final = 3


@dataclass(slots=True)
class Past:
    """Counters of earlier reads of one stream: name to time and value."""

    samples: dict[str, deque[tuple[float, int]]] = field(default_factory=dict)

    def rate(self, name: str, value: int | None) -> float | None:
        """Add a sample, and return the change a second since the oldest one; None before the second sample, after a
        restart of what counts, or for None."""
        if value is None:
            return None
        seen = self.samples.setdefault(name, deque(maxlen=SAMPLES_MAX))
        now = time.monotonic()
        if seen and value < seen[-1][1]:
            seen.clear()
        seen.append((now, value))
        (then, before) = seen[0]
        return (value - before) / (now - then) if len(seen) > 1 and now > then else None


@dataclass(slots=True)
class Asked:
    settings: ConsoleSettings
    reads: Reads
    path: Mapping[str, str]
    query: QueryParams
    past: Past = field(default_factory=Past)

    @property
    def start(self) -> int:
        """Number of the first row to show."""
        text = self.query.get("start", "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


class NotHere(Exception):
    """There is no such page, or what it is about does not exist: status 404."""


class InvalidQuery(Exception):
    """A value in the URL or form is none: status 400."""


Values = dict[str, Any]
ReadPage = Callable[[Asked], Awaitable[Values]]


@dataclass(frozen=True, slots=True)
class Page:
    """One page. *live_s*: seconds between two reads of its stream; 0: it has none."""

    path: str
    title: str
    template: str  # of the whole page; in `parts/`: the part that is replaced
    read: ReadPage
    live_s: float = 0.0
    section: str = ""  # path of the entry of the navigation


@dataclass(frozen=True, slots=True)
class Rows:
    """One page of a long list."""

    rows: tuple[Any, ...]
    start: int
    total: int

    @classmethod
    def of(cls, rows: "list[Any] | tuple[Any, ...]", start: int) -> "Rows":
        return cls(tuple(rows[start : start + ROWS_MAX]), start, len(rows))

    @property
    def before(self) -> int | None:
        return max(self.start - ROWS_MAX, 0) if self.start else None

    @property
    def next(self) -> int | None:
        following = self.start + ROWS_MAX
        return following if following < self.total else None
