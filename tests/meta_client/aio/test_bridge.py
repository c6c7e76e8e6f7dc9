"""Rules inside tasks: what goes in comes out, whoever else runs meanwhile."""

import asyncio
import contextvars

import pytest

from meta_client.aio.bridge import run, wait
from tests.fixtures.loops import in_loop, in_uvloop

name: contextvars.ContextVar[str] = contextvars.ContextVar("name")


async def later(value: int) -> int:
    await asyncio.sleep(0)
    return value


async def failing() -> int:
    await asyncio.sleep(0)
    raise LookupError("not here")


def total(*values: int, base: int = 0) -> int:
    return base + sum(wait(later(value)) for value in values)


@in_loop
async def test_what_is_awaited_comes_back() -> None:
    assert await run(total, 1, 2, 3, base=10) == 16
    assert await run(total) == 0


@in_uvloop
async def test_tasks_run_rules_side_by_side() -> None:
    assert await asyncio.gather(*(run(total, *range(number)) for number in range(50))) == [
        sum(range(number)) for number in range(50)
    ]


@in_loop
async def test_an_error_is_raised_where_it_was_waited_for() -> None:
    def rules() -> str:
        try:
            wait(failing())
        except LookupError as error:
            return f"handled: {error}"
        raise AssertionError("nothing was raised")

    assert await run(rules) == "handled: not here"
    with pytest.raises(LookupError, match="not here"):
        await run(lambda: wait(failing()))


@in_loop
async def test_a_cancelled_task_leaves_its_rules_through_their_finally() -> None:
    seen: list[str] = []

    def rules() -> None:
        try:
            wait(asyncio.sleep(3600))
        finally:
            seen.append("left")

    task = asyncio.create_task(run(rules))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["left"]


@in_loop
async def test_rules_see_the_context_of_their_task() -> None:
    name.set("outer")
    assert await run(lambda: (wait(later(0)), name.get())) == (0, "outer")


@in_loop
async def test_waiting_elsewhere_is_our_own_mistake() -> None:
    coroutine = later(1)
    with pytest.raises(AssertionError, match="belong into run"):
        wait(coroutine)
    coroutine.close()
