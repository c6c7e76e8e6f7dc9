"""Thread that waits for the disk, so that the event loop does not."""

import asyncio
import functools
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

IN_FLIGHT_MAX = 2  # the running one and the next: the thread need not wait for the loop


class BlockingRead(Protocol):
    """A read that waits for the disk: a ColdRead, or a part of an index that is not in memory."""

    def run(self) -> bytes: ...


class ColdReader:
    """Runs cold reads one after the other, in the order of the calls. Loop thread only.

    A waiting read holds no bytes, and at most IN_FLIGHT_MAX results wait for the loop: memory is bounded as long as
    callers bound the number of reads.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, "cold-reads")  # starts its thread with the first read
        self._waiting: deque[tuple[BlockingRead, asyncio.Future[bytes]]] = deque()
        self._in_flight_count = 0

    def __len__(self) -> int:
        """Number of unfinished reads."""
        return len(self._waiting) + self._in_flight_count

    def read(self, read: BlockingRead) -> "asyncio.Future[bytes]":
        """Queue *read*; the future may fail with StorageFailed. Cancelling it skips a read that has not begun."""
        future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.append((read, future))
        self._start_next()
        return future

    def _start_next(self) -> None:
        while self._waiting and self._in_flight_count < IN_FLIGHT_MAX:
            read, future = self._waiting.popleft()
            if not future.cancelled():
                self._in_flight_count += 1
                done = asyncio.get_running_loop().run_in_executor(self._executor, read.run)
                done.add_done_callback(functools.partial(self._on_read, future))

    def _on_read(self, future: "asyncio.Future[bytes]", done: "asyncio.Future[bytes]") -> None:
        self._in_flight_count -= 1
        self._start_next()
        error = done.exception()
        if future.cancelled():
            return
        if error is None:
            future.set_result(done.result())
        else:
            future.set_exception(error)

    async def close(self) -> None:
        """Cancel waiting reads, and wait for the running one. Idempotent."""
        while self._waiting:
            self._waiting.popleft()[1].cancel()
        await asyncio.to_thread(self._executor.shutdown)
