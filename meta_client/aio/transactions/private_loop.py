"""A decision table over an asynchronous connection, for a task in its loop and for a thread with a private loop."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

from meta_client.aio.bridge.bridge import is_inside, run, wait
from meta_client.transactions.statements import not_a_connection
from meta_client.transactions.table import DecisionTable, Opener

_Outcome = TypeVar("_Outcome")


def for_threads_too(open_table: Opener) -> Opener:
    """Make *open_table*, which waits inside `run`, usable in threads, too."""

    def opened() -> DecisionTable:
        return open_table() if is_inside() else cast(DecisionTable, _PrivateLoop(open_table))

    return opened


def connected(connect: Callable[[], Awaitable[Any]]) -> Any:
    """Return a connection from *connect*, inside `run`. Raises CannotEnlist for a function that is not asynchronous."""
    made = connect()
    if not inspect.isawaitable(made):
        raise not_a_connection(made, "an async function")
    return wait(made)


class _PrivateLoop:
    """Runs a table's calls in a private loop. One thread only."""

    def __init__(self, open_table: Opener) -> None:
        self._runner = asyncio.Runner()
        try:
            self._table = self._do(open_table)
        except BaseException:
            self._runner.close()
            raise

    @property
    def identity(self) -> object:
        return self._table.identity

    def close(self) -> None:
        with self._runner:
            self._do(self._table.close)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method: Callable[..., Any] = getattr(self._table, name)
        return lambda *arguments: self._do(method, *arguments)

    def _do(self, work: Callable[..., _Outcome], *arguments: object) -> _Outcome:
        return self._runner.run(run(work, *arguments))
