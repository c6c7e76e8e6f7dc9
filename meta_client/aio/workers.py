"""A consumer's fetching and listeners as tasks, beside the group's thread: the twin of consumer/workers.py."""

import asyncio
import threading
from collections.abc import Callable

from meta_client.aio.bridge import is_inside, run, wait


class LoopCondition(threading.Condition):
    """A condition that tasks wait for as well as threads do: while rules wait for it, their loop goes on.

    What changes under it may be changed by the group's thread; it is held for a few instructions, by either.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._tasks: list[asyncio.Future[None]] = []  # that wait; guarded by the lock

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

    def notify(self, n: int = 1) -> None:
        # All tasks, however many are meant: who waits looks again whether it is what it waited for.
        super().notify(n)
        if self._tasks:
            tasks, self._tasks = self._tasks, []
            self._loop.call_soon_threadsafe(_wake, tasks)


class Tasks:
    """A task each. Made on the loop's thread; `start` and `join` are for the group's."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.get_ident()

    def condition(self) -> threading.Condition:
        return LoopCondition(self._loop)

    def start(self, work: Callable[[], None], count: int, name: str) -> None:
        asyncio.run_coroutine_threadsafe(self._start(work, count, name), self._loop).result()

    def join(self) -> None:
        if self._tasks:
            asyncio.run_coroutine_threadsafe(self._join(), self._loop).result()

    def is_current(self) -> bool:
        if threading.get_ident() != self._thread:
            return False
        return asyncio.current_task() in self._tasks

    def block(self, work: Callable[[], None]) -> None:
        if is_inside():
            wait(asyncio.to_thread(work))
        else:  # a thread of its own: who offers what was refused
            work()

    async def _start(self, work: Callable[[], None], count: int, name: str) -> None:
        self._tasks = {asyncio.create_task(run(work), name=f"{name} {number}") for number in range(count)}

    async def _join(self) -> None:
        await asyncio.wait(self._tasks)


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
