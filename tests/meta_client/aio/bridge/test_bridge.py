"""Synchronous rules inside tasks: results, errors and cancellation pass through, whatever else the loop runs."""

import asyncio
import contextvars

import pytest

from meta_client.aio.bridge import bridge
from meta_client.aio.bridge.bridge import check_cancelled, run, run_shielded, shielded, wait
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


@in_loop
async def test_rules_that_run_whole_begin_and_end_though_their_task_is_cancelled_before() -> None:
    seen: list[str] = []

    def rules() -> str:
        seen.append("begun")
        with pytest.raises(asyncio.CancelledError):
            wait(asyncio.sleep(3600))
        wait(asyncio.sleep(0))  # it is told once
        seen.append("ended")
        return "whatever"

    async def cancelled_before() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await run_shielded(rules)

    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(cancelled_before())
    assert seen == ["begun", "ended"]
    assert await run_shielded(total, 1, 2) == 3


@pytest.mark.parametrize("asks", [True, False])
@in_uvloop
async def test_shielded_rules_are_not_broken_off_and_see_the_cancellation_afterwards(asks: bool) -> None:
    seen: list[object] = []
    waiting = asyncio.get_running_loop().create_future()

    def rules() -> None:
        with shielded():
            seen.append(wait(waiting))
        if asks:
            check_cancelled()
        seen.append("goes on")
        with shielded():
            wait(asyncio.sleep(0.01))
        wait(asyncio.sleep(3600))

    task = asyncio.create_task(run_shielded(rules))
    for _ in range(5):
        await asyncio.sleep(0)
        task.cancel()
    waiting.set_result("its outcome")
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == (["its outcome"] if asks else ["its outcome", "goes on"])


@in_loop
async def test_patience_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait for shielded rules is bounded each time; their result is the cause of the error."""
    monkeypatch.setattr(bridge, "PATIENCE_S", 0.05)
    broken: list[int] = []

    def rules() -> None:
        for number in (1, 2):
            with shielded():
                try:
                    wait(asyncio.sleep(3600))
                except asyncio.CancelledError:
                    broken.append(number)
        raise LookupError("nobody knows")

    task = asyncio.create_task(run_shielded(rules))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as raised:
        await task
    assert broken == [1, 2]
    cause = raised.value.__cause__ or (raised.value.__context__ and raised.value.__context__.__cause__)
    assert isinstance(cause, LookupError)
