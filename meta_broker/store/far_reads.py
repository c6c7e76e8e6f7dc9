"""The thread that waits for the disk, so that the event loop does not."""

import asyncio
import functools
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

IN_HAND = 2  # one that is read, and the next: the thread need not wait for the loop


class Blocking(Protocol):
    """A read that waits for the disk: a FarRead, or a part of an index that is not in memory."""

    def run(self) -> bytes: ...


class FarReads:
    """Does far reads, one after the other, in the order in which they are asked for. Loop thread only.

    What waits holds no bytes, and no more than IN_HAND answers wait for the loop: so long as somebody bounds how many
    are asked for, the memory is bounded.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, "far-reads")  # makes its thread for the first one
        self._waiting: deque[tuple[Blocking, asyncio.Future[bytes]]] = deque()
        self._in_hand = 0

    def __len__(self) -> int:
        """How many are asked for and not done."""
        return len(self._waiting) + self._in_hand

    def read(self, read: Blocking) -> "asyncio.Future[bytes]":
        """What *read* reads; the future may have StorageFailed. Cancel it, and it is not read if that is not begun."""
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.append((read, future))
        self._hand_out()
        return future

    def _hand_out(self) -> None:
        while self._waiting and self._in_hand < IN_HAND:
            read, future = self._waiting.popleft()
            if not future.cancelled():
                self._in_hand += 1
                done = asyncio.get_running_loop().run_in_executor(self._executor, read.run)
                done.add_done_callback(functools.partial(self._take, future))

    def _take(self, future: "asyncio.Future[bytes]", done: "asyncio.Future[bytes]") -> None:
        self._in_hand -= 1
        self._hand_out()
        error = done.exception()
        if future.cancelled():
            return
        if error is None:
            future.set_result(done.result())
        else:
            future.set_exception(error)

    async def close(self) -> None:
        """Give up what waits, and wait for what is being read. Idempotent."""
        while self._waiting:
            self._waiting.popleft()[1].cancel()
        await asyncio.to_thread(self._executor.shutdown)
