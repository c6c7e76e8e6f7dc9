"""Limits the bytes that all connections hold together, and chooses the one that must release some. Pure."""

from typing import Generic, TypeVar

Holder = TypeVar("Holder")


class Budget(Generic[Holder]):
    """Bytes held by each holder, ordered by the time since it last made progress.

    A holder that makes progress (a whole request received, a reply read) moves to the back: the one stalled longest is
    the first to be reduced, however much the others hold. One thread; every step costs constant time.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.total = 0
        self._held: dict[Holder, int] = {}  # no zeros

    def record(self, holder: Holder, held: int, *, made_progress: bool) -> None:
        """Record that *holder* holds *held* bytes; *made_progress*: it has made progress since the last call."""
        before = self._held.get(holder, 0)
        self.total += held - before
        if before and (made_progress or not held):
            del self._held[holder]
        if held:
            self._held[holder] = held

    def held_by(self, holder: Holder) -> int:
        return self._held.get(holder, 0)

    def excess(self) -> Holder | None:
        """Return the holder that must release bytes; None: the total is within the limit.

        Reduce that holder's usage with `record` before calling again.
        """
        return next(iter(self._held)) if self.total > self.bytes_max else None
