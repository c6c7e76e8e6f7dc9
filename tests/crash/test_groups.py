"""Ten consumers of one group as processes, sixty partitions on two brokers, and everything that goes wrong.

A round hurts several at once: members join, leave, are killed and stopped for longer than their session, links to
ZooKeeper are cut, ZooKeeper is killed and comes back, so is one of the brokers. Meanwhile messages come all the time.
In the end: every message was delivered, in order per partition, twice only from a committed offset and because of
something that was done; nobody delivered after a later owner had; and no partition was without an owner that could
serve it for longer than a session timeout and two seconds.

METAQ_CRASH_ROUNDS rounds (default 2, which is each thing once); METAQ_CRASH_SEED repeats the choices of a run.
"""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from meta_client.client import Client
from tests.crash.groups.feed import Feed
from tests.crash.groups.fleet import GROUP, TOPIC, Fleet
from tests.crash.groups.ledger import check
from tests.crash.groups.stage import SESSION_S, SETTLE_S, Stage, wait_settled
from tests.crash.groups.watch import Watch
from tests.fixtures.broker import BrokerProcess
from zk.embedded.server import EmbeddedZooKeeper
from zk.session.lease import now
from zk.session.session import ZooKeeperSession
from zk.tree.nodes import Partition

ROUNDS = int(os.environ.get("METAQ_CRASH_ROUNDS", "2"))
MEMBERS = 10
PARTITIONS = [Partition(broker_id, number) for broker_id in (0, 1) for number in range(30)]
TAKEOVER_S = SESSION_S + 2.0
CONFIG = """
[zookeeper]
session_timeout_ms = 2000
sync_ms = 200
connect_timeout_ms = 60000

[topics.work]
partitions = 30
"""


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
        feed = Feed(client.producer(), TOPIC, PARTITIONS)
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
            feed.cancel()
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
