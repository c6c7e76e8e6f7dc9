"""The gets that wait for a filter, among what else the event loop does."""

import asyncio

from meta_broker.filters.process import FilterProcess
from meta_broker.filters.runner import Filters
from tests.fixtures.loops import in_loop, until


@in_loop
async def test_one_that_comes_at_the_moment_when_the_last_one_ends() -> None:
    filters, done = Filters(1.0), list[str]()

    async def first(process: FilterProcess) -> None:
        assert process is not None
        asyncio.get_running_loop().call_soon(filters.submit, "a", second)  # before the queue's task is known to be over
        done.append("first")

    async def second(process: FilterProcess) -> None:
        assert process is not None
        done.append("second")

    filters.submit("a", first)
    await until(lambda: done == ["first", "second"])
    await filters.close()
