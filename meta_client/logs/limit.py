"""Limits repeats: a line of code that logs again and again is heard so often a second, and then how many were left out.

Pure, except for the clock that it is given.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

BURST: Final = 100  # records of one place in the code, at once
PER_SECOND: Final = 1.0  # after that
PLACES_MAX: Final = 1_000
TELL_S: Final = 10.0  # a place that has fallen silent is told of after that

CallSite = tuple[str, int]  # file and line of the call


@dataclass(slots=True)
class _Seen:
    """One place. *left*: how many more may come at *at*."""

    left: float
    at: float
    omitted: int = 0


class RepeatLimit:
    """Decides which records are written. Under the lock of its handler."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._places: OrderedDict[CallSite, _Seen] = OrderedDict()  # the longest silent first

    def admit(self, record: logging.LogRecord) -> int | None:
        """Return how many records of the same place were left out before *record*; None: leave this one out."""
        place, now = (record.pathname, record.lineno), self._clock()
        if (seen := self._places.get(place)) is None:
            seen = self._places[place] = _Seen(BURST, now)
        self._places.move_to_end(place)
        seen.left = min(seen.left + (now - seen.at) * PER_SECOND, BURST)
        seen.at = now
        if seen.left < 1:
            seen.omitted += 1
            return None
        seen.left -= 1
        omitted, seen.omitted = seen.omitted, 0
        return omitted

    def overdue(self, *, everything: bool = False) -> list[tuple[CallSite, int]]:
        """Take the places that logged nothing for TELL_S, with the number of records left out; *everything*: all of
        them. Forgets those that are the longest silent beyond PLACES_MAX."""
        now, found = self._clock(), []
        for place, seen in list(self._places.items()):
            is_forgotten = len(self._places) > PLACES_MAX
            if not (everything or is_forgotten or now - seen.at >= TELL_S):
                break
            if seen.omitted:
                found.append((place, seen.omitted))
                seen.omitted = 0
            if is_forgotten or now - seen.at >= BURST / PER_SECOND:
                del self._places[place]
        return found
