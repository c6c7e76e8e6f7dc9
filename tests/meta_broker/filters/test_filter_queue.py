"""The gets that wait for a filter, among what else the event loop does."""

import asyncio
from asyncio.subprocess import PIPE, Process
from pathlib import Path

import pytest

from meta_broker.filters.pipe import ANSWER, VERDICT
from meta_broker.filters.process import FilterFailed, FilterProcess
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


async def answering(path: Path, verdicts: list[tuple[int, int]], count: int | None) -> Process:
    """A process in the filter's place whose next answer is this."""
    head = ANSWER.pack(len(verdicts) if count is None else count, 0)
    path.write_bytes(head + b"".join(VERDICT.pack(*each) for each in verdicts))  # noqa: ASYNC240 - a few bytes
    return await asyncio.create_subprocess_exec("cat", path, "-", stdin=PIPE, stdout=PIPE)


@pytest.mark.parametrize(
    ("verdicts", "count", "why"),
    [
        ([], 1000, "1000 verdicts on 100 bytes"),
        ([(50, 1), (50, 0)], None, "messages that end before they begin, or outside"),
        ([(101, 1)], None, "messages that end before they begin, or outside"),
    ],
)
@in_loop
async def test_what_is_no_answer_is_none(
    tmp_path: Path, verdicts: list[tuple[int, int]], count: int | None, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Said once, however often it comes; the filter is not started again for a while."""
    filter_process = FilterProcess("doubtful", 60.0)
    for _ in range(2):
        filter_process._process = await answering(tmp_path / "answer", verdicts, count)
        filter_process._rests_until = 0.0
        with pytest.raises(FilterFailed, match=why):
            await filter_process.judge("billing", b"x" * 100)
    assert caplog.text.count(why) == 1
    with pytest.raises(FilterFailed, match=why):
        await filter_process.judge("billing", b"x" * 100)
    await filter_process.stop()
    with pytest.raises(FilterFailed, match="the broker is stopping"):
        await filter_process.judge("billing", b"x" * 100)


@in_loop
async def test_one_that_is_stopped_while_it_starts_does_not_stay() -> None:
    filter_process = FilterProcess("json:loads", 60.0)
    asking = asyncio.ensure_future(filter_process.judge("billing", b"x" * 100))
    await asyncio.sleep(0)
    await filter_process.stop()
    with pytest.raises(FilterFailed, match="the broker is stopping"):
        await asking
    assert filter_process._process is None
