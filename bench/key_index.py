"""Cost of a key index to producers, and its gain for searches."""

import contextlib
import os
import statistics
import time
from pathlib import Path

from bench.environment import Environment, environment
from bench.result import Result
from meta_broker.store.key_indexer import TAIL_BYTES_MIN
from meta_client import Client
from meta_client.net.calls import wait_result
from meta_client.net.connection import Connection
from meta_client.net.connections import CONNECT_TIMEOUT_S
from meta_client.net.opaques import next_opaque
from meta_client.protocol.answers import parse_found, parse_offset_range
from meta_client.protocol.limits import FIND_MATCHES_MAX
from meta_client.protocol.requests import Find, Offsets
from zk.tree.broker_url import BrokerUrl

TOPIC = "bench"
PAYLOAD = b"x" * 100
KEYS = 100_000
ROUND_S = 4.0
ROUNDS = 3
SEARCHED = 1_000_000  # messages
SEARCHES = 20
ANSWER_S = 30.0
INDEXED_S = 60.0  # time limit for indexing all messages
WITHOUT = "[topics.bench]\npartitions = 1\n\n[broker]\ncheckpoint_seconds = 1.0\n"
WITH = WITHOUT.replace("partitions = 1\n", 'partitions = 1\nindex = "attribute"\n')
TICKS_S = os.sysconf("SC_CLK_TCK")


def put(case: str) -> Result:
    """Messages a second of 100 bytes with a key, to an indexed topic; the baseline: to one that is not.

    Brokers take turns, one at a time; the medians. Processor time of the broker counts until the index is made.
    """
    without, indexed = [], []
    for _ in range(ROUNDS):
        without.append(_put_for(WITHOUT))
        indexed.append(_put_for(WITH))
    baseline, value = (statistics.median(rate for rate, _ in rounds) for rounds in (without, indexed))
    cpu = [round(statistics.median(us for _, us in rounds), 2) for rounds in (without, indexed)]
    return Result(case, value, "messages/s", baseline, {"broker_us_a_message": cpu[1], "without_index": cpu[0]})


def find(case: str) -> Result:
    """Milliseconds until a million messages of 100 bytes are searched for a key ten have; the baseline: no index."""
    baseline, value = _search(WITHOUT), _search(WITH)
    return Result(case, value, "ms", baseline, {"messages": SEARCHED, "searches": SEARCHES})


def _put_for(config: str) -> tuple[float, float]:
    """Return messages a second, and microseconds of the broker's processor time per message."""
    with environment("interval:100", config) as on, Client(on.zookeeper) as client:
        producer = client.producer()
        before, start, sent = _cpu_s(on), time.perf_counter(), 0
        while (elapsed := time.perf_counter() - start) < ROUND_S:
            for _ in range(1000):
                producer.send_async(TOPIC, PAYLOAD, f"customer-{sent % KEYS}")
                sent += 1
        producer.flush()
        elapsed = time.perf_counter() - start
        if config == WITH:
            _wait_indexed(on)
        return sent / elapsed, (_cpu_s(on) - before) / sent * 1e6


def _search(config: str) -> float:
    with environment("interval:100", config) as on, Client(on.zookeeper) as client:
        producer = client.producer()
        for number in range(SEARCHED):
            producer.send_async(TOPIC, PAYLOAD, f"customer-{number % KEYS}")
        producer.flush()
        if config == WITH:
            _wait_indexed(on)
        took = []
        with contextlib.closing(Connection.open(BrokerUrl(*on.address), CONNECT_TIMEOUT_S)) as connection:
            for number in range(SEARCHES):
                start = time.perf_counter()
                assert _find(connection, b"customer-%d" % (number * 4999)) == SEARCHED // KEYS
                took.append((time.perf_counter() - start) * 1000)
    return statistics.median(took)


def _find(connection: Connection, key: bytes) -> int:
    """Return the number of messages of the partition with *key*."""
    offset = count = 0
    while True:
        reply = connection.submit(Find(TOPIC, 0, offset, FIND_MATCHES_MAX, key, next_opaque()))
        found = parse_found(wait_result(reply, ANSWER_S, "find").message)
        count += len(found.matches)
        if found.next_offset == found.end:
            return count
        offset = found.next_offset


def _wait_indexed(on: Environment) -> None:
    """Wait until blocks cover all messages except too few for a block. A checkpoint a second lets the index advance."""
    with contextlib.closing(Connection.open(BrokerUrl(*on.address), CONNECT_TIMEOUT_S)) as connection:
        reply = connection.submit(Offsets(TOPIC, 0, 0, next_opaque()))
        end = parse_offset_range(wait_result(reply, ANSWER_S, "offsets").message).end
    deadline = time.monotonic() + INDEXED_S
    while (covered := _covered(on.data / "keys")) < end - TAIL_BYTES_MIN:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the index covers {covered} of {end} bytes after {INDEXED_S:g} s")
        time.sleep(0.1)


def _covered(directory: Path) -> int:
    """Return the end of the last block, from its name."""
    return max((int(path.stem.split("-")[1]) for path in directory.glob("*/*.keys")), default=0)


def _cpu_s(on: Environment) -> float:
    """Return the broker's processor time so far."""
    fields = Path(f"/proc/{on.broker_pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_S
