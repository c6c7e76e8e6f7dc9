"""asyncio beside threads: the same load on one stage, one after the other."""

import asyncio
import statistics
import time

from bench.result import Result
from bench.stage import stage
from meta_client import Client, aio

TOPIC = "bench"
SIZE = 100
ROUNDS = 3
ROUND_S = 2.0
MESSAGES = 1000  # between two looks at the clock


def produce(case: str) -> Result:
    """send_async from one task, over send_async from one thread: messages a second, each the median of its rounds."""
    with stage("interval:100") as on:
        threaded, tasks = [], []
        for _ in range(ROUNDS):  # in turn: the machine's mood changes
            threaded.append(_threaded(on.zookeeper))
            tasks.append(asyncio.run(_tasks(on.zookeeper)))
    return Result(case, statistics.median(tasks), "messages/s", statistics.median(threaded))


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


async def _tasks(zookeeper: str) -> float:
    async with aio.Client(zookeeper) as client:
        producer, payload = client.producer(), b"x" * SIZE
        await producer.send(TOPIC, payload)
        start, sent = time.perf_counter(), 0
        while time.perf_counter() - start < ROUND_S:
            for _ in range(MESSAGES):
                await producer.send_async(TOPIC, payload)
            sent += MESSAGES
        await producer.flush()
        return sent / (time.perf_counter() - start)
