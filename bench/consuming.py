"""Delivery of messages to one consumer of a group, as objects, one by one or as columns: beside a copy of the bytes.

From the first delivery: joining the group takes a tenth of a second, however many messages there are.
"""

import importlib
import itertools
import threading
import time
from typing import Any

from bench.baselines import copy_baseline
from bench.environment import Environment, environment
from bench.producing import KIB, TOPIC
from bench.result import Result
from bench.usage import measured
from meta_client import Batch, Client, ReceivedMessage

CONSUME_BYTES = 512 * KIB * KIB


def consume_all(case: str, size: int, *, spread: int = 0, one_by_one: bool = False, as_columns: bool = False) -> Result:
    """Consume messages of *size* bytes, or up to *spread* more or less."""
    with environment("interval:100") as on, Client(on.zookeeper) as client:
        total = _fill(client, CONSUME_BYTES // size, size, spread)
        baseline = copy_baseline(on.directory, total * size)
        elapsed, used = _consume(on, client, total, one_by_one=one_by_one, as_columns=as_columns)
    detail = {"messages_s": round(total / elapsed)} | used | baseline.detail()
    return Result(case, total * size / elapsed / 1e6, "MB/s", baseline.bytes_per_s / 1e6, detail)


def _fill(client: Client, total: int, size: int, spread: int = 0) -> int:
    """Put *total* messages of *size* bytes, or up to *spread* more or less. Returns their number."""
    producer = client.producer()
    payloads = itertools.cycle([b"x" * each for each in range(size - spread, size + spread + 1)])
    for payload in itertools.islice(payloads, total):
        producer.send_async(TOPIC, payload)
    producer.flush()
    return total


def _consume(
    on: Environment, client: Client, total: int, *, one_by_one: bool, as_columns: bool
) -> tuple[float, dict[str, Any]]:
    seen, all_seen, lock, begun = [0], threading.Event(), threading.Lock(), list[float]()
    consumer, numbers = client.consumer("bench"), itertools.count(1)
    if as_columns:
        importlib.import_module("pyarrow")  # takes longer than the rest

    def on_batch(batch: Batch) -> None:
        with lock:
            begun.append(time.perf_counter())
            seen[0] += batch.to_arrow().num_rows if as_columns else len(batch.messages)
            if seen[0] >= total:
                all_seen.set()

    def on_message(message: ReceivedMessage) -> None:
        seen[0] = number = next(numbers)  # which no two threads get twice
        if number == 1:
            begun.append(time.perf_counter())
        if number >= total:
            all_seen.set()

    if one_by_one:
        consumer.subscribe(TOPIC, on_message=on_message, max_bytes=KIB * KIB)
    else:
        consumer.subscribe(TOPIC, on_batch, max_bytes=KIB * KIB)
    with consumer:  # its runners end with the block
        with measured(on.broker_pid) as load:
            if not all_seen.wait(120):
                raise RuntimeError(f"{seen[0]} of {total} messages consumed within 120 s")
            elapsed = time.perf_counter() - begun[0]
        return elapsed, load.detail(total)
