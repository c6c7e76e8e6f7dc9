"""What waits until the journal has acknowledged, in LSN order. Pure; one owner thread.

Acknowledged means: below the fence, the smaller of what is flushed here and what the in-sync slaves have. Index
entries, answers and waiting fetches all queue here, so that consumers see exactly what producers were told.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from journal.frame import Lsn

LSN_MAX = Lsn(2**63 - 1)


class Pause:
    """What an action returns that was long: those behind it wait until `advance` is called once more."""


PAUSE = Pause()
Action = Callable[..., Pause | None]


class Fence:
    """The acknowledged position, and the one ordered queue behind it. Invariant: acknowledged never falls."""

    __slots__ = ("_waiting", "acknowledged")

    def __init__(self, acknowledged: Lsn) -> None:
        self.acknowledged = acknowledged  # first byte that is not acknowledged
        self._waiting: deque[tuple[int, Action, tuple[Any, ...]]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def after(self, lsn: int, action: Action, *arguments: Any) -> None:
        """Call *action* once every byte below *lsn* is acknowledged: at once if that is so already.

        Actions run in the order in which they were given, whatever their LSNs: an answer never overtakes one
        that was asked for before it.
        """
        if lsn <= self.acknowledged and not self._waiting:
            action(*arguments)
        else:
            self._waiting.append((lsn, action, arguments))

    def advance(self, acknowledged: int) -> bool:
        """The fence moved: run what it has passed. An action may add further ones, or ask for a pause.

        False: there is more to run, once others have had their turn.
        """
        if acknowledged > self.acknowledged:
            self.acknowledged = Lsn(acknowledged)
        passed, waiting = self.acknowledged, self._waiting
        while waiting and waiting[0][0] <= passed:
            _, action, arguments = waiting.popleft()
            if action(*arguments) is PAUSE:
                return not (waiting and waiting[0][0] <= passed)
        return True
