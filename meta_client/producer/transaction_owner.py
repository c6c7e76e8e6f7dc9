"""Owner of a producer's transaction: one thread, or one task, at a time."""

import asyncio
import threading

from meta_client.errors import TransactionMisuse

_Caller = tuple[threading.Thread, "asyncio.Task[object] | None"]


class TransactionOwner:
    """Thread or task that an open transaction belongs to: the one that creates this, until it is transferred."""

    def __init__(self) -> None:
        self._owner = _caller()

    def transfer_to_caller(self) -> None:
        """Make the caller the owner."""
        self._owner = _caller()

    def check(self, kind: str, name: object) -> None:
        """Raise TransactionMisuse unless the caller is the owner of the transaction: the *kind* of it, and its *name*,
        of which a text is made for the error alone."""
        if self._owner != _caller():
            raise TransactionMisuse(
                f"{kind} {name} is open on this producer, and another thread or task works on it: what you send would "
                f"be part of it; use a producer of your own, or call the producer's join() to go on with it here"
            )


def _caller() -> _Caller:
    # Objects, as idents are reused. The private function, as asyncio.current_task raises without a loop.
    loop = asyncio._get_running_loop()
    return threading.current_thread(), None if loop is None else asyncio.current_task(loop)
