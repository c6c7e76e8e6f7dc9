"""Mutual exclusion for threads that do not wait for it, which no exception of a signal's handler leaves taken.

Such an exception may be raised after any call, so also between `lock.acquire(blocking=False)` and the `try` behind it.
Here taking names a token, and what the token has is given back whether or not the taking got so far.
"""

from collections.abc import Callable


class Turn:
    """One thread at a time has it."""

    __slots__ = ("_holder",)

    def __init__(self) -> None:
        self._holder: dict[None, object] = {}

    @property
    def is_taken(self) -> bool:
        return bool(self._holder)

    def run(self, action: Callable[[], None]) -> bool:
        """Call *action* unless another thread has the turn; False: it has. Raises what *action* raises."""
        token = object()
        try:
            try:
                if is_mine := self._holder.setdefault(None, token) is token:
                    action()
            finally:
                self._end(token)
        except BaseException:
            self._end(token)  # the first one may have been interrupted itself
            raise
        return is_mine

    def _end(self, token: object) -> None:
        if self._holder.get(None) is token:
            self._holder.clear()
