"""What waits until the journal has acknowledged, in LSN order. Pure; one owner thread.

Acknowledged means: below the fence, the smaller of what is flushed here and what the in-sync slaves have. Index
entries, answers and waiting fetches all queue here, so that consumers see exactly what producers were told.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from journal.errors import StorageFailed
from journal.frame import Lsn

LSN_MAX = Lsn(2**63 - 1)


class Pause:
    """What an action returns that was long: those behind it wait until `advance` is called once more."""


PAUSE = Pause()
Action = Callable[..., Pause | None]


class Fence:
    """The acknowledged position, and the one ordered queue behind it. Invariant: acknowledged never falls.

    Fail-stop: once an action has raised, a publication or an answer is missing, and no later one may be told. That call
    and every later one raise StorageFailed.
    """

    __slots__ = ("_failure", "_waiting", "acknowledged")

    def __init__(self, acknowledged: Lsn) -> None:
        self.acknowledged = acknowledged  # first byte that is not acknowledged
        self._waiting: deque[tuple[int, Action, tuple[Any, ...]]] = deque()
        self._failure: StorageFailed | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def after(self, lsn: int, action: Action, *arguments: Any) -> None:
        """Call *action* once every byte below *lsn* is acknowledged: at once if that is so already.

        Actions run in the order in which they were given, whatever their LSNs: an answer never overtakes one
        that was asked for before it.
        """
        if lsn <= self.acknowledged and not self._waiting:
            self._run(lsn, action, arguments)
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
            if self._run(*waiting.popleft()) is PAUSE:
                return not (waiting and waiting[0][0] <= passed)
        if self._failure is not None:
            raise self._failure
        return True

    def _run(self, lsn: int, action: Action, arguments: tuple[Any, ...]) -> Pause | None:
        if self._failure is not None:
            raise self._failure
        try:
            return action(*arguments)
        except BaseException as error:
            self._failure = StorageFailed(f"what waited for LSN {lsn} could not be told: {error!r}")
            raise self._failure from error
