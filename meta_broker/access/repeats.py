"""Limits the lines of the audit log that a principal can cause at no cost. The caller has the clock."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final

WINDOW_S: Final = 60.0  # the same line is written once in it
LINES_MAX: Final = 100  # of one principal in a window
FREE_ACTIONS_MAX: Final = 10_000  # of one principal in a window: more are refused, not left out


@dataclass(slots=True)
class _PrincipalWindow:
    ends: float
    left_out: int  # before it
    told: set[Hashable] = field(default_factory=set)


class RepeatedLines:
    """Lines of each principal, bounded: at most LINES_MAX different ones a window, and how many were left out.

    Loop thread only. Principals are those of the access file.
    """

    def __init__(self) -> None:
        self._windows: dict[str, _PrincipalWindow] = {}

    def admit(self, principal: str, line: Hashable, now: float) -> int | None:
        """Return how many lines of *principal* were left out before *line*; None: leave this one out.

        A line that was written in this window does not count as left out.
        """
        window = self._windows.get(principal)
        if window is None or now >= window.ends:
            window = self._windows[principal] = _PrincipalWindow(
                now + WINDOW_S, 0 if window is None else window.left_out
            )
        if line in window.told:
            return None
        if len(window.told) >= LINES_MAX:
            window.left_out += 1
            return None
        window.told.add(line)
        left_out, window.left_out = window.left_out, 0
        return left_out


class FreeActions:
    """Actions of each principal that are noted, cost the broker nothing, and take an ordinary right: resets, of which a
    group has one a partition, and findings. Loop thread only."""

    def __init__(self) -> None:
        self._windows: dict[str, tuple[float, int]] = {}  # end, and actions noted

    def admit(self, principal: str, now: float) -> bool:
        """Return whether *principal* may have one more noted."""
        ends, noted = self._windows.get(principal, (0.0, 0))
        if now >= ends:
            ends, noted = now + WINDOW_S, 0
        if noted >= FREE_ACTIONS_MAX:
            return False
        self._windows[principal] = ends, noted + 1
        return True
