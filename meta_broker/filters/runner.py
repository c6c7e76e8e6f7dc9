"""The filters of a broker, each with its own queue of gets: one at a time, and no filter waits for another."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from meta_broker.filters.process import FilterProcess
from meta_broker.task_errors import raise_task_error

log = logging.getLogger(__name__)

Job = Callable[[FilterProcess], Awaitable[None]]


class _FilterQueue:
    """Jobs of one filter, in order."""

    def __init__(self, process: FilterProcess) -> None:
        self.process = process
        self.jobs: deque[Job] = deque()
        self.task: asyncio.Task[None] | None = None

    async def drain(self) -> None:
        try:
            while self.jobs:
                await self.jobs.popleft()(self.process)
        finally:
            self.task = None  # here, not in the task's callback: a job submitted in between would not run


class Filters:
    """Runs jobs on filters by name. Loop thread only.

    Waiting jobs are bounded by each connection's requests in flight.
    """

    def __init__(self, seconds_max: float) -> None:
        self._seconds_max = seconds_max
        self._queues: dict[str, _FilterQueue] = {}

    def submit(self, name: str, job: Job) -> None:
        """Call *job* with the process of filter *name* once its earlier jobs are done."""
        if (queue := self._queues.get(name)) is None:
            queue = self._queues[name] = _FilterQueue(FilterProcess(name, self._seconds_max))
        queue.jobs.append(job)
        if queue.task is None:
            queue.task = asyncio.get_running_loop().create_task(queue.drain())
            queue.task.add_done_callback(raise_task_error)

    async def close(self) -> None:
        """Stop every filter's process for good; waiting jobs fail. Idempotent."""
        for queue in self._queues.values():
            await queue.process.stop()
        if tasks := [queue.task for queue in self._queues.values() if queue.task is not None]:
            await asyncio.wait(tasks)
