"""What becomes of an error that ends a task which nobody waits for."""

import asyncio


def raise_error(task: "asyncio.Task[None]") -> None:
    """A done callback: the loop logs the error, with where it was raised."""
    if not task.cancelled() and (error := task.exception()) is not None:
        raise error
