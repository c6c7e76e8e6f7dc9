"""Conditions and events that tasks wait for beside threads."""

import asyncio
import contextlib

from meta_client.aio.bridge.bridge import run
from meta_client.aio.net.workers import LoopCondition
from tests.fixtures.loops import in_loop, until


@in_loop
async def test_a_wait_that_nobody_ended_leaves_nothing_behind() -> None:
    """Poll as a service does whose topic gets nothing."""
    condition = LoopCondition(asyncio.get_running_loop())

    def wait(timeout_s: float | None) -> bool:
        with condition:
            return condition.wait(timeout_s)

    assert not await run(wait, 0.001)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(run(wait, None), 0.001)
    assert condition._tasks == []
    waiting = asyncio.create_task(run(wait, None))
    await until(lambda: bool(condition._tasks))
    with condition:
        condition.notify_all()
    assert await waiting
