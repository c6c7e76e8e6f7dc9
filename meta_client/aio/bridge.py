"""Rules that were written for threads, run inside a task: where they wait, the task does.

What a producer, a branch or a transaction may do and in which order is written once, in functions that wait. A task
runs such a function in a greenlet of its own: `wait`, called at the bottom of it, hands an awaitable out to the task,
which awaits it like any other, and brings its outcome back in. No thread is involved, nothing runs at the same time,
and nothing but `wait` gives up control. Waiting in any other way would stop the whole loop.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextvars import copy_context
from typing import ParamSpec, TypeVar, cast

from greenlet import getcurrent, greenlet

Arguments = ParamSpec("Arguments")
Outcome = TypeVar("Outcome")


class _Rules(greenlet):
    """What `wait` must run in."""


async def run(rules: Callable[Arguments, Outcome], *arguments: Arguments.args, **named: Arguments.kwargs) -> Outcome:
    """Call *rules*, which may `wait`. Raises what it raises; a task that is cancelled raises CancelledError in it."""
    inner = _Rules(rules)
    inner.gr_context = copy_context()
    outcome = inner.switch(*arguments, **named)
    while not inner.dead:
        try:
            awaited = await cast(Awaitable[object], outcome)
        except BaseException as error:
            outcome = inner.throw(error)
        else:
            outcome = inner.switch(awaited)
    return cast(Outcome, outcome)


def is_inside() -> bool:
    """Whether the caller runs inside `run`, and may `wait`."""
    return isinstance(getcurrent(), _Rules)


def wait(awaitable: Awaitable[Outcome]) -> Outcome:
    """The outcome of *awaitable*, which the task awaits. Only inside `run`."""
    inner = getcurrent()
    assert isinstance(inner, _Rules), "rules that wait belong into run()"
    assert inner.parent is not None
    return cast(Outcome, inner.parent.switch(awaitable))


async def in_thread(
    work: Callable[Arguments, Outcome], *arguments: Arguments.args, **named: Arguments.kwargs
) -> Outcome:
    """Call *work* in a thread of its own, and in a copy of the context. A task that is cancelled does not wait for it.

    The loop's default executor is the user's: *work* may wait for listeners, and they for a place in it.
    """
    done: Future[Outcome] = Future()
    done.set_running_or_notify_cancel()
    context = copy_context()

    def call() -> None:
        try:
            outcome = context.run(work, *arguments, **named)
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(outcome)

    threading.Thread(target=call, name=f"metaq {getattr(work, '__name__', work)}", daemon=True).start()
    return await asyncio.wrap_future(done)
