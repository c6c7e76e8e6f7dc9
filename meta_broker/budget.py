"""Bytes that connections hold, all of them together, and who has to let go when it is too much. Pure."""

from typing import Generic, TypeVar

Holder = TypeVar("Holder")


class Budget(Generic[Holder]):
    """What each holder holds, the one first that has held something for the longest without getting on.

    Who gets on (has sent a whole request, has taken an answer) goes to the back: a peer that stalls is the first
    to let go, however much the others hold. One owner thread; every step costs a constant time.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.total = 0
        self._held: dict[Holder, int] = {}  # nobody with nothing

    def note(self, holder: Holder, held: int, *, gets_on: bool) -> None:
        """*holder* holds *held* bytes now; *gets_on*: it has made progress since it was noted last."""
        before = self._held.get(holder, 0)
        self.total += held - before
        if before and (gets_on or not held):
            del self._held[holder]
        if held:
            self._held[holder] = held

    def held_by(self, holder: Holder) -> int:
        """As it was noted last."""
        return self._held.get(holder, 0)

    def excess(self) -> Holder | None:
        """Who has to let go; None while all is well. Whoever it is: note it, or ask again for ever."""
        return next(iter(self._held)) if self.total > self.bytes_max else None
