"""The cases. Each runs on a stage of its own and returns one Result; names stay, figures are compared over time."""

import threading
import time
from collections.abc import Callable
from typing import Final

from bench.floors import byte_floor, sync_floor
from bench.result import Result
from bench.stage import stage
from meta_client import Batch, Client, Xid

KIB = 1024
PRODUCE_S = 6.0
PRODUCERS = 16
CONSUME_BYTES = 128 * KIB * KIB
XA_S = 6.0
TOPIC = "bench"


def produce_1k_interval(case: str) -> Result:
    """1 KiB messages, one process, flush interval:100."""
    return _produce(case, "interval:100")


def produce_1k_sync(case: str) -> Result:
    """1 KiB messages, one process, fsync before every answer."""
    return _produce(case, "sync")


def consume_1k(case: str) -> Result:
    """1 KiB messages delivered as objects to one consumer in a group, one process."""
    with stage("interval:100") as on:
        with Client(on.zookeeper) as client:
            total = _fill(client, CONSUME_BYTES // KIB)
            floor = byte_floor(on.directory, total * KIB)
            elapsed = _consume(client, total)
        mb_s = total * KIB / elapsed / 1e6
        return Result(
            case, mb_s, "MB/s", floor.bytes_per_s / 1e6, {"messages_s": round(total / elapsed)} | floor.detail()
        )


def xa_1(case: str) -> Result:
    """Branches of one 1 KiB message (begin, put, prepare, commit), one thread, flush sync."""
    return _xa(case, 1)


def xa_16(case: str) -> Result:
    """Branches of one 1 KiB message, 16 threads of one process, flush sync."""
    return _xa(case, 16)


CASES: Final[dict[str, Callable[[str], Result]]] = {
    "produce-1k-interval": produce_1k_interval,
    "produce-1k-sync": produce_1k_sync,
    "consume-1k": consume_1k,
    "xa-1": xa_1,
    "xa-16": xa_16,
}


def _produce(case: str, flush: str) -> Result:
    with stage(flush) as on, Client(on.zookeeper) as client:
        payload = b"x" * KIB
        sent, elapsed = _in_threads(PRODUCERS, PRODUCE_S, lambda number: _sender(client, payload))
        floor = byte_floor(on.directory, max(sent * KIB, 64 * KIB * KIB))
        detail = {"messages_s": round(sent / elapsed), "threads": PRODUCERS} | floor.detail()
        return Result(case, sent * KIB / elapsed / 1e6, "MB/s", floor.bytes_per_s / 1e6, detail)


def _sender(client: Client, payload: bytes) -> Callable[[], None]:
    producer = client.producer()
    return lambda: _ignore(producer.send(TOPIC, payload))


def _ignore(result: object) -> None:
    del result


def _xa(case: str, threads: int) -> Result:
    with stage("sync") as on, Client(on.zookeeper) as client:
        done, elapsed = _in_threads(threads, XA_S, lambda number: _branch(client, number))
        floor = sync_floor(on.directory)
        return Result(case, done / elapsed, "tx/s", floor, {"threads": threads})


def _branch(client: Client, number: int) -> Callable[[], None]:
    producer = client.producer(qualifier=f"bench-{number}")
    payload, count = b"x" * KIB, iter(range(10**9))

    def one() -> None:
        producer.tpc_begin(Xid.of(f"{number}-{next(count)}", "bench"), topics=(TOPIC,))
        producer.send(TOPIC, payload)
        assert producer.tpc_prepare()
        producer.tpc_commit()

    return one


def _in_threads(threads: int, seconds: float, make: Callable[[int], Callable[[], None]]) -> tuple[int, float]:
    """Call what *make* makes for each thread over and over for *seconds*; how often in all, and in what time.

    The first tenth warms up and does not count.
    """
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
    start = time.perf_counter()
    stopping.wait(seconds)
    elapsed = time.perf_counter() - start
    stopping.set()
    for thread in running:
        thread.join()
    if errors:
        raise errors[0]
    return sum(counts), elapsed


def _fill(client: Client, total: int) -> int:
    """Put *total* messages of 1 KiB, by threads; returns how many there are."""
    payload = b"x" * KIB

    def run() -> None:
        producer = client.producer()
        for _ in range(total // PRODUCERS):
            producer.send(TOPIC, payload)

    running = [threading.Thread(target=run) for _ in range(PRODUCERS)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    return total // PRODUCERS * PRODUCERS


def _consume(client: Client, total: int) -> float:
    seen, all_seen, lock = [0], threading.Event(), threading.Lock()
    consumer = client.consumer("bench")

    def on_batch(batch: Batch) -> None:
        with lock:
            seen[0] += len(batch.messages)
            if seen[0] >= total:
                all_seen.set()

    consumer.subscribe(TOPIC, on_batch, max_bytes=KIB * KIB)
    start = time.perf_counter()
    with consumer:
        if not all_seen.wait(120):
            raise RuntimeError(f"{seen[0]} of {total} messages consumed within 120 s")
        return time.perf_counter() - start
