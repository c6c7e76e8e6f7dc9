"""Listeners of threads, with a real broker: what is no Exception, what can't be called, and contexts of their own."""

import asyncio
import contextvars
import functools
import logging
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import contextmanager
from typing import Any, cast

import pytest

from meta_client.client import Client
from meta_client.consumer.config import ConsumerConfig
from meta_client.consumer.messages.batch import Batch
from meta_client.consumer.messages.received_message import ReceivedMessage
from meta_client.consumer.position import Position, Seek
from tests.fixtures.broker import BrokerProcess
from zk.embedded.chroot import Chroot
from zk.tree.nodes import Partition

PATIENCE_S = 60
current: contextvars.ContextVar[bytes] = contextvars.ContextVar("current")


class Fatal(BaseException):
    """Error of the test that is no Exception."""


class Unprintable(Exception):
    """Error whose text can't be had, as of a row whose session is closed."""

    def __repr__(self) -> str:
        raise LookupError


FAULTS: list[Callable[[], BaseException]] = [
    asyncio.CancelledError,
    functools.partial(SystemExit, 3),
    KeyboardInterrupt,
    GeneratorExit,
    Fatal,
    Unprintable,
]


def test_whatever_a_listener_raises_its_thread_goes_on(
    zookeeper: Chroot, broker: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    """One runner, so that nothing at all would be served any more."""
    seen: list[bytes] = []
    done = threading.Event()

    def on_message(message: ReceivedMessage) -> None:
        seen.append(message.payload)
        if message.payload == b"hard" and (attempt := seen.count(b"hard")) <= len(FAULTS):
            raise FAULTS[attempt - 1]()
        if {b"easy"} <= set(seen) and seen.count(b"hard") > len(FAULTS):
            done.set()

    with Client(zookeeper.connect) as client, caplog.at_level(logging.ERROR, "meta_client"):
        consumer = client.consumer("reader", config=ConsumerConfig(runners=1, backoff_s_max=0.05))
        consumer.subscribe("orders", on_message=on_message)
        with consumer:
            client.producer().send("orders", b"hard", partition="0-0")
            client.producer().send("orders", b"easy", partition="0-1")
            assert done.wait(PATIENCE_S)
    assert seen.count(b"easy") == 1
    assert seen.count(b"hard") == len(FAULTS) + 1
    told = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert told == ["CancelledError()", "sys.exit(3)", "KeyboardInterrupt()", "GeneratorExit()", "Fatal()", ""]


def test_whatever_a_round_raises_its_thread_goes_on(
    zookeeper: Chroot, broker: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[bytes] = []
    served, first, back = threading.Event(), threading.Event(), threading.Event()

    def on_message(message: ReceivedMessage) -> None:
        seen.append(message.payload)
        (served if message.partition.number else back if first.is_set() else first).set()

    with Client(zookeeper.connect) as client:
        consumer = client.consumer("reader", config=ConsumerConfig(runners=1, backoff_s_max=0.05))
        consumer.subscribe("orders", on_message=on_message)
        with consumer:
            client.producer().send("orders", b"hard", partition="0-0")
            assert first.wait(PATIENCE_S)
            consumer._fetcher.seek(("orders", Partition(0, 0)), Seek(cast(Position, "nowhere"), is_progress=True))
            client.producer().send("orders", b"easy", partition="0-1")
            assert served.wait(PATIENCE_S)
            consumer.seek("orders", "0-0", "earliest")
            assert back.wait(PATIENCE_S)
    assert seen == [b"hard", b"easy", b"hard"]
    assert "round failed, trying again" in caplog.text


def test_a_filter_and_a_handler_that_exit_have_raised(zookeeper: Chroot, broker: BrokerProcess) -> None:
    filtered: list[bytes] = []
    handled: list[bytes] = []
    done = threading.Event()

    def accept(message: ReceivedMessage) -> bool:
        filtered.append(message.payload)
        if len(filtered) == 1:
            raise Fatal
        return True

    def on_message(message: ReceivedMessage) -> None:
        raise LookupError("never")

    def on_reject(message: ReceivedMessage, error: Exception) -> None:
        handled.append(message.payload)
        if len(handled) == 1:
            sys.exit(3)
        done.set()

    with Client(zookeeper.connect) as client:
        consumer = client.consumer("reader", config=ConsumerConfig(runners=1, backoff_s_max=0.05))
        consumer.subscribe("orders", on_message=on_message, accept=accept, retries_max=1, on_reject=on_reject)
        with consumer:
            client.producer().send("orders", b"hard", partition="0-0")
            assert done.wait(PATIENCE_S)
    assert handled == [b"hard"] * 2


class AsyncCallable:
    async def __call__(self, delivered: object) -> None:
        raise AssertionError("nobody awaits it")

    async def method(self, delivered: object) -> None:
        raise AssertionError("nobody awaits it")


async def coroutine_function(delivered: object, extra: int = 0) -> None:
    raise AssertionError("nobody awaits it")


async def generator(delivered: object) -> AsyncIterator[int]:
    yield 1


ASYNCHRONOUS: list[Any] = [
    coroutine_function,
    functools.partial(coroutine_function, extra=1),
    functools.partial(functools.partial(AsyncCallable()), extra=1),
    AsyncCallable(),
    AsyncCallable().method,
    generator,
]


def test_coroutine_functions_are_refused(zookeeper: Chroot) -> None:
    with Client(zookeeper.connect) as client:
        consumer = client.consumer("reader")
        for listener in ASYNCHRONOUS:
            with pytest.raises(TypeError, match=r"meta_client\.aio\.Client"):
                consumer.subscribe("orders", listener)
            with pytest.raises(TypeError, match=r"meta_client\.aio\.Client"):
                consumer.subscribe("orders", on_message=listener)
            with pytest.raises(TypeError, match=r"accept .* is a coroutine function"):
                consumer.subscribe("orders", accept=listener)
            with pytest.raises(TypeError, match=r"on_reject .* is a coroutine function"):
                consumer.subscribe("orders", on_message=print, on_reject=listener)
        consumer.subscribe("orders", functools.partial(print))  # nothing of the others is left, and this is none


def test_a_listener_that_returns_a_coroutine_has_not_taken_its_message(
    zookeeper: Chroot, broker: BrokerProcess, caplog: pytest.LogCaptureFixture
) -> None:
    calls = threading.Semaphore(0)

    def on_message(message: ReceivedMessage) -> Any:
        calls.release()
        return coroutine_function(message)

    with Client(zookeeper.connect) as client:
        consumer = client.consumer("reader", config=ConsumerConfig(backoff_s_max=0.05))
        consumer.subscribe("orders", on_message=on_message)
        with consumer:
            client.producer().send("orders", b"one")
            assert all(calls.acquire(timeout=PATIENCE_S) for _ in range(3))
    assert "returned a coroutine" in caplog.text


def test_each_message_and_each_batch_has_a_context_of_its_own(zookeeper: Chroot, broker: BrokerProcess) -> None:
    found: list[bytes | None] = []

    def on_message(message: ReceivedMessage) -> None:
        found.append(current.get(None))
        current.set(message.payload)

    def on_batch(batch: Batch) -> None:
        on_message(batch.messages[0])

    with Client(zookeeper.connect) as client:
        for group, listeners in (("singly", {"on_message": on_message}), ("whole", {"on_batch": on_batch})):
            with _consuming(client, group, listeners):
                for number in range(5):
                    client.producer().send("orders", b"%d" % number, partition="0-0")
                    _until(lambda: len(found) > number)  # noqa: B023 - called at once
            assert found == [None] * len(found)
            found.clear()


@contextmanager
def _consuming(client: Client, group: str, listeners: dict[str, Any]) -> Any:
    config = ConsumerConfig(runners=1, start="latest")
    consumer = client.consumer(group, config=config)
    consumer.subscribe("orders", **listeners)
    with consumer:
        _until(consumer.is_caught_up)
        yield


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline, "it never came to hold"
        time.sleep(0.01)
