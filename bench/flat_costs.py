"""Cost of a put on a broker with many partitions, beside one with a single partition."""

import statistics
import time

from bench.environment import environment
from bench.result import Result
from meta_client import Client
from meta_client.producer.producer import Producer

PARTITIONS = 5_000
PAYLOAD = b"x" * 1_024
ROUND_S = 1.0
ROUNDS = 7


def partitions(case: str) -> Result:
    """Measure a blocking send in microseconds, over all partitions in turn; both brokers run, alternating each second.

    With flush interval, since an fsync would hide the difference. The median of the rounds.
    """
    with (
        environment("interval:100", "[topics.bench]\npartitions = 1\n") as few,
        environment("interval:100", f"[topics.bench]\npartitions = {PARTITIONS}\n") as many,
        Client(few.zookeeper) as to_few,
        Client(many.zookeeper) as to_many,
    ):
        producers = to_few.producer(), to_many.producer()
        for producer in producers:
            _cost_us(producer)  # connects, and touches partitions for the first time
        costs = [(_cost_us(producers[0]), _cost_us(producers[1])) for _ in range(ROUNDS)]
        start_s = many.start_s
    baseline, value = (statistics.median(column) for column in zip(*costs, strict=True))
    return Result(case, value, "us", baseline, {"partitions": PARTITIONS, "start_s": round(start_s, 2)})


def _cost_us(producer: Producer) -> float:
    start, count = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - start) < ROUND_S:
        for _ in range(100):
            producer.send("bench", PAYLOAD)
        count += 100
    return elapsed / count * 1e6
