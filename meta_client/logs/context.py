"""Correlation of log lines: what the code that logs is working for.

`conn` of a broker is set while it handles a connection's requests, `rebalance` of a consumer while it does that; a
branch is in the fields of its own lines. Each is set for the present thread, or context of a task, alone.

Stands alone: what logs imports no handler.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Final

CONTEXT: Final[ContextVar[dict[str, str]]] = ContextVar("metaq log context", default={})  # noqa: B039 - never mutated


@contextlib.contextmanager
def logged_with(**fields: str) -> Iterator[None]:
    """Add *fields* to every line that is logged inside, by this thread or task."""
    token = CONTEXT.set(CONTEXT.get() | fields)
    try:
        yield
    finally:
        CONTEXT.reset(token)
