"""Failovers as in test_replication_killed, on separate hosts whose network fails silently.

A master, two slaves and ZooKeeper are four hosts (`tests/fixtures/hosts.py`), and the clients are on the master's. The
way between two of them is cut, in both directions or in one, is late or slow, or the hosts are parted; then the
master is killed, paused for good, or cut off from everybody and goes on with its clients alone. A slave takes its place
and goes to work, and the former master comes back when its cable does.

METAQ_CRASH_ROUNDS such rounds a mode, 1 unless told; METAQ_CRASH_SEED repeats the choices of a run that failed, though
not its timing.
"""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest

from meta_broker.replication.promotion.promotion import read_cluster
from tests.crash.kept import Kept, Told, must_be_told, walk
from tests.crash.loads import Load, PatientProducer
from tests.crash.losses import Loss, shown_by
from tests.crash.replicated import PRODUCERS, REPLICATED, Story
from tests.crash.shown import check_shown, read_shown
from tests.fixtures.host_replicas import ZOOKEEPER, HostReplicas, host_of, replicas_on_hosts
from tests.fixtures.hosts import Network
from tests.fixtures.replicas import WAIT_S, ReplicaProcess, wait_identical, wait_until
from tests.fixtures.ways import LOST, late, slow
from zk.brokers.replication import read_replication
from zk.session.session import ZooKeeperSession

ROUNDS = int(os.environ.get("METAQ_CRASH_ROUNDS", "1"))
ROUNDS_PER_DIRECTORY = 10  # everything is read back after every death
SLAVES = 2

TROUBLES = ["none", "cut", "half open", "late", "slow", "parted", "no ZooKeeper", "half of ZooKeeper"]
ENDS = ["killed", "paused", "cut off"]


def disturb(net: Network, random: Random, master: ReplicaProcess, slave: ReplicaProcess) -> str:
    """Trouble between *master* and *slave* or ZooKeeper; over when this returns, or not. Returns what, for people."""
    here, there, zookeeper = host_of(master), host_of(slave), net[ZOOKEEPER]
    kind = random.choice(TROUBLES)
    source, target = random.sample([here, there if kind == "half open" else zookeeper], 2)
    match kind:
        case "cut":
            net.between(here, there, LOST)
        case "half open" | "half of ZooKeeper":
            net.one_way(source, target, LOST)
            kind += f", {source} to {target}"
        case "late":
            net.between(here, there, late(random.uniform(0.01, 0.2)))
        case "slow":
            net.one_way(here, there, slow(random.uniform(50_000, 1_000_000)))
        case "parted":
            net.part([here, there])
        case "no ZooKeeper":
            net.between(here, zookeeper, LOST)
    time.sleep(random.uniform(0.1, 1.5))  # less and more than silence_ms and the session's time
    if kind != "none" and random.random() < 0.5:
        net.heal()
        kind += ", healed"
    time.sleep(random.uniform(0.0, 0.3))
    return kind


class HostStory(Story):
    """State shared by the rounds of one directory."""

    def __init__(self, running: HostReplicas, session: ZooKeeperSession, seed: int, random: Random) -> None:
        super().__init__(running, session, seed, random)
        self.net = running.net
        self._seed = seed

    def one_round(self) -> str:
        """Check that mode sync loses nothing."""
        master, load = self.running.master, self.begin()
        trouble, end = self.fail(master, load)
        if end == "killed":
            load.wait()
        # What it has sent to ZooKeeper may still be under way; after its session, nothing can be.
        wait_until(lambda: read_cluster(self.session, 0)[0].master is None, "the master's session is over")
        node = read_replication(self.session, 0).node
        assert node is not None
        heir = self.random.choice([slave for slave in self.running.slaves if slave.number in node.in_sync])
        self.end_slave(heir)
        risks = [one["text"] for one in heir.dry_run()["findings"] if one["weight"] == "risk"]
        assert not risks, f"{heir.number} is in sync: {risks}"
        loss = Loss.between(master, heir)
        self.promote(heir)
        self.producers.append(self.client_of_the_heir())
        self.net.heal()
        self.bring_back(master, is_paused=end != "killed")
        load.wait()
        self.check()
        self.check_cut(master, loss, is_paused=end != "killed")
        return f"{trouble}; {end}"

    def lossy_round(self) -> str:
        """Check that mode async loses only a tail, which is reported exactly."""
        master, load = self.running.master, self.begin()
        trouble, end = self.fail(master, load)
        heir = self.random.choice(self.running.slaves)
        if end == "cut off":
            loss, lost = self.lose_unseen(master, heir, load)
        else:
            if end == "paused":
                load.hang_up()  # answers it gives once it resumes must not arrive: it is no master any more
            load.wait()
            loss, lost = self.lose(master, heir)
            self.producers.append(self.client_of_the_heir())
        self.net.heal()
        self.bring_back(master, is_paused=end != "killed")
        self.check_cut(master, loss, is_paused=end != "killed")
        if end == "cut off" and loss.tail:
            check_told_afterwards(master, must_be_told(Kept(loss.copy), loss.tail))
        return f"{trouble}; {end}: {len(loss.tail)} records and {lost} acknowledged messages lost"

    def lose_unseen(self, master: ReplicaProcess, heir: ReplicaProcess, load: Load) -> tuple[Loss, int]:
        """Like `lose`, while *master* still acknowledges to clients that reach it. Its directory cannot be read
        beforehand."""
        self.end_slave(heir)
        copy = walk(heir.data)
        kept = Kept(copy)
        ends = kept.ends
        kept.promote()
        self.promote(heir, accept_loss=True)
        shown = read_shown(self.running.master.client)
        check_shown(shown, shown_by(kept))
        client = self.client_of_the_heir()
        master.pause()
        load.hang_up()
        load.wait()
        loss = Loss.beyond(copy, master)
        full = Kept(loss.former).promote()
        self.check_told(shown_by(full))
        lost = self.forget_lost(full, kept, ends)
        self.check_ledgers(shown)
        self.former = shown.log
        self.producers.append(client)
        return loss, lost

    def client_of_the_heir(self) -> PatientProducer:
        """Return a client that has put something to the new master before the former one knows of it."""
        producer = PatientProducer(PRODUCERS + self.promotions, self._seed)
        producer.one_more(self.running.master.client)
        return producer

    def fail(self, master: ReplicaProcess, load: Load) -> tuple[str, str]:
        """Trouble, and then the end of *master*; everybody else is well. Returns what, for people."""
        time.sleep(self.random.uniform(0.05, 0.5))
        trouble = disturb(self.net, self.random, master, self.random.choice(self.running.slaves))
        end = self.random.choice(ENDS)
        match end:
            case "killed":
                master.kill()
            case "paused":
                master.pause()
                load.paused()
            case "cut off":
                self.net.pull(host_of(master))
                time.sleep(self.random.uniform(0.0, 0.5))
        self.net.heal(but=host_of(master))
        return trouble, end


def check_told_afterwards(former: ReplicaProcess, expected: Told) -> None:
    """`metaq journal truncations` tells of all that was lost, and maybe of what nobody was told of."""
    words = [sys.executable, "-m", "meta_client.cli.main", "journal", "truncations", str(former.data), "--json"]
    done = subprocess.run(words, capture_output=True, timeout=WAIT_S, check=True)
    told = max((json.loads(line) for line in done.stdout.splitlines()), key=lambda cut: int(cut["epoch"]))["tail"]
    for name, (start, end, messages) in expected.ranges.items():
        at = told["ranges"][name]
        assert at[0] == start, f"{name}: lost from {start} on, told from {at[0]} on"
        assert at[1] >= end, f"{name}: lost to {end}, told to {at[1]}"
        assert at[2] >= messages, f"{name}: {messages} messages lost, {at[2]} told"


@contextlib.contextmanager
def story_on_hosts(directory: Path, mode: str, seed: int, random: Random) -> Iterator[HostStory]:
    """A master and two slaves; at the end they hold the same bytes."""
    directory.mkdir()
    with (
        replicas_on_hosts(directory, REPLICATED.replace("MODE", mode), SLAVES) as (replicas, connect),
        replicas as running,
        ZooKeeperSession(connect) as session,
    ):
        yield HostStory(running, session, seed, random)
        for slave in running.slaves:
            wait_identical(running.master.data, slave.data)


def tell(directory: Path, mode: str, a_round: Callable[[HostStory], str]) -> None:
    """Run the given number of rounds."""
    seed = int(os.environ.get("METAQ_CRASH_SEED") or time.time_ns() % 2**32)
    print(f"METAQ_CRASH_SEED={seed}")
    random = Random(seed)
    for first in range(0, ROUNDS, ROUNDS_PER_DIRECTORY):
        with story_on_hosts(directory / f"{first}", mode, seed + first, random) as story:
            for number in range(first, min(first + ROUNDS_PER_DIRECTORY, ROUNDS)):
                started = time.monotonic()
                print(number, a_round(story), f"{time.monotonic() - started:.1f} s", flush=True)
            assert any(producer.ledger.plain for producer in story.producers), "nothing was put"


@pytest.mark.timeout(600 + 90 * ROUNDS)
def test_nothing_acknowledged_is_lost_whatever_the_network_loses(tmp_path: Path) -> None:
    tell(tmp_path, "sync", HostStory.one_round)


@pytest.mark.timeout(600 + 90 * ROUNDS)
def test_what_is_lost_without_waiting_for_slaves_is_an_end_and_told_exactly(tmp_path: Path) -> None:
    tell(tmp_path, "async", HostStory.lossy_round)
