"""The cases. Each runs in its own environment and returns one Result; names stay: figures are compared over time."""

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from bench import (
    aio,
    big_branch,
    checkpoints,
    cold_read,
    key_index,
    latency,
    long_poll,
    many_topics,
    memory,
    partitions,
    rebalance,
    recovery,
    replication,
    row_and_message,
    spark,
)
from bench.baselines import copy_baseline, fsync_baseline
from bench.environment import Environment, environment
from bench.result import Bar, Result
from bench.usage import measured
from meta_client import Batch, Client, ReceivedMessage, Xid
from meta_client.producer.producer import Producer

KIB = 1024
PRODUCE_S = 6.0
CONSUME_BYTES = 128 * KIB * KIB
XA_S = 6.0
TOPIC = "bench"


def produce_1k_interval(case: str) -> Result:
    """1 KiB messages, one process, flush interval:100."""
    return _produce(case, "interval:100")


def produce_1k_sync(case: str) -> Result:
    """1 KiB messages, one process, fsync before every answer."""
    return _produce(case, "sync")


def produce_100b_interval(case: str) -> Result:
    """100-byte messages, one process, flush interval:100."""
    return _produce(case, "interval:100", 100)


def produce_4_brokers(case: str) -> Result:
    """1 KiB messages to four brokers of one supervisor, and to one, flush interval:100."""
    rates = []
    for brokers in (4, 1):
        with environment("interval:100", brokers=brokers) as on, Client(on.zookeeper) as client:
            sent, elapsed = _load_1k(client)
            rates.append(sent * KIB / elapsed / 1e6)
    return Result(case, rates[0], "MB/s", rates[1])


def send_many_100b(case: str) -> Result:
    """100-byte messages, 10,000 a call of send_many, one process, flush interval:100."""
    return _produce(case, "interval:100", 100, send_many_for)


def send_many_1k(case: str) -> Result:
    """1 KiB messages, 1,000 a call of send_many, one process, flush interval:100."""
    return _produce(case, "interval:100", KIB, send_many_for)


def send_1(case: str) -> Result:
    """Single blocking sends of 1 KiB, one thread, flush sync."""
    return _send(case, 1)


def send_32(case: str) -> Result:
    """Single blocking sends of 1 KiB, 32 threads, flush sync."""
    return _send(case, 32)


def consume_1k(case: str) -> Result:
    """1 KiB messages delivered as objects to one consumer in a group, one process."""
    return _consume_all(case, KIB)


def consume_100b(case: str) -> Result:
    """100-byte messages delivered as objects to one consumer in a group, one process."""
    return _consume_all(case, 100)


def consume_varied(case: str) -> Result:
    """Messages of 50 to 150 bytes delivered as objects to one consumer in a group, one process."""
    return _consume_all(case, 100, spread=50)


def consume_columns_100b(case: str) -> Result:
    """100-byte messages delivered as Arrow columns to one consumer in a group, one process."""
    return _consume_all(case, 100, as_columns=True)


def consume_columns_1k(case: str) -> Result:
    """1 KiB messages delivered as Arrow columns to one consumer in a group, one process."""
    return _consume_all(case, KIB, as_columns=True)


def listen_100b(case: str) -> Result:
    """100-byte messages, each handed to a message listener of one consumer in a group, one process."""
    return _consume_all(case, 100, one_by_one=True)


def xa_1(case: str) -> Result:
    """Branches of one 1 KiB message (begin, put, prepare, commit), one thread, flush sync."""
    return _xa(case, 1)


def xa_16(case: str) -> Result:
    """Branches of one 1 KiB message, 16 threads of one process, flush sync."""
    return _xa(case, 16)


def xa_64(case: str) -> Result:
    """Branches of one 1 KiB message, 64 threads of one process, flush sync."""
    return _xa(case, 64)


def xa_16x10(case: str) -> Result:
    """Branches of ten 1 KiB messages, 16 threads of one process, flush sync."""
    return _xa(case, 16, 10)


def latency_p50(case: str) -> Result:
    """From send to the consumer's hand, 1,000 messages of 1 KiB a second, flush sync: the median."""
    return latency.latency(case, 50)


def latency_p99(case: str) -> Result:
    """The same, the slowest hundredth left out."""
    return latency.latency(case, 99)


def partitions_5000(case: str) -> Result:
    """Cost of a put on a broker with 5,000 partitions, over its cost with one."""
    return partitions.partitions(case)


def memory_idle(case: str) -> Result:
    """The broker's memory with 2,000 idle connections, above that of an empty one."""
    return memory.idle(case)


def memory_slow(case: str) -> Result:
    """The broker's memory with 10 slow readers of 1 GB each, above that of an empty one."""
    return memory.slow(case)


def row_and_message_1(case: str) -> Result:
    """A row and a message decided by a row, against an outbox with a polling relay: one thread."""
    return row_and_message.compare(case, 1)


def row_and_message_16(case: str) -> Result:
    """The same, 16 threads."""
    return row_and_message.compare(case, 16)


def row_and_message_64(case: str) -> Result:
    """The same, 64 threads."""
    return row_and_message.compare(case, 64)


def xa_1g(case: str) -> Result:
    """The commit of one branch of 1 GB in messages of 1 KiB, flush sync: milliseconds after it was prepared."""
    return big_branch.commit_after(case, recovery.GB // KIB)


def recover_checkpoint(case: str) -> Result:
    """Start of a broker with 5 GB of journal and 10,000 branches in doubt, a checkpoint just before."""
    return recovery.after_checkpoint(case, 5 * recovery.GB, 10_000)


def recover_batches(case: str) -> Result:
    """Start of a broker with 1 GB to replay, in batches of 64 KiB."""
    return recovery.after_crash(case, recovery.GB, 64 * KIB)


def recover_singles(case: str) -> Result:
    """Start of a broker with 1 GB to replay, in records of 1 KiB."""
    return recovery.after_crash(case, recovery.GB, KIB)


def cold_read_p99(case: str) -> Result:
    """A send while 10 readers read what only the disk has: the slowest hundredth left out."""
    return cold_read.p99(case)


def index_put(case: str) -> Result:
    """100-byte messages with a key, one process, flush interval:100, to a topic with a key index and to one without."""
    return key_index.put(case)


def index_find(case: str) -> Result:
    """A search of a million messages for a key, with a key index and without."""
    return key_index.find(case)


def checkpoint_silence(case: str) -> Result:
    """The longest time a broker answers nobody while it takes a checkpoint of 100,000 branches, 5,000 partitions and
    20,000 producers."""
    return checkpoints.longest_silence(case)


def start_8000(case: str) -> Result:
    """Start of a broker with 8,000 topics, until it answers a put and all of them are registered in ZooKeeper."""
    return many_topics.until_served(case)


def memory_tx(case: str) -> Result:
    """The broker's memory while a branch of 2 GB is put, prepared and committed, above that of an empty one."""
    return memory.transaction(case)


def memory_branches(case: str) -> Result:
    """The broker's memory with 100,000 open branches, half of them prepared, above that of an empty one."""
    return memory.branches(case)


def aio_produce_100b(case: str) -> Result:
    """100-byte messages, one process, flush interval:100, from one task of asyncio; the baseline is a thread's rate."""
    return aio.produce(case)


def aio_consume_100b(case: str) -> Result:
    """100-byte messages delivered as objects to one consumer of asyncio, one process; the baseline: threads."""
    return aio.consume(case)


def rebalance_256(case: str) -> Result:
    """One of 8 consumers joins, 256 partitions: milliseconds until all are owned and delivered again."""
    return rebalance.joining(case)


def long_poll_1000(case: str) -> Result:
    """1,000 consumers' fetches waiting at one broker: percent of a core."""
    return long_poll.processor_share(case)


def replicate_async(case: str) -> Result:
    """1 KiB messages, one process, flush sync, to a master with an asynchronous slave, and to one without."""
    return replication.beside(case, "async", "MB/s", _load_1k, KIB / 1e6)


def replicate_sync(case: str) -> Result:
    """1 KiB messages, one process, flush sync, to a master with a synchronous slave, and to one without."""
    return replication.beside(case, "sync", "MB/s", _load_1k, KIB / 1e6)


def replicate_send_32(case: str) -> Result:
    """Single blocking sends of 1 KiB, 32 threads, to a master with a synchronous slave, and to one without."""
    return replication.beside(case, "sync", "messages/s", _load_send_32)


def catch_up(case: str) -> Result:
    """A slave that begins with nothing, beside a master of 5 GB: until it is in sync."""
    return replication.catch_up(case, 5 * recovery.GB)


def spark_count(case: str) -> Result:
    """Spark counts 4 GiB of 1 KiB messages, 100 a record, by offset: MB of journal a second of all processor time."""
    return spark.count(case, 100)


def spark_count_singles(case: str) -> Result:
    """The same for 1 GiB with a message a record."""
    return spark.count(case, 1)


def spark_read(case: str) -> Result:
    """Spark reads 4 GiB of 1 KiB payloads, 100 a record: MB of journal a second of all processor time."""
    return spark.read(case, 100)


def spark_read_singles(case: str) -> Result:
    """The same for 1 GiB with a message a record."""
    return spark.read(case, 1)


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to measure, and the bars for it."""

    run: Callable[[str], Result]
    bar: Bar


CASES: Final[dict[str, Case]] = {
    "produce-1k-interval": Case(produce_1k_interval, Bar("ratio", 0.30)),
    "produce-1k-sync": Case(produce_1k_sync, Bar("ratio", 0.12)),
    "produce-100b-interval": Case(produce_100b_interval, Bar("messages_s", 450_000)),
    "produce-4-brokers": Case(produce_4_brokers, Bar("ratio", 0.9)),
    "send-many-100b": Case(send_many_100b, Bar("messages_s", 1_500_000)),
    "send-many-1k": Case(send_many_1k, Bar("value", 500)),
    "send-1": Case(send_1, Bar("ratio", 0.30)),
    "send-32": Case(send_32, Bar("ratio", 1.0)),
    "consume-1k": Case(consume_1k, Bar("ratio", 0.25)),
    "consume-100b": Case(consume_100b, Bar("messages_s", 500_000)),
    "consume-varied": Case(consume_varied, Bar("messages_s", 500_000)),
    "consume-columns-100b": Case(consume_columns_100b, Bar("messages_s", 3_000_000)),
    "consume-columns-1k": Case(consume_columns_1k, Bar("value", 500)),
    "latency-p50": Case(latency_p50, Bar("value", 1.5, is_ceiling=True)),
    "latency-p99": Case(latency_p99, Bar("value", 6, is_ceiling=True)),
    "partitions-5000": Case(partitions_5000, Bar("ratio", 1.15, is_ceiling=True)),
    "memory-idle": Case(memory_idle, Bar("value", 300, is_ceiling=True)),
    "memory-slow": Case(memory_slow, Bar("value", 300, is_ceiling=True)),
    "cold-read-p99": Case(cold_read_p99, Bar("ratio", 2.0, is_ceiling=True)),
    "memory-tx": Case(memory_tx, Bar("value", 160, is_ceiling=True)),
    "memory-branches": Case(memory_branches, Bar("value", 200, is_ceiling=True)),
    "xa-1": Case(xa_1, Bar("ratio", 0.15)),
    "xa-16": Case(xa_16, Bar("ratio", 0.60)),
    "xa-64": Case(xa_64, Bar("ratio", 0.80)),
    "xa-16x10": Case(xa_16x10, Bar("ratio", 0.45)),
    "row-and-message-1": Case(row_and_message_1, Bar("ratio", 0.35)),
    "row-and-message-16": Case(row_and_message_16, Bar("ratio", 1.0)),
    "row-and-message-64": Case(row_and_message_64, Bar("ratio", 0.35)),
    "xa-1g": Case(xa_1g, Bar("value", 20, is_ceiling=True)),
    "recover-checkpoint": Case(recover_checkpoint, Bar("value", 1, is_ceiling=True)),
    "start-8000": Case(start_8000, Bar("value", 2, is_ceiling=True)),
    "recover-batches": Case(recover_batches, Bar("value", 250)),
    "recover-singles": Case(recover_singles, Bar("value", 80)),
    "index-put": Case(index_put, Bar("ratio", 0.50)),
    "index-find": Case(index_find, Bar("ratio", 0.10, is_ceiling=True)),
    "replicate-async": Case(replicate_async, Bar("ratio", 0.55)),
    "replicate-sync": Case(replicate_sync, Bar("ratio", 0.40)),
    "replicate-send-32": Case(replicate_send_32, Bar("ratio", 0.45)),
    "catch-up": Case(catch_up, Bar("ratio", 0.40)),
    "promote": Case(replication.promote_5gb, Bar("value", 3, is_ceiling=True)),
    "listen-100b": Case(listen_100b, Bar("messages_s", 400_000)),
    "aio-produce-100b": Case(aio_produce_100b, Bar("ratio", 0.7)),
    "aio-consume-100b": Case(aio_consume_100b, Bar("ratio", 0.7)),
    "checkpoint-silence": Case(checkpoint_silence, Bar("value", 50, is_ceiling=True)),
    "rebalance-256": Case(rebalance_256, Bar("value", 1_000, is_ceiling=True)),
    "spark-count": Case(spark_count, Bar("value", 400)),
    "spark-count-singles": Case(spark_count_singles, Bar("value", 133)),
    "spark-read": Case(spark_read, Bar("value", 150)),
    "spark-read-singles": Case(spark_read_singles, Bar("value", 50)),
    "spark-stream-latency": Case(spark.stream_latency, Bar("value", 1_000, is_ceiling=True)),
    "long-poll-1000": Case(long_poll_1000, Bar("value", 5, is_ceiling=True)),
}


def _produce(
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


def _send(case: str, threads: int) -> Result:
    with environment("sync") as on, Client(on.zookeeper) as client:
        sent, elapsed, used = _in_threads(on, threads, PRODUCE_S, lambda number: sender(client, b"x" * KIB))
        return Result(case, sent / elapsed, "messages/s", fsync_baseline(on.directory), {"threads": threads} | used)


def _load_1k(client: Client) -> tuple[int, float]:
    producer, payload = client.producer(), b"x" * KIB
    send_for(producer, payload, PRODUCE_S / 10)
    start = time.perf_counter()
    sent = send_for(producer, payload, PRODUCE_S)
    return sent, time.perf_counter() - start


def _load_send_32(client: Client) -> tuple[int, float]:
    sent, elapsed, _ = _in_threads(None, 32, PRODUCE_S, lambda number: sender(client, b"x" * KIB))
    return sent, elapsed


def sender(client: Client, payload: bytes) -> Callable[[], None]:
    """Return a function that sends one message and waits for its reply."""
    producer = client.producer()

    def one() -> None:
        producer.send(TOPIC, payload)

    return one


def _xa(case: str, threads: int, messages: int = 1) -> Result:
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


def _consume_all(
    case: str, size: int, *, spread: int = 0, one_by_one: bool = False, as_columns: bool = False
) -> Result:
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
    seen, all_seen, lock = [0], threading.Event(), threading.Lock()
    consumer, numbers = client.consumer("bench"), itertools.count(1)

    def on_batch(batch: Batch) -> None:
        with lock:
            seen[0] += batch.to_arrow().num_rows if as_columns else len(batch.messages)
            if seen[0] >= total:
                all_seen.set()

    def on_message(message: ReceivedMessage) -> None:
        seen[0] = next(numbers)  # which no two threads get twice
        if seen[0] >= total:
            all_seen.set()

    if one_by_one:
        consumer.subscribe(TOPIC, on_message=on_message, max_bytes=KIB * KIB)
    else:
        consumer.subscribe(TOPIC, on_batch, max_bytes=KIB * KIB)
    start = time.perf_counter()
    with consumer:  # its runners end with the block
        with measured(on.broker_pid) as load:
            if not all_seen.wait(120):
                raise RuntimeError(f"{seen[0]} of {total} messages consumed within 120 s")
            elapsed = time.perf_counter() - start
        return elapsed, load.detail(total)
