"""Cost of a joining member to a group: the time until all moved partitions are read again, and delays of the others."""

import contextlib
import multiprocessing
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import NamedTuple

from bench.environment import environment
from bench.result import Result
from meta_client import Batch, Client
from meta_client.consumer.config import ConsumerConfig
from zk.groups.ownership import Ownership, read_owned
from zk.session.session import ZooKeeperSession
from zk.tree.claims import Claimed
from zk.tree.nodes import Partition

MEMBERS = 8
PARTITIONS = 256
CONFIG = f"[topics.bench]\npartitions = {PARTITIONS}\n"
FEED_S = 0.2  # between two messages of a partition: the error of the measured time at most
CALM_S = 3.0
AFTER_S = 4.0
TOPIC = GROUP = "bench"


class Delivered(NamedTuple):
    """One message."""

    member: int
    partition: int
    sent: float
    at: float


def joining(case: str) -> Result:
    """Milliseconds from the eighth member's start() until each partition that moves is delivered by its new owner.

    Members are processes, and messages come all the time. The baseline is claiming and releasing all partitions in
    ZooKeeper from one session, with nobody else there. The detail has the worst time from send to delivery of the
    partitions that stay, before the join and after it.
    """
    with environment("interval:100", CONFIG) as on, contextlib.ExitStack() as opened:
        members = [opened.enter_context(_member(on.zookeeper, number)) for number in range(MEMBERS)]
        with Client(on.zookeeper) as client:
            baseline_s = _bare_claims(client.session)
            for member in members[:-1]:
                member.send("start")
                member.recv()
            while len(read_owned(client.session, GROUP, TOPIC)) < PARTITIONS:
                time.sleep(0.01)
            with _feeding(client):
                time.sleep(CALM_S)
                members[-1].send("start")
                joined: float = members[-1].recv()
                time.sleep(AFTER_S)
        delivered: list[Delivered] = []
        for member in members:
            member.send("report")
            delivered += member.recv()
    return _judge(case, sorted(delivered, key=lambda it: it.at), joined, baseline_s)


def _judge(case: str, delivered: list[Delivered], joined: float, baseline_s: float) -> Result:
    before = {it.partition: it.member for it in delivered if it.at < joined}
    after = {it.partition: it.member for it in delivered}
    moved = {partition for partition in after if before[partition] != after[partition]}
    again = {p: next(it.at for it in delivered if it.partition == p and it.member == after[p]) for p in moved}
    stays = [it for it in delivered if it.partition not in moved]
    calm_s = max(it.at - it.sent for it in stays if joined - CALM_S / 2 < it.at < joined)
    kept_s = max(it.at - it.sent for it in stays if joined < it.at < joined + CALM_S / 2)
    detail = {
        "moved": len(moved),
        "owners": len(set(after.values())),
        "median_ms": round(sorted(again.values())[len(again) // 2] * 1000 - joined * 1000),
        "stays_ms": round(kept_s * 1000, 1),
        "stays_calm_ms": round(calm_s * 1000, 1),
    }
    return Result(case, (max(again.values()) - joined) * 1000, "ms", baseline_s * 1000, detail)


def _bare_claims(session: ZooKeeperSession) -> float:
    ownership = Ownership(session, "bare", "bare_one")
    keys = [(TOPIC, Partition(0, number)) for number in range(PARTITIONS)]
    ownership.claim_many(keys[:1])  # the folders are made
    start = time.monotonic()
    claims = ownership.claim_many(keys)
    ownership.release_many({key: claimed for key, claimed in claims.items() if isinstance(claimed, Claimed)})
    return time.monotonic() - start


@contextlib.contextmanager
def _feeding(client: Client) -> Iterator[None]:
    stop, producer = threading.Event(), client.producer()

    def feed() -> None:
        while not stop.wait(FEED_S):
            for number in range(PARTITIONS):
                producer.send_async(TOPIC, str(time.monotonic()).encode(), partition=Partition(0, number))

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextlib.contextmanager
def _member(zookeeper: str, number: int) -> Iterator[Connection]:
    """Run a member in its own process, connected and not started yet."""
    spawning = multiprocessing.get_context("spawn")  # a fork would copy the locks of other threads
    ours, theirs = spawning.Pipe()
    process = spawning.Process(target=_be_member, args=(zookeeper, number, theirs), daemon=True)
    process.start()
    try:
        assert ours.recv() == "ready"
        yield ours
        ours.send("end")
        process.join(30)
    finally:
        process.kill()
        process.join()


def _be_member(zookeeper: str, number: int, parent: Connection) -> None:
    delivered: list[Delivered] = []

    def on_batch(batch: Batch) -> None:
        at = time.monotonic()
        delivered.extend(Delivered(number, batch.partition.number, float(m.payload), at) for m in batch.messages)

    with Client(zookeeper) as client:
        consumer = client.consumer(GROUP, config=ConsumerConfig(consumer_id=f"m{number}"))
        consumer.subscribe(TOPIC, on_batch)
        parent.send("ready")
        while (told := parent.recv()) != "end":
            if told == "start":
                began = time.monotonic()
                consumer.start()
                parent.send(began)
            else:
                parent.send(list(delivered))
