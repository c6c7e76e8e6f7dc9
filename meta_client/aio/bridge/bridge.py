"""Runs blocking code inside a task: where the code waits, the task is suspended.

The rules of producers, branches and transactions are written once, in functions that wait. A task runs such a function
in a greenlet: `wait`, called at the bottom, passes an awaitable to the task, which awaits it and returns its outcome.
No thread is involved, nothing runs in parallel, and only `wait` yields control. Waiting in any other way would block
the loop.

Functions that must complete despite cancellation run in a separate task: `run_shielded`.
"""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any, Final, ParamSpec, TypeVar, cast

from greenlet import getcurrent, greenlet

Arguments = ParamSpec("Arguments")
_Outcome = TypeVar("_Outcome")

PATIENCE_S: Final = 10.0  # time limit for shielded work of a cancelled task

_log = logging.getLogger(__name__)


class _Rules(greenlet):
    """The greenlet that `wait` requires. SQLAlchemy accepts it as one of its own, which wait in the same way."""

    __sqlalchemy_greenlet_provider__ = True

    is_shielded = False  # the current wait must not be cancelled
    is_cancelled = False  # cancelled while shielded; CancelledError not raised yet


async def run(rules: Callable[Arguments, _Outcome], *arguments: Arguments.args, **named: Arguments.kwargs) -> _Outcome:
    """Call *rules*, which may `wait`. Raises their error; cancelling the task raises CancelledError in them."""
    return cast(_Outcome, await _drive(_Rules(rules), arguments, named))


async def run_shielded(
    rules: Callable[Arguments, _Outcome], *arguments: Arguments.args, **named: Arguments.kwargs
) -> _Outcome:
    """Run *rules* to their end, like `run`, even if the calling task is cancelled.

    CancelledError is raised in them at their next wait outside `shielded`. Waits beyond PATIENCE_S are cancelled
    nevertheless. Raises CancelledError in the end, with an error of the rules as its cause.
    """
    inner = _Rules(rules)
    inner.is_shielded = True  # until it has started
    ending = asyncio.create_task(_drive(inner, arguments, named))
    cancelled: asyncio.CancelledError | None = None
    now, due = asyncio.get_running_loop().time, 0.0
    while not ending.done():
        try:
            await asyncio.wait({ending}, timeout=None if cancelled is None else max(0.0, due - now()))
        except asyncio.CancelledError as error:
            due, cancelled = due if cancelled else now() + PATIENCE_S, error
            inner.is_cancelled = inner.is_shielded
            if not inner.is_shielded:
                ending.cancel()
        if cancelled is not None and now() >= due and not ending.done():
            due = now() + PATIENCE_S
            ending.cancel()
    if cancelled is None:
        return cast(_Outcome, ending.result())
    failure = None if ending.cancelled() else ending.exception()
    if failure is not None:
        _log.info("what a cancelled task had begun ended error=%s", failure)
    raise cancelled from failure


async def _drive(inner: _Rules, arguments: tuple[Any, ...], named: dict[str, Any]) -> object:
    inner.is_shielded = False
    inner.gr_context = copy_context()
    outcome = inner.switch(*arguments, **named)
    while not inner.dead:
        try:
            awaited = await cast(Awaitable[object], outcome)
        except BaseException as error:
            outcome = inner.throw(error)
        else:
            outcome = inner.switch(awaited)
    return outcome


def is_inside() -> bool:
    """True inside `run`, where `wait` is allowed."""
    return isinstance(getcurrent(), _Rules)


def wait(awaitable: Awaitable[_Outcome]) -> _Outcome:
    """Suspend the task until *awaitable* is done; return its result. Only inside `run`."""
    inner = getcurrent()
    assert isinstance(inner, _Rules), "rules that wait belong into run()"
    assert inner.parent is not None
    if inner.is_cancelled and not inner.is_shielded:
        inner.is_cancelled = False
        task = asyncio.current_task()
        assert task is not None
        task.cancel()  # raises in *awaitable* at its next wait
    return cast(_Outcome, inner.parent.switch(awaitable))


@contextmanager
def shielded() -> Iterator[None]:
    """Delay cancellation until the end of the block, for a COMMIT. Only inside `run_shielded`."""
    inner = getcurrent()
    assert isinstance(inner, _Rules)
    inner.is_shielded = True
    try:
        yield
    finally:
        inner.is_shielded = False


def check_cancelled() -> None:
    """Raise CancelledError if the task was cancelled during a `shielded` block."""
    inner = getcurrent()
    assert isinstance(inner, _Rules)
    if inner.is_cancelled:
        inner.is_cancelled = False
        raise asyncio.CancelledError


async def in_thread(
    work: Callable[Arguments, _Outcome], *arguments: Arguments.args, **named: Arguments.kwargs
) -> _Outcome:
    """Call *work* in a new thread with a copy of the context. A cancelled task does not wait for it.

    Doesn't use the loop's default executor: *work* may wait for listeners that need a place in it.
    """
    done: Future[_Outcome] = Future()
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


async def open_in_thread(opens: Callable[[], object], closes: Callable[[], object]) -> None:
    """Call *opens* in a thread, like `in_thread`. If the task is cancelled meanwhile, *closes*, which must be
    idempotent, is called in a thread once *opens* has ended: nobody else knows what it has opened."""
    ended = threading.Event()

    def opening() -> None:
        try:
            opens()
        finally:
            ended.set()

    def closing() -> None:
        ended.wait()
        closes()

    try:
        await in_thread(opening)
    except asyncio.CancelledError:
        threading.Thread(target=closing, name="metaq closing", daemon=True).start()
        raise
