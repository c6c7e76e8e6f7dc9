"""Latency of a message: from the time it was due to be sent until a consumer has it."""

import statistics
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from bench.baselines import fsync_baseline
from bench.environment import environment
from bench.result import Result
from meta_client import Batch, Client

RATE = 1_000  # messages a second
SENDERS = 4  # threads that take turns: one send may take more than a millisecond
WARM_UP = 1_000  # messages that do not count
COUNTED = 10_000
TOTAL = WARM_UP + COUNTED
INTERVAL_NS = 10**9 // RATE
PAYLOAD_BYTES = 1_024
TIMEOUT_S = 60
_DUE = struct.Struct(">q")


def latency(case: str, percentile: int) -> Result:
    """Send RATE messages a second, each with the time at which it was due, and take a percentile of their delays.

    A send that is late because the one before it was slow counts as slow: its delay begins when it was due.
    """
    with environment("sync") as on, Client(on.zookeeper) as client:
        delays = _delays(client)
        baseline = 1_000 / fsync_baseline(on.directory)
    cuts = statistics.quantiles(delays, n=100)
    detail = {"p50": cuts[49], "p90": cuts[89], "p99": cuts[98], "max": max(delays)}
    return Result(case, cuts[percentile - 1], "ms", baseline, {key: round(value, 3) for key, value in detail.items()})


def _delays(client: Client) -> list[float]:
    """Return the delay in milliseconds of each message after the warm-up."""
    delays: list[float] = []
    all_here = threading.Event()

    def on_batch(batch: Batch) -> None:
        now = time.monotonic_ns()
        delays.extend((now - _DUE.unpack_from(message.payload)[0]) / 1e6 for message in batch.messages)
        if len(delays) >= TOTAL:
            all_here.set()

    consumer, producer = client.consumer("latency"), client.producer()
    consumer.subscribe("bench", on_batch)
    with consumer:
        deadline = time.monotonic() + TIMEOUT_S
        while not consumer.owned():
            if time.monotonic() > deadline:
                raise RuntimeError("the consumer was given no partition")
            time.sleep(0.05)
        filler, first_ns = b"x" * (PAYLOAD_BYTES - _DUE.size), time.monotonic_ns()

        def send_share(number: int) -> None:
            for due in range(first_ns + number * INTERVAL_NS, first_ns + TOTAL * INTERVAL_NS, SENDERS * INTERVAL_NS):
                time.sleep(max(0.0, (due - time.monotonic_ns()) / 1e9))
                producer.send("bench", _DUE.pack(due) + filler)

        with ThreadPoolExecutor(SENDERS) as senders:
            list(senders.map(send_share, range(SENDERS)))
        if not all_here.wait(TIMEOUT_S):
            raise RuntimeError(f"{len(delays)} of {TOTAL} messages consumed")
    return delays[WARM_UP:]
