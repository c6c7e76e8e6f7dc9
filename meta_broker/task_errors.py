"""Reports errors of tasks that nothing awaits. Stands alone: handlers, filters and store share it, and nothing else."""

import asyncio


def raise_task_error(task: "asyncio.Task[None]") -> None:
    """Done callback that makes the loop log the task's error, with its traceback."""
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error
