"""The cases. Each runs in its own environment and returns one Result; names stay: figures are compared over time."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from bench import (
    aio,
    auditing,
    big_branch,
    checkpoints,
    cold_read,
    consuming,
    flat_costs,
    key_index,
    latency,
    long_poll,
    many_topics,
    memory,
    producing,
    rebalance,
    recovery,
    replication,
    row_and_message,
    spark,
)
from bench.environment import environment
from bench.producing import KIB
from bench.result import Bar, Result
from meta_client import Client


def produce_1k_interval(case: str) -> Result:
    """1 KiB messages, one process, flush interval:100."""
    return producing.produce(case, "interval:100")


def produce_1k_sync(case: str) -> Result:
    """1 KiB messages, one process, fsync before every answer."""
    return producing.produce(case, "sync")


def produce_100b_interval(case: str) -> Result:
    """100-byte messages, one process, flush interval:100."""
    return producing.produce(case, "interval:100", 100)


def produce_4_brokers(case: str) -> Result:
    """1 KiB messages to four brokers of one supervisor, and to one, flush interval:100."""
    rates = []
    for brokers in (4, 1):
        with environment("interval:100", brokers=brokers) as on, Client(on.zookeeper) as client:
            sent, elapsed = producing.load_1k(client)
            rates.append(sent * KIB / elapsed / 1e6)
    return Result(case, rates[0], "MB/s", rates[1])


def send_many_100b(case: str) -> Result:
    """100-byte messages, 10,000 a call of send_many, one process, flush interval:100."""
    return producing.produce(case, "interval:100", 100, producing.send_many_for)


def send_many_1k(case: str) -> Result:
    """1 KiB messages, 1,000 a call of send_many, one process, flush interval:100."""
    return producing.produce(case, "interval:100", KIB, producing.send_many_for)


def send_1(case: str) -> Result:
    """Single blocking sends of 1 KiB, one thread, flush sync."""
    return producing.send(case, 1)


def send_32(case: str) -> Result:
    """Single blocking sends of 1 KiB, 32 threads, flush sync."""
    return producing.send(case, 32)


def consume_1k(case: str) -> Result:
    """1 KiB messages delivered as objects to one consumer in a group, one process."""
    return consuming.consume_all(case, KIB)


def consume_100b(case: str) -> Result:
    """100-byte messages delivered as objects to one consumer in a group, one process."""
    return consuming.consume_all(case, 100)


def consume_varied(case: str) -> Result:
    """Messages of 50 to 150 bytes delivered as objects to one consumer in a group, one process."""
    return consuming.consume_all(case, 100, spread=50)


def consume_columns_100b(case: str) -> Result:
    """100-byte messages delivered as Arrow columns to one consumer in a group, one process."""
    return consuming.consume_all(case, 100, as_columns=True)


def consume_columns_1k(case: str) -> Result:
    """1 KiB messages delivered as Arrow columns to one consumer in a group, one process."""
    return consuming.consume_all(case, KIB, as_columns=True)


def listen_100b(case: str) -> Result:
    """100-byte messages, each handed to a message listener of one consumer in a group, one process."""
    return consuming.consume_all(case, 100, one_by_one=True)


def xa_1(case: str) -> Result:
    """Branches of one 1 KiB message (begin, put, prepare, commit), one thread, flush sync."""
    return producing.xa(case, 1)


def xa_16(case: str) -> Result:
    """Branches of one 1 KiB message, 16 threads of one process, flush sync."""
    return producing.xa(case, 16)


def xa_64(case: str) -> Result:
    """Branches of one 1 KiB message, 64 threads of one process, flush sync."""
    return producing.xa(case, 64)


def xa_16x10(case: str) -> Result:
    """Branches of ten 1 KiB messages, 16 threads of one process, flush sync."""
    return producing.xa(case, 16, 10)


def latency_p50(case: str) -> Result:
    """From send to the consumer's hand, 1,000 messages of 1 KiB a second, flush sync: the median."""
    return latency.latency(case, 50)


def latency_p99(case: str) -> Result:
    """The same, the slowest hundredth left out."""
    return latency.latency(case, 99)


def partitions_5000(case: str) -> Result:
    """Cost of a put on a broker with 5,000 partitions, over its cost with one."""
    return flat_costs.partitions(case)


def memory_idle(case: str) -> Result:
    """The broker's memory with 2,000 idle connections, above that of an empty one."""
    return memory.idle(case)


def memory_slow(case: str) -> Result:
    """The broker's memory with 10 slow readers of 1 GB each, above that of an empty one."""
    return memory.slow(case)


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
    return replication.beside(case, "async", "MB/s", producing.load_1k, KIB / 1e6)


def replicate_sync(case: str) -> Result:
    """1 KiB messages, one process, flush sync, to a master with a synchronous slave, and to one without."""
    return replication.beside(case, "sync", "MB/s", producing.load_1k, KIB / 1e6)


def replicate_send_32(case: str) -> Result:
    """Single blocking sends of 1 KiB, 32 threads, to a master with a synchronous slave, and to one without."""
    return replication.beside(case, "sync", "messages/s", producing.load_send_32)


def catch_up(case: str) -> Result:
    """A slave that begins with nothing, beside a master of 5 GB: until it is in sync."""
    return replication.catch_up(case, 5 * recovery.GB)


def spark_count(case: str) -> Result:
    """Spark counts 4 GiB of 1 KiB messages, 100 a record, by offset: MB of journal a second of all processor time."""
    return spark.count(case, 100)


def spark_count_singles(case: str) -> Result:
    """The same with a message a record."""
    return spark.count(case, 1)


def spark_read(case: str) -> Result:
    """Spark reads 4 GiB of 1 KiB payloads, 100 a record: MB of journal a second of all processor time."""
    return spark.read(case, 100)


def spark_read_singles(case: str) -> Result:
    """The same with a message a record."""
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
    "producers-10000": Case(flat_costs.producers, Bar("ratio", 1.15, is_ceiling=True)),
    "messages-1000000": Case(flat_costs.messages, Bar("ratio", 2, is_ceiling=True)),
    "connections-2000": Case(flat_costs.connections, Bar("ratio", 1.15, is_ceiling=True)),
    "in-doubt-50000": Case(flat_costs.branches, Bar("ratio", 1.15, is_ceiling=True)),
    "memory-idle": Case(memory_idle, Bar("value", 300, is_ceiling=True)),
    "memory-slow": Case(memory_slow, Bar("value", 300, is_ceiling=True)),
    "cold-read-p99": Case(cold_read_p99, Bar("ratio", 2.0, is_ceiling=True)),
    "memory-tx": Case(memory_tx, Bar("value", 160, is_ceiling=True)),
    "memory-branches": Case(memory_branches, Bar("value", 200, is_ceiling=True)),
    "xa-1": Case(xa_1, Bar("ratio", 0.15)),
    "xa-16": Case(xa_16, Bar("ratio", 0.60)),
    "xa-64": Case(xa_64, Bar("ratio", 0.80)),
    "xa-16x10": Case(xa_16x10, Bar("ratio", 0.45)),
    "row-and-message-1": Case(row_and_message.decided_1, Bar("ratio", 0.35)),
    "row-and-message-16": Case(row_and_message.decided_16, Bar("ratio", 1.0)),
    "row-and-message-64": Case(row_and_message.decided_64, Bar("ratio", 0.35)),
    "outbox-1": Case(row_and_message.outbox_1, Bar("ratio", 0.40)),
    "outbox-16": Case(row_and_message.outbox_16, Bar("ratio", 0.85)),
    "outbox-64": Case(row_and_message.outbox_64, Bar("ratio", 0.85)),
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
    "audit": Case(auditing.audit, Bar("value", 40, is_ceiling=True)),
    "audit-driver-memory": Case(auditing.driver_memory, Bar("value", 1_000, is_ceiling=True)),
    "long-poll-1000": Case(long_poll_1000, Bar("value", 5, is_ceiling=True)),
}
