"""SIGKILL under pipelined branches: BEGIN, messages and PREPARE travel together, and no branch is ever seen in part.

METAQ_CRASH_ROUNDS kills (default 6); METAQ_CRASH_SEED repeats the choices of a run that failed, not its timing.
"""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random
from threading import Event

import pytest

from journal.records.xid import Xid
from meta_client.client import Client
from meta_client.errors import SendFailed
from meta_client.producer.producer import Producer
from meta_client.protocol.errors import MetaError, XaError
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.gets import read_topic
from zk.embedded.chroot import Chroot

ROUNDS = int(os.environ.get("METAQ_CRASH_ROUNDS", "6"))
WORKERS = 4
TOPICS = ("orders", "invoices")
QUALIFIER = "flights"


@dataclass
class Branches:
    """Requests and answers of one worker. A name is a branch's, and begins each of its messages."""

    sizes: dict[str, int] = field(default_factory=dict)
    committed: set[str] = field(default_factory=set)  # it was told so
    wanted: set[str] = field(default_factory=set)  # to be committed: PREPARE was answered, COMMIT asked for
    abandoned: set[str] = field(default_factory=set)  # nobody will commit it


def work(client: Client, number: int, random: Random, stop: Event, branches: Branches) -> None:
    """Branch after branch, until told to stop; the broker dies now and then."""
    count = 0
    while not stop.is_set():
        producer, name, size = client.producer(QUALIFIER), f"{number}-{count}", random.randrange(1, 40)
        count += 1
        branches.sizes[name] = size
        try:
            one(producer, name, size, random, branches)
        except (XaError, SendFailed, MetaError):
            stop.wait(0.05)  # it is away; what is left of the branch is decided at the end


def one(producer: Producer, name: str, size: int, random: Random, branches: Branches) -> None:
    branches.abandoned.add(name)
    producer.tpc_begin(Xid.of(name, ""), topics=TOPICS)
    for message in range(size):
        send = producer.send if random.random() < 0.05 else producer.send_async
        send(random.choice(TOPICS), f"{name} {message} ".encode() + bytes(random.randrange(3000)))
    if random.random() < 0.1:
        producer.tpc_rollback()
        return
    if random.random() < 0.9:
        producer.tpc_prepare()
    branches.abandoned.discard(name)
    branches.wanted.add(name)
    producer.tpc_commit()
    branches.committed.add(name)


def settle(client: Client, branches: list[Branches]) -> None:
    """Finish what is in doubt, as a coordinator would: what was to be committed is, nothing else."""
    wanted = set[str]().union(*(one.wanted for one in branches))
    producer = client.producer(QUALIFIER)
    for xid in producer.tpc_recover():
        if xid.gtrid.decode() in wanted:
            producer.tpc_commit(xid)
        else:
            producer.tpc_rollback(xid)
    assert producer.tpc_recover() == []


@pytest.mark.timeout(600 + 20 * ROUNDS)
def test_no_branch_is_seen_in_part(broker: BrokerProcess, zookeeper: Chroot) -> None:
    seed = int(os.environ.get("METAQ_CRASH_SEED") or time.time_ns() % 2**32)
    print(f"METAQ_CRASH_SEED={seed}")
    random, stop, branches = Random(seed), Event(), [Branches() for _ in range(WORKERS)]
    with Client(zookeeper.connect, session_timeout_ms=4_000) as client, ThreadPoolExecutor(WORKERS) as threads:
        tasks = [
            threads.submit(work, client, number, Random(seed + number), stop, mine)
            for number, mine in enumerate(branches)
        ]
        try:
            for _ in range(ROUNDS):
                time.sleep(random.uniform(0.1, 0.8))
                broker.kill()
                broker.start()
            time.sleep(0.5)
        finally:
            stop.set()
        for task in tasks:
            task.result()
    with Client(zookeeper.connect, session_timeout_ms=4_000) as client:
        settle(client, branches)
        found: dict[str, list[int]] = {}
        for topic in TOPICS:
            for message in read_topic(client, topic):
                branch, number = message.payload.split(b" ", 2)[:2]
                found.setdefault(branch.decode(), []).append(int(number))
    for mine in branches:
        assert mine.committed, "no branch was committed"
        assert mine.committed <= found.keys(), "a branch that was told to be committed is not there"
        assert not mine.abandoned & found.keys(), "a branch is there that nobody committed"
        for name in mine.sizes.keys() & found.keys():
            assert sorted(found[name]) == list(range(mine.sizes[name])), f"branch {name} is there in part, or twice"
