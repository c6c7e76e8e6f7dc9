"""Tasks that are cancelled anywhere: a row and its message, or neither; connection and producer go on being used."""

import asyncio
import contextlib
import functools
import types
from collections.abc import Callable, Coroutine, Generator
from random import Random
from typing import Any

import pytest

from meta_client import ByAttribute, TransactionMisuse
from meta_client.aio import Client, Producer
from meta_client.errors import NoPartition
from meta_client.producer.xa_verbs import REQUEST_TIMEOUT_S
from meta_client.transactions import CommitStep, TransactionConfig
from tests.fixtures.loops import in_loop, in_uvloop
from tests.meta_client.aio.transactions.ways import WAYS, Opened, opened, source
from tests.meta_client.transactions.conftest import World

AGE_S = 1.5  # of what a look resolves; more than any transaction takes from PREPARE to its row
every_way = pytest.mark.parametrize("way", WAYS)


def client_of(world: World, **config: Any) -> Client:
    return Client(world.zookeeper, transactions=TransactionConfig(age_s=AGE_S, interval_s=0.1, **config))


async def work(client: Client, producer: Producer, one: Opened, number: int, *, wait: bool = False) -> None:
    """A transaction over two brokers."""
    async with client.transaction(one.connection, wait=wait) as transaction:
        transaction.join(producer)
        await one.execute(f"INSERT INTO numbers VALUES ({number})")
        await producer.send_async("orders", str(number).encode())
        await transaction.send("bills", str(number).encode())


async def cancelled(request: "asyncio.Task[None]") -> bool:
    """True if it ended so."""
    await asyncio.wait({request})
    if not request.cancelled():
        request.result()
    return request.cancelled()


class Awaits:
    """Counts where any task waits, and cancels one task at a given number."""

    def __init__(self) -> None:
        self.count = 0
        self.target = 0
        self.request: asyncio.Task[None] | None = None

    def make_task(self, loop: asyncio.AbstractEventLoop, coroutine: Any, **named: Any) -> "asyncio.Task[Any]":
        return asyncio.Task(self._counted(coroutine), loop=loop, **named)

    @types.coroutine
    def _counted(self, coroutine: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        step: Callable[[], Any] = functools.partial(coroutine.send, None)
        while True:
            try:
                awaited = step()
            except StopIteration as returned:
                return returned.value
            self.count += 1
            if self.count == self.target and self.request is not None:
                self.request.cancel()
            try:
                sent = yield awaited
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as error:
                step = functools.partial(coroutine.throw, error)
            else:
                step = functools.partial(coroutine.send, sent)


@every_way
@in_loop
async def test_at_every_await(world: World, way: str) -> None:
    awaits = Awaits()
    number = cut = 0
    async with client_of(world) as client, opened(way, world.deciding.url) as one:
        producer = client.producer(partitioner=ByAttribute())
        await work(client, producer, one, 0)
        asyncio.get_running_loop().set_task_factory(awaits.make_task)
        for target in range(1, 1000):
            number += 2
            awaits.request = None
            awaits.count, awaits.target = 0, target
            awaits.request = asyncio.create_task(work(client, producer, one, number, wait=target % 2 == 0))
            was_cancelled = await cancelled(awaits.request)
            awaits.target = 0
            assert not await one.is_closed()
            assert await one.is_idle()
            await work(client, producer, one, number + 1)
            if not was_cancelled:
                break
            cut += 1
        asyncio.get_running_loop().set_task_factory(None)
        await asyncio.to_thread(world.wait_quiet)
        (counts,) = client.transaction_counts().values()
        assert counts.hazards == 0
    print(f"cancelled at {cut} places")
    rows = world.deciding.numbers()
    assert (world.messages("orders"), world.messages("bills")) == (rows, rows)
    assert cut > 4
    assert set(range(3, number + 2, 2)) <= set(rows)
    assert number in rows


@every_way
@pytest.mark.parametrize("at", [CommitStep.PREPARED, CommitStep.RECORDED, CommitStep.DECIDED, CommitStep.COMMIT_SENT])
@in_uvloop
async def test_at_every_step(world: World, way: str, at: CommitStep) -> None:
    requests: list[asyncio.Task[None]] = []

    def cancel(step: CommitStep, gtrid: str) -> None:
        if step is at and requests:
            requests.pop().cancel()

    async with client_of(world, observer=cancel) as client, opened(way, world.deciding.url) as one:
        producer = client.producer()
        for number in (1, 2):
            requests.append(asyncio.create_task(work(client, producer, one, number, wait=number == 2)))
            assert await cancelled(requests[0])
        await work(client, producer, one, 3)
        await asyncio.to_thread(world.wait_quiet)
    # Cancelled once the row is written, COMMIT is what is waited for: it is on its way to the database already.
    world.check([3] if at is CommitStep.PREPARED else [1, 2, 3], topics=("orders", "bills"))


@every_way
@in_loop
async def test_at_random_and_again_and_again(world: World, way: str) -> None:
    """A third of the requests is cancelled in every turn of the loop until it has ended, as some frameworks do."""
    random = Random(way)
    done = 0
    async with client_of(world) as client, source(way, world.deciding.url) as lent:
        began = asyncio.get_running_loop().time()
        async with lent.opened() as one:
            for number in range(5):
                await work(client, client.producer(), one, -1 - number)
        takes_s = (asyncio.get_running_loop().time() - began) / 5

        async def requests(task: int) -> None:
            nonlocal done, takes_s
            producer = client.producer()
            for number in range(12):
                async with lent.opened() as one:
                    request = asyncio.create_task(
                        work(client, producer, one, task * 100 + number, wait=number % 2 == 0)
                    )
                    await asyncio.wait({request}, timeout=takes_s * random.uniform(0.0, 6.0))
                    takes_s *= 0.9 if request.done() else 1.1  # the machine's pace may have changed
                    request.cancel()
                    while not request.done() and task % 3 == 0:
                        await asyncio.sleep(0)
                        request.cancel()
                    await asyncio.wait({request})
                    done += not request.cancelled()
                    with contextlib.suppress(asyncio.CancelledError):
                        request.result()

        await asyncio.gather(*(requests(task) for task in range(6)))
        await asyncio.to_thread(world.wait_quiet)
        (counts,) = client.transaction_counts().values()
        assert counts.hazards == 0
    rows = world.deciding.numbers()
    assert (world.messages("orders"), world.messages("bills")) == (rows, rows)
    assert 0 < done < 72, "all were quick enough, or none"


@in_loop
async def test_a_send_that_was_cut_short_and_a_block_that_went_on(world: World) -> None:
    async with client_of(world) as client, opened("psycopg", world.deciding.url) as one:
        with pytest.raises(TransactionMisuse, match="may not have been sent"):  # noqa: PT012
            async with client.transaction(one.connection) as transaction:
                await one.execute("INSERT INTO numbers VALUES (1)")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0):
                        await transaction.send("orders", b"1")
        assert transaction.step is CommitStep.ROLLED_BACK
    world.check([])


@pytest.mark.parametrize("way", ["psycopg", "asyncpg"])
@in_loop
async def test_a_broker_that_does_not_answer_is_not_waited_for(world: World, way: str) -> None:
    (_, stopped) = world.brokers
    async with client_of(world) as client, opened(way, world.deciding.url) as one:
        await work(client, client.producer(), one, 1)
        await asyncio.to_thread(world.wait_quiet)
        loop = asyncio.get_running_loop()
        stopped.pause()
        try:
            began = loop.time()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await work(client, client.producer(), one, 2)
            assert loop.time() - began < 0.5 + 2 * REQUEST_TIMEOUT_S  # for its ROLLBACK's answer, not its PREPARE's
        finally:
            stopped.resume()
        async with asyncio.timeout(60):
            while True:
                with contextlib.suppress(NoPartition):  # its session has expired
                    await work(client, client.producer(), one, 3)
                    break
        await asyncio.to_thread(world.wait_quiet)
    world.check([1, 3], topics=("orders", "bills"))
