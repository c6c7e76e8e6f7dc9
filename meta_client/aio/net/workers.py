"""A consumer's fetching and listeners as tasks, beside the group's thread. The twin of consumer/workers.py."""

import asyncio
import functools
import logging
import threading
from collections.abc import Callable, Coroutine, Generator
from contextvars import copy_context
from typing import Any, Final, TypeVar, cast

from meta_client.aio.bridge.bridge import in_thread, is_inside, run, wait
from meta_client.consumer.listener_exit import is_coroutine_function, listener_error

RESTART_S: Final = 0.1  # a loop that is shutting down ends before that

_Delivered = TypeVar("_Delivered")

_log = logging.getLogger(__name__)


class LoopCondition(threading.Condition):
    """A condition for tasks and threads: while code inside `run` waits for it, the loop continues.

    Shared with the group's thread, so hold it only for a few instructions.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._tasks: list[asyncio.Future[None]] = []  # waiters; guarded by the lock

    def wait(self, timeout: float | None = None) -> bool:
        if not is_inside():
            return super().wait(timeout)
        woken = self._loop.create_future()
        self._tasks.append(woken)
        self.release()
        try:
            return wait(_within(woken, timeout))
        finally:
            self.acquire()
            if woken in self._tasks:  # its time is over, or its task is cancelled
                self._tasks.remove(woken)

    def notify(self, n: int = 1) -> None:
        # Wakes all tasks, whatever the number: waiters check their condition again.
        super().notify(n)
        if self._tasks:
            tasks, self._tasks = self._tasks, []
            self._loop.call_soon_threadsafe(_wake, tasks)


class LoopEvent:
    """An event for tasks, inside `run`, and for threads. Any thread may set it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._condition = LoopCondition(loop)
        self._is_set = False

    def set(self) -> None:
        with self._condition:
            self._is_set = True
            self._condition.notify_all()

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        with self._condition:
            return self._condition.wait_for(self.is_set, timeout)


class Tasks:
    """Workers as tasks. Made on the loop's thread; the group's thread calls `start` and `join`.

    A task that is cancelled from outside, or ends by an exit exception, is replaced while the loop runs.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._redelivering: set[asyncio.Task[object] | None] = set()  # with a listener that redelivery has called
        self._thread = threading.get_ident()
        self._is_ending = False

    def condition(self) -> threading.Condition:
        return LoopCondition(self._loop)

    def start(self, work: Callable[[], None], count: int, name: str) -> None:
        asyncio.run_coroutine_threadsafe(self._start(work, count, name), self._loop).result()

    def join(self) -> None:
        self._is_ending = True
        if self._tasks:
            asyncio.run_coroutine_threadsafe(self._join(), self._loop).result()

    def is_current(self) -> bool:
        if threading.get_ident() != self._thread:
            return False
        return asyncio.current_task() in self._tasks | self._redelivering

    def block(self, work: Callable[[], None]) -> None:
        if is_inside():
            wait(in_thread(work))
        else:  # the redelivery thread
            work()

    def listener(self, topic: str, function: Callable[[_Delivered], object]) -> Callable[[_Delivered], object]:
        if not is_coroutine_function(function):
            raise TypeError(
                f"topic {topic}: listener {function!r} is no coroutine function (`async def`) and would stop the "
                "loop: meta_client.Client, the client with threads, calls plain functions"
            )
        coroutine_of = cast(Callable[[_Delivered], Coroutine[Any, Any, object]], function)

        def call(delivered: _Delivered) -> object:
            handled = _Handled(coroutine_of(delivered))
            if is_inside():
                return wait(handled)
            return asyncio.run_coroutine_threadsafe(self._result_of(handled), self._loop).result()  # redelivery thread

        return call

    async def _start(self, work: Callable[[], None], count: int, name: str) -> None:
        for number in range(count):
            self._begin(work, f"{name} {number}")

    def _begin(self, work: Callable[[], None], name: str) -> None:
        task = self._loop.create_task(run(work), name=name)
        self._tasks.add(task)
        task.add_done_callback(functools.partial(self._on_ended, work))

    def _on_ended(self, work: Callable[[], None], task: "asyncio.Task[None]") -> None:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None and not self._is_ending:
            _log.error("runner ended, another one begins name=%s error=%r", task.get_name(), error, exc_info=error)
            self._loop.call_later(RESTART_S, self._replace, work, task)

    def _replace(self, work: Callable[[], None], task: "asyncio.Task[None]") -> None:
        if not self._is_ending:
            self._tasks.discard(task)
            self._begin(work, task.get_name())

    async def _result_of(self, handled: "_Handled") -> object:
        task = asyncio.current_task()
        self._redelivering.add(task)
        try:
            return await handled
        finally:
            self._redelivering.discard(task)

    async def _join(self) -> None:
        await asyncio.wait(self._tasks)


class _Handled:
    """Outcome of a listener's call: its coroutine, awaited in a copy of the task's context.

    A BaseException from the listener counts as raised by it, except the task's own cancellation.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, object]) -> None:
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, object]:
        coroutine, context, task = self._coroutine, copy_context(), asyncio.current_task()
        step: Callable[[], object] = functools.partial(coroutine.send, None)
        is_closed = False
        while True:
            try:
                awaited = context.run(step)
            except StopIteration as returned:
                return returned.value
            except Exception:
                raise
            except asyncio.CancelledError as error:
                if task is not None and task.cancelling():
                    raise
                raise listener_error(error) from error
            except BaseException as error:
                if is_closed:
                    raise
                raise listener_error(error) from error
            try:
                step = functools.partial(coroutine.send, (yield awaited))
            except BaseException as error:
                is_closed = isinstance(error, GeneratorExit)
                step = functools.partial(coroutine.throw, error)


async def _within(woken: "asyncio.Future[None]", timeout_s: float | None) -> bool:
    try:
        async with asyncio.timeout(timeout_s):
            await woken
    except TimeoutError:
        return False
    return True


def _wake(tasks: "list[asyncio.Future[None]]") -> None:
    for woken in tasks:
        if not woken.done():
            woken.set_result(None)
