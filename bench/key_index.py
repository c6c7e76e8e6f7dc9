"""What a key index costs whoever puts, and what it saves whoever searches."""

import contextlib
import os
import statistics
import time
from pathlib import Path

from bench.result import Result
from bench.stage import Stage, stage
from meta_broker.store.key_indexer import TAIL_BYTES_MIN
from meta_client import Client
from meta_client.calls import wait_result
from meta_client.connection import Connection
from meta_client.connections import CONNECT_TIMEOUT_S
from meta_client.opaques import next_opaque
from meta_client.protocol.answers import parse_found, parse_offset_range
from meta_client.protocol.limits import FIND_MATCHES_MAX
from meta_client.protocol.requests import Find, Offsets
from zk.broker_url import BrokerUrl

TOPIC = "bench"
PAYLOAD = b"x" * 100
KEYS = 100_000
ROUND_S = 4.0
ROUNDS = 3
SEARCHED = 1_000_000  # messages
SEARCHES = 20
ANSWER_S = 30.0
INDEXED_S = 60.0  # that many messages must be indexed by then
WITHOUT = "[topics.bench]\npartitions = 1\n\n[broker]\ncheckpoint_seconds = 1.0\n"
WITH = WITHOUT.replace("partitions = 1\n", 'partitions = 1\nindex = "attribute"\n')
TICKS_S = os.sysconf("SC_CLK_TCK")


def put(case: str) -> Result:
    """Messages a second of 100 bytes with a key, to an indexed topic; the floor: to one that is not.

    Brokers take turns, one at a time; the medians. Processor time of the broker counts until the index is made.
    """
    without, indexed = [], []
    for _ in range(ROUNDS):
        without.append(_put_for(WITHOUT))
        indexed.append(_put_for(WITH))
    floor, value = (statistics.median(rate for rate, _ in rounds) for rounds in (without, indexed))
    cpu = [round(statistics.median(us for _, us in rounds), 2) for rounds in (without, indexed)]
    return Result(case, value, "messages/s", floor, {"broker_us_a_message": cpu[1], "without_index": cpu[0]})


def find(case: str) -> Result:
    """Milliseconds until a million messages of 100 bytes are searched for a key that ten have; the floor: no index."""
    floor, value = _search(WITHOUT), _search(WITH)
    return Result(case, value, "ms", floor, {"messages": SEARCHED, "searches": SEARCHES})


def _put_for(config: str) -> tuple[float, float]:
    """Messages a second, and microseconds of the broker's processor time that each took in the end."""
    with stage("interval:100", config) as on, Client(on.zookeeper) as client:
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
    with stage("interval:100", config) as on, Client(on.zookeeper) as client:
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
    """How many messages of the partition have *key*."""
    offset = count = 0
    while True:
        reply = connection.submit(Find(TOPIC, 0, offset, FIND_MATCHES_MAX, key, next_opaque()))
        found = parse_found(wait_result(reply, ANSWER_S, "find").message)
        count += len(found.matches)
        if found.next_offset == found.end:
            return count
        offset = found.next_offset


def _wait_indexed(on: Stage) -> None:
    """Wait until blocks cover all but what is too little for one. A checkpoint a second lets them come so far."""
    with contextlib.closing(Connection.open(BrokerUrl(*on.address), CONNECT_TIMEOUT_S)) as connection:
        reply = connection.submit(Offsets(TOPIC, 0, 0, next_opaque()))
        end = parse_offset_range(wait_result(reply, ANSWER_S, "offsets").message).end
    deadline = time.monotonic() + INDEXED_S
    while (covered := _covered(on.data / "keys")) < end - TAIL_BYTES_MIN:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the index covers {covered} of {end} bytes after {INDEXED_S:g} s")
        time.sleep(0.1)


def _covered(directory: Path) -> int:
    """The end of the last block, whose name tells it."""
    return max((int(path.stem.split("-")[1]) for path in directory.glob("*/*.keys")), default=0)


def _cpu_s(on: Stage) -> float:
    """Processor time of the broker so far."""
    fields = Path(f"/proc/{on.broker_pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_S
