"""Listeners of tasks, with a real broker: what is no Exception, what can't be called, and contexts of their own."""

import asyncio
import contextvars
import functools
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from meta_client.aio.client import Client
from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.error_policy import Reject
from meta_client.consumer.messages.batch import Batch
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.errors import ConsumerMisuse
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.loops import in_loop, in_uvloop, until
from zk.embedded.chroot import Chroot

current: contextvars.ContextVar[bytes] = contextvars.ContextVar("current")
config = ConsumerConfig(runners=1, backoff_s_max=0.05)  # one, so that nothing at all would be served any more


class Fatal(BaseException):
    """Error of the test that is no Exception."""


async def awaits_what_is_cancelled() -> None:
    waiting = asyncio.get_running_loop().create_future()
    waiting.cancel()
    await waiting


async def cancels_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


async def raises(error: type[BaseException]) -> None:
    await asyncio.sleep(0)
    raise error


FAULTS: list[Callable[[], Any]] = [
    awaits_what_is_cancelled,
    functools.partial(raises, asyncio.CancelledError),
    functools.partial(raises, GeneratorExit),
    functools.partial(raises, Fatal),
    cancels_itself,
]


async def whatever_a_listener_raises(zookeeper: Chroot) -> None:
    seen: list[bytes] = []

    async def on_message(message: ReceivedMessage) -> None:
        seen.append(message.payload)
        if message.payload == b"hard" and (attempt := seen.count(b"hard")) <= len(FAULTS):
            await FAULTS[attempt - 1]()

    async with Client(zookeeper.connect) as client:
        consumer = client.consumer("reader", config=config)
        consumer.subscribe("orders", on_message=on_message)
        async with consumer:
            await client.producer().send("orders", b"hard", partition="0-0")
            await client.producer().send("orders", b"easy", partition="0-1")
            await until(lambda: seen.count(b"hard") > len(FAULTS) and b"easy" in seen and consumer.is_caught_up())
    assert seen.count(b"easy") == 1
    assert seen.count(b"hard") == len(FAULTS) + 1


@in_uvloop
async def test_whatever_a_listener_raises_its_runner_goes_on(
    zookeeper: Chroot, broker: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, "meta_client"):
        await whatever_a_listener_raises(zookeeper)
    told = [repr(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert told == [
        "ListenerExited('CancelledError()')",
        "ListenerExited('CancelledError()')",
        "ListenerExited('GeneratorExit()')",
        "ListenerExited('Fatal()')",
        "CancelledError()",  # the runner itself was cancelled, and replaced
    ]
    assert "another one begins name=metaq reader runner 0" in caplog.text


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_an_exit_ends_the_program_and_if_it_does_not_the_runner_goes_on(
    zookeeper: Chroot, broker: BrokerProcess, error: type[BaseException]
) -> None:
    seen: list[bytes] = []

    async def on_message(message: ReceivedMessage) -> None:
        seen.append(message.payload)
        if len(seen) == 1:
            raise error

    async def main(total: int) -> None:
        async with Client(zookeeper.connect) as client:
            consumer = client.consumer("reader", config=config)
            consumer.subscribe("orders", on_message=on_message)
            async with consumer:
                await client.producer().send("orders", b"hard", partition="0-0")
                await until(lambda: len(seen) == total and consumer.is_caught_up())

    with pytest.raises(error):
        asyncio.run(main(1))
    assert seen == [b"hard"]
    seen.clear()
    loop = asyncio.new_event_loop()
    try:
        task = loop.create_task(main(3))
        with pytest.raises(error):
            loop.run_until_complete(task)
        loop.run_until_complete(task)  # its runner goes on nevertheless
    finally:
        loop.close()
    assert seen == [b"hard"] * 3  # the first of them twice


@in_loop
async def test_the_listener_of_a_dead_letter_exits(zookeeper: Chroot, broker: BrokerProcess, tmp_path: Path) -> None:
    """The exit happens on the thread that redelivers, which goes on."""
    tried: list[bytes] = []

    async def on_message(message: ReceivedMessage) -> None:
        tried.append(message.payload)
        if len(tried) == 1:
            raise Reject("not now")
        if len(tried) < 4:
            raise asyncio.CancelledError if len(tried) == 2 else Fatal

    parking = ConsumerConfig(dead_letter_directory=str(tmp_path / "refused"), redelivery_period_s=0.1)
    async with Client(zookeeper.connect) as client:
        consumer = client.consumer("reader", config=parking)
        consumer.subscribe("orders", on_message=on_message, on_reject="dead_letter")
        async with consumer:
            await client.producer().send("orders", b"bad")
            await until(lambda: len(tried) >= 4 and not consumer.dead_letters())
    assert tried == [b"bad"] * 4


@in_loop
async def test_the_listener_of_a_dead_letter_that_closes_its_consumer_is_told_so(
    zookeeper: Chroot, broker: BrokerProcess, tmp_path: Path
) -> None:
    tried: list[bytes] = []
    told: list[BaseException] = []
    parking = ConsumerConfig(dead_letter_directory=str(tmp_path / "refused"), redelivery_period_s=0.1)
    async with Client(zookeeper.connect) as client:
        consumer = client.consumer("reader", config=parking)

        async def on_message(message: ReceivedMessage) -> None:
            tried.append(message.payload)
            if len(tried) == 1:
                raise Reject("not now")
            try:
                async with asyncio.timeout(10):  # it would wait for itself
                    await consumer.close()
            except (ConsumerMisuse, TimeoutError) as error:
                told.append(error)

        consumer.subscribe("orders", on_message=on_message, on_reject="dead_letter")
        async with consumer:
            await client.producer().send("orders", b"bad")
            await until(lambda: bool(told) and not consumer.dead_letters())
    assert [type(error) for error in told] == [ConsumerMisuse]


class Callables:
    async def __call__(self, batch: Batch) -> None: ...

    async def method(self, batch: Batch) -> None: ...

    def plain(self, batch: Batch) -> None: ...


@in_loop
async def test_coroutine_functions_of_any_kind_are_taken_and_plain_ones_refused(zookeeper: Chroot) -> None:
    async def on_batch(batch: Batch, extra: int = 0) -> None: ...

    async def generator(batch: Batch) -> Any:
        yield 1

    async with Client(zookeeper.connect) as client:
        consumer = client.consumer("reader")
        for plain in (print, lambda batch: on_batch(batch), Callables().plain, functools.partial(print), generator):
            with pytest.raises(TypeError, match=r"async def.*meta_client\.Client"):
                consumer.subscribe("orders", plain)  # type: ignore[arg-type]  # the mistake
        with pytest.raises(TypeError, match=r"accept .* is a coroutine function"):
            consumer.subscribe("orders", on_batch, accept=on_batch)  # type: ignore[arg-type]  # the mistake
        partial = functools.partial(functools.partial(Callables()))
        taken: list[Any] = [on_batch, functools.partial(on_batch, extra=1), Callables().method, partial]
        for number, listener in enumerate(taken):
            consumer.subscribe(f"orders-{number}", listener)


@in_loop
async def test_each_message_and_each_batch_has_a_context_of_its_own(zookeeper: Chroot, broker: BrokerProcess) -> None:
    found: list[bytes | None] = []

    async def on_message(message: ReceivedMessage) -> None:
        found.append(current.get(None))
        token = current.set(message.payload)
        await asyncio.sleep(0)
        assert await asyncio.to_thread(current.get) == message.payload
        current.reset(token)
        current.set(message.payload)

    async def on_batch(batch: Batch) -> None:
        await on_message(batch.messages[0])

    async with Client(zookeeper.connect) as client:
        kinds: list[tuple[str, Any]] = [("singly", {"on_message": on_message}), ("whole", {"on_batch": on_batch})]
        for group, listeners in kinds:
            consumer = client.consumer(group, config=ConsumerConfig(runners=1, start="latest"))
            consumer.subscribe("orders", **listeners)
            async with consumer:
                await until(consumer.is_caught_up)
                for number in range(5):
                    await client.producer().send("orders", b"%d" % number, partition="0-0")
                    await until(lambda: len(found) > number)  # noqa: B023 - called at once
                await until(consumer.is_caught_up)
            assert found == [None] * 5
            found.clear()
