"""asyncio beside threads: the same load in one environment, one after the other."""

import asyncio
import statistics
import threading
import time
from typing import Any

from bench.environment import Environment, environment
from bench.result import Result
from bench.usage import measured
from meta_client import Batch, Client, aio

TOPIC = "bench"
SIZE = 100
ROUNDS = 3
ROUND_S = 2.0
STORED = 1_000_000  # messages, for consumers
CONSUME_S = 60.0
MESSAGES = 1000  # between two looks at the clock


def produce(case: str) -> Result:
    """send_async from one task, over send_async from one thread: messages a second, each the median of its rounds."""
    with environment("interval:100") as on:
        threaded, tasks = [], []
        for _ in range(ROUNDS):  # in turn: the machine's speed varies
            threaded.append(_threaded(on.zookeeper))
            tasks.append(asyncio.run(_tasks(on)))
    rates, used = zip(*tasks, strict=True)
    return Result(case, statistics.median(rates), "messages/s", statistics.median(threaded), used[-1])


def consume(case: str) -> Result:
    """A batch listener of tasks, over one of threads: messages a second, each the median of its rounds."""
    with environment("interval:100") as on:
        with Client(on.zookeeper) as client:
            producer, payload = client.producer(), b"x" * SIZE
            for _ in range(STORED):
                producer.send_async(TOPIC, payload)
            producer.flush()
        threaded, tasks = [], []
        for number in range(ROUNDS):
            threaded.append(_consumed_by_threads(on.zookeeper, f"threads-{number}"))
            tasks.append(asyncio.run(_consumed_by_tasks(on, f"tasks-{number}")))
    rates, used = zip(*tasks, strict=True)
    return Result(case, statistics.median(rates), "messages/s", statistics.median(threaded), used[-1])


def _consumed_by_threads(zookeeper: str, group: str) -> float:
    seen, done, lock = 0, threading.Event(), threading.Lock()

    def on_batch(batch: Batch) -> None:
        nonlocal seen
        with lock:
            seen += len(batch.messages)
        if seen >= STORED:
            done.set()

    with Client(zookeeper) as client, client.consumer(group) as consumer:
        consumer.subscribe(TOPIC, on_batch)
        start = time.perf_counter()
        consumer.start()
        if not done.wait(CONSUME_S):
            raise RuntimeError(f"{seen} of {STORED} messages consumed within {CONSUME_S} s")
        return seen / (time.perf_counter() - start)


async def _consumed_by_tasks(on: Environment, group: str) -> tuple[float, dict[str, Any]]:
    seen, done = 0, asyncio.Event()

    async def on_batch(batch: Batch) -> None:
        nonlocal seen
        seen += len(batch.messages)
        if seen >= STORED:
            done.set()

    async with aio.Client(on.zookeeper) as client:
        consumer = client.consumer(group)
        consumer.subscribe(TOPIC, on_batch)
        start = time.perf_counter()
        with measured(on.broker_pid) as load:
            async with consumer, asyncio.timeout(CONSUME_S):
                await done.wait()
                elapsed = time.perf_counter() - start
        return seen / elapsed, load.detail(seen)


def _threaded(zookeeper: str) -> float:
    with Client(zookeeper) as client:
        producer, payload = client.producer(), b"x" * SIZE
        producer.send(TOPIC, payload)
        start, sent = time.perf_counter(), 0
        while time.perf_counter() - start < ROUND_S:
            for _ in range(MESSAGES):
                producer.send_async(TOPIC, payload)
            sent += MESSAGES
        producer.flush()
        return sent / (time.perf_counter() - start)


async def _tasks(on: Environment) -> tuple[float, dict[str, Any]]:
    async with aio.Client(on.zookeeper) as client:
        producer, payload = client.producer(), b"x" * SIZE
        await producer.send(TOPIC, payload)
        start, sent = time.perf_counter(), 0
        with measured(on.broker_pid) as load:
            while time.perf_counter() - start < ROUND_S:
                for _ in range(MESSAGES):
                    await producer.send_async(TOPIC, payload)
                sent += MESSAGES
            await producer.flush()
            elapsed = time.perf_counter() - start
        return sent / elapsed, load.detail(sent)
