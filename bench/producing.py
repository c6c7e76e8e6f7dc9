"""Sends of messages, and branches, by one thread or many: beside a copy of the bytes, or beside fsyncs."""

import threading
import time
from collections.abc import Callable
from typing import Any

from bench.baselines import copy_baseline, fsync_baseline
from bench.environment import Environment, environment
from bench.result import Result
from bench.usage import measured
from meta_client import Client, Xid
from meta_client.producer.producer import Producer

KIB = 1024
PRODUCE_S = 6.0
XA_S = 6.0
TOPIC = "bench"


def produce(
    case: str, flush: str, size: int = KIB, send: "Callable[[Producer, bytes, float], int] | None" = None
) -> Result:
    """Produce from one thread for PRODUCE_S, by default with send_async, until everything is acknowledged."""
    send = send or send_for
    with environment(flush) as on, Client(on.zookeeper) as client:
        producer, payload = client.producer(), b"x" * size
        send(producer, payload, PRODUCE_S / 10)
        with measured(on.broker_pid) as load:
            start = time.perf_counter()
            sent = send(producer, payload, PRODUCE_S)
            elapsed = time.perf_counter() - start
        baseline = copy_baseline(on.directory, max(sent * size, 64 * KIB * KIB))
        detail = {"messages_s": round(sent / elapsed)} | load.detail(sent) | baseline.detail()
        return Result(case, sent * size / elapsed / 1e6, "MB/s", baseline.bytes_per_s / 1e6, detail)


def send_for(producer: Producer, payload: bytes, seconds: float) -> int:
    """Send for *seconds*, then wait for every acknowledgement. Returns the number sent."""
    end, sent = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        for _ in range(1000):
            producer.send_async(TOPIC, payload)
        sent += 1000
    producer.flush()
    return sent


def send_many_for(producer: Producer, payload: bytes, seconds: float) -> int:
    """Do the same as send_for with send_many, a megabyte a call."""
    end, sent, payloads = time.perf_counter() + seconds, 0, [payload] * (10**6 // len(payload))
    while time.perf_counter() < end:
        producer.send_many(TOPIC, payloads)
        sent += len(payloads)
    producer.flush()
    return sent


def send(case: str, threads: int) -> Result:
    with environment("sync") as on, Client(on.zookeeper) as client:
        sent, elapsed, used = _in_threads(on, threads, PRODUCE_S, lambda number: sender(client, b"x" * KIB))
        return Result(case, sent / elapsed, "messages/s", fsync_baseline(on.directory), {"threads": threads} | used)


def load_1k(client: Client) -> tuple[int, float]:
    producer, payload = client.producer(), b"x" * KIB
    send_for(producer, payload, PRODUCE_S / 10)
    start = time.perf_counter()
    sent = send_for(producer, payload, PRODUCE_S)
    return sent, time.perf_counter() - start


def load_send_32(client: Client) -> tuple[int, float]:
    sent, elapsed, _ = _in_threads(None, 32, PRODUCE_S, lambda number: sender(client, b"x" * KIB))
    return sent, elapsed


def sender(client: Client, payload: bytes) -> Callable[[], None]:
    """Return a function that sends one message and waits for its reply."""
    producer = client.producer()

    def one() -> None:
        producer.send(TOPIC, payload)

    return one


def xa(case: str, threads: int, messages: int = 1) -> Result:
    with environment("sync") as on, Client(on.zookeeper) as client:
        done, elapsed, used = _in_threads(on, threads, XA_S, lambda number: branch(client, number, messages))
        detail = {"threads": threads, "messages": messages} | used
        return Result(case, done / elapsed, "tx/s", fsync_baseline(on.directory), detail)


def branch(client: Client, number: int, messages: int) -> Callable[[], None]:
    """Return a function that begins, fills, prepares and commits one branch. *number*: of its thread."""
    producer = client.producer(qualifier=f"bench-{number}")
    payload, count = b"x" * KIB, iter(range(10**9))

    def one() -> None:
        producer.tpc_begin(Xid.of(f"{number}-{next(count)}", "bench"), topics=(TOPIC,))
        for _ in range(messages):
            producer.send_async(TOPIC, payload)
        assert producer.tpc_prepare()
        producer.tpc_commit()

    return one


def _in_threads(
    on: Environment | None, threads: int, seconds: float, make: Callable[[int], Callable[[], None]]
) -> tuple[int, float, dict[str, Any]]:
    """Call the function that *make* returns for each thread repeatedly for *seconds*. Returns the number of calls, the
    time and, with *on*, what a call used. The first tenth is warm-up and does not count."""
    works = [make(number) for number in range(threads)]
    counts, errors = [0] * threads, list[BaseException]()
    counting, stopping = threading.Event(), threading.Event()

    def run(number: int) -> None:
        work = works[number]
        try:
            while not stopping.is_set():
                work()
                counts[number] += counting.is_set()
        except BaseException as error:
            errors.append(error)
            stopping.set()

    running = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    stopping.wait(seconds / 10)
    counting.set()
    with measured(None if on is None else on.broker_pid) as load:
        start = time.perf_counter()
        stopping.wait(seconds)
        elapsed = time.perf_counter() - start
    stopping.set()
    for thread in running:
        thread.join()
    if errors:
        raise errors[0]
    return sum(counts), elapsed, {} if on is None else load.detail(sum(counts))
