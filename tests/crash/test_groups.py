"""Ten consumers of one group as processes, sixty partitions on two brokers, and everything that goes wrong.

A round hurts several at once: members join, leave, are killed and stopped for longer than their session, links to
ZooKeeper are cut, ZooKeeper is killed and comes back, so is one of the brokers. Meanwhile messages come all the time.
In the end: every message was delivered, in order per partition, twice only from a committed offset and because of
something that was done; nobody delivered after a later owner had; and no partition was without an owner that could
serve it for longer than a session timeout and two seconds.

METAQ_CRASH_ROUNDS rounds (default 2, which is each thing once); METAQ_CRASH_SEED repeats the choices of a run.
"""

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from meta_client.client import Client
from meta_client.errors import SendFailed
from meta_client.producer.batch import SendHandle
from meta_client.producer.producer import Producer
from tests.crash.groups.fleet import GROUP, TOPIC, Fleet, Member
from tests.crash.groups.ledger import check
from tests.crash.groups.watch import Watch
from tests.fixtures.broker import BrokerProcess
from zk.embedded.server import EmbeddedZooKeeper
from zk.session.lease import now
from zk.session.session import ZooKeeperSession
from zk.tree.nodes import Partition

ROUNDS = int(os.environ.get("METAQ_CRASH_ROUNDS", "2"))
MEMBERS = 10
PARTITIONS = [Partition(broker_id, number) for broker_id in (0, 1) for number in range(30)]
SESSION_S = 2.0
TAKEOVER_S = SESSION_S + 2.0
SETTLE_S = 30.0
CONFIG = """
[zookeeper]
session_timeout_ms = 2000
sync_ms = 200
connect_timeout_ms = 60000

[topics.work]
partitions = 30
"""


class Feed:
    """Sends to every partition, in bursts, until it is stopped; knows what was acknowledged."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._stop = threading.Event()
        self._number = 0
        self._due: list[tuple[Partition, int, SendHandle]] = []
        self.acknowledged: defaultdict[str, set[int]] = defaultdict(set)
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns once everything that was sent is acknowledged, or known not to be stored for sure."""
        self._stop.set()
        self._thread.join()
        for partition, number, handle in self._due:
            self._settle(partition, number, handle, timeout_s=30)

    def _run(self) -> None:
        while not self._stop.wait(0.3):
            self._due = [entry for entry in self._due if not self._is_settled(*entry)]
            for partition in PARTITIONS:
                self._number += 1
                try:
                    handle = self._producer.send_async(TOPIC, b"%d" % self._number, partition=partition)
                except SendFailed:
                    continue  # its broker is down; nothing was sent
                assert isinstance(handle, SendHandle)
                self._due.append((partition, self._number, handle))

    def _is_settled(self, partition: Partition, number: int, handle: SendHandle) -> bool:
        if handle.is_done:
            self._settle(partition, number, handle, timeout_s=0)
        return handle.is_done

    def _settle(self, partition: Partition, number: int, handle: SendHandle, timeout_s: float) -> None:
        try:
            handle.result(timeout_s)
        except SendFailed:
            return  # it may be stored or not: no promise
        self.acknowledged[str(partition)].add(number)


class Stage:
    """ZooKeeper, two brokers, the fleet, the feed and the watch."""

    def __init__(self, server: EmbeddedZooKeeper, brokers: list[BrokerProcess], fleet: Fleet, random: Random) -> None:
        self.server = server
        self.brokers = brokers
        self.fleet = fleet
        self.random = random
        self._lock = threading.Lock()
        self._untouched: list[Member] = []

    def take(self) -> Member:
        """A member to hurt, in this round no other's."""
        with self._lock:
            return self._untouched.pop()

    def play(self, acts: list[Callable[[], None]]) -> None:
        """One round: all of *acts*, each beginning at a moment of its own."""
        self._untouched = self.fleet.members
        self.random.shuffle(self._untouched)
        delays = [self.random.uniform(0, 1.5) for _ in acts]
        with ThreadPoolExecutor(len(acts)) as threads:
            tasks = [
                threads.submit(_after, delay, act)
                for delay, act in zip(delays, acts, strict=True)
                if act != self.restart_zookeeper
            ]
            if self.restart_zookeeper in acts:  # on this thread: the server dies with the one that started it
                _after(delays[0], self.restart_zookeeper)
            for task in tasks:
                task.result()

    def join_and_leave(self) -> None:
        self.fleet.join()
        self.fleet.leave(self.take())

    def kill(self) -> None:
        self.fleet.kill(self.take())
        self.fleet.join()

    def stop(self) -> None:
        self.fleet.stop_for(self.take(), SESSION_S + self.random.uniform(0.5, 1.5))

    def stop_shortly(self) -> None:
        self.fleet.stop_for(self.take(), SESSION_S * self.random.uniform(0.3, 0.9))

    def cut(self) -> None:
        self.fleet.cut_for(self.take(), SESSION_S * self.random.uniform(0.3, 1.8), swallow=True)

    def refuse(self) -> None:
        self.fleet.cut_for(self.take(), SESSION_S * self.random.uniform(0.3, 1.8), swallow=False)

    def restart_zookeeper(self) -> None:
        began = now()
        self.server.kill()
        time.sleep(self.random.uniform(0.0, 1.0))
        self.server.restart()
        time.sleep(2.0)
        self.fleet.note(began, None, "ZooKeeper restarted")

    def restart_broker(self) -> None:
        began, broker = now(), self.random.choice(self.brokers)
        if self.random.random() < 0.5:
            broker.kill()
        else:
            assert broker.stop() == 0
        time.sleep(self.random.uniform(0.0, 1.0))
        broker.start()
        self.fleet.note(began, None, "broker restarted")


def _after(delay_s: float, act: Callable[[], None]) -> None:
    time.sleep(delay_s)
    act()


def is_settled(fleet: Fleet, watch: Watch) -> bool:
    """Return whether every partition has an owner able to serve, shared evenly among the members."""
    looked = watch.looks
    while watch.looks < looked + 2:
        time.sleep(0.02)
    shares = watch.shares
    members = {member.consumer_id for member in fleet.members}
    return not watch.unserved and shares.keys() == members and max(shares.values()) - min(shares.values()) <= 1


def wait_settled(fleet: Fleet, watch: Watch) -> float:
    began = time.monotonic()
    while not is_settled(fleet, watch):
        assert time.monotonic() - began < SETTLE_S, f"unserved {watch.unserved}, shares {watch.shares}"
    return time.monotonic() - began


@pytest.mark.timeout(600 + 40 * ROUNDS)
def test_a_group_survives_everything(tmp_path: Path) -> None:
    seed = int(os.environ.get("METAQ_CRASH_SEED") or time.time_ns() % 2**32)
    print(f"METAQ_CRASH_SEED={seed}")
    random = Random(seed)
    with EmbeddedZooKeeper(tmp_path / "zookeeper") as server:
        brokers = [
            BrokerProcess(tmp_path / f"broker-{number}", server.connect, broker_id=number, config=CONFIG)
            for number in (0, 1)
        ]
        port = int(server.connect.rpartition(":")[2])
        try:
            for broker in brokers:
                broker.start()
            with Fleet(tmp_path, port, "", int(SESSION_S * 1000)) as fleet:
                survive(Stage(server, brokers, fleet, random), server.connect)
        finally:
            for broker in brokers:
                broker.kill()
        for broker in brokers:
            broker.audit()


def survive(stage: Stage, connect: str) -> None:
    fleet, random = stage.fleet, stage.random
    with (
        ZooKeeperSession(connect, session_timeout_ms=10_000) as session,
        Client(connect, session_timeout_ms=10_000) as client,
    ):
        began = now()
        for _ in range(MEMBERS):
            fleet.join()
        watch = Watch(session, GROUP, TOPIC, fleet.is_well)
        feed = Feed(client.producer())
        watch.start()
        try:
            wait_settled(fleet, watch)
            print(f"{MEMBERS} members share after {now() - began:.1f} s")
            watch.longest_s.clear()
            feed.start()
            for number in range(ROUNDS):
                members = [stage.join_and_leave, stage.kill, stage.stop, stage.stop_shortly, stage.cut, stage.refuse]
                servers = [stage.restart_zookeeper, stage.restart_broker]
                if ROUNDS > 2:
                    acts = random.sample(members, 3) + random.sample(servers, random.randrange(3))
                else:
                    acts = members if number == 0 else servers
                stage.play(acts)
                settled_s = wait_settled(fleet, watch)
                longest_s = max(watch.longest_s.values(), default=0.0)
                done = ", ".join(act.__name__ for act in acts)
                print(f"round {number}: {done}; settled after {settled_s:.1f} s, longest unserved {longest_s:.1f} s")
                assert longest_s <= TAKEOVER_S, sorted(watch.longest_s.items(), key=lambda it: -it[1])[:5]
            feed.stop()
            wait_delivered(fleet, feed)
        finally:
            feed._stop.set()
            watch.stop()
    with ThreadPoolExecutor(MEMBERS) as threads:
        list(threads.map(fleet.leave, fleet.members))
    findings = check(fleet.deliveries(), feed.acknowledged, fleet.incidents)
    print(findings.text())
    assert findings.problems == []
    assert findings.messages > 100 * ROUNDS


def wait_delivered(fleet: Fleet, feed: Feed) -> None:
    deadline = time.monotonic() + SETTLE_S
    while True:
        findings = check(fleet.deliveries(), feed.acknowledged, fleet.incidents)
        if not any("never delivered" in problem for problem in findings.problems):
            return
        assert time.monotonic() < deadline, findings.problems[:10]
        time.sleep(0.5)
