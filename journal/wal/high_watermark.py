"""Queue of actions that wait for the journal's high watermark, in LSN order. Pure; one owner thread.

The high watermark is the smaller of the local flushed LSN and that of the in-sync slaves; below it bytes are
acknowledged. Index entries, replies and waiting fetches all queue here, so that consumers see exactly what was
acknowledged to producers.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from journal.errors import StorageFailed
from journal.records.header import Lsn

LSN_MAX = Lsn(2**63 - 1)


class Yield:
    """Returned by an action that took long: the ones behind it wait for the next call of `advance`."""


YIELD = Yield()
WatermarkAction = Callable[..., Yield | None]


class HighWatermark:
    """The acknowledged position, and the ordered queue of actions behind it. Invariant: acknowledged never falls.

    Fail-stop: once an action has raised, an index entry or a reply is missing, and no later action may run. That call
    and every later one raise StorageFailed.
    """

    __slots__ = ("_failure", "_waiting", "acknowledged")

    def __init__(self, acknowledged: Lsn) -> None:
        self.acknowledged = acknowledged  # first byte that is not acknowledged
        self._waiting: deque[tuple[int, WatermarkAction, tuple[Any, ...]]] = deque()
        self._failure: StorageFailed | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def run_after(self, lsn: int, action: WatermarkAction, *arguments: Any) -> None:
        """Call *action* once every byte below *lsn* is acknowledged: at once if it is.

        Actions run in the order in which they were queued, whatever their LSNs: a reply never overtakes one that was
        queued before it.
        """
        if lsn <= self.acknowledged and not self._waiting:
            self._run(lsn, action, arguments)
        else:
            self._waiting.append((lsn, action, arguments))

    def advance(self, acknowledged: int) -> bool:
        """Raise the high watermark and run the actions below it. An action may queue more, or return a Yield. Returns
        False if actions remain to run after a yield."""
        if acknowledged > self.acknowledged:
            self.acknowledged = Lsn(acknowledged)
        passed, waiting = self.acknowledged, self._waiting
        while waiting and waiting[0][0] <= passed:
            if self._run(*waiting.popleft()) is YIELD:
                return not (waiting and waiting[0][0] <= passed)
        if self._failure is not None:
            raise self._failure
        return True

    def _run(self, lsn: int, action: WatermarkAction, arguments: tuple[Any, ...]) -> Yield | None:
        if self._failure is not None:
            raise self._failure
        try:
            return action(*arguments)
        except BaseException as error:
            self._failure = StorageFailed(f"an action waiting for LSN {lsn} failed: {error!r}")
            raise self._failure from error
