"""Failovers of a master and its slaves under load: processes die, slaves take over, and the outcome is checked.

How the processes reach each other, and what fails between them, is the matter of Replicas and its links.

A round may expect this. In mode sync each slave that ZooKeeper names in sync has everything that was acknowledged,
however many there are: one that does not keep up leaves the set before anything is acknowledged without it.
In mode async any slave may be promoted; what it lacks is the end of the former master's journal, and what that means
is worked out by `kept`.
"""

import contextlib
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

from journal.records.record import PartitionName
from tests.crash.decisions import Operator, check_decisions
from tests.crash.kept import Kept, must_be_told
from tests.crash.ledger import Known, Log, check
from tests.crash.loads import Load, PatientProducer
from tests.crash.losses import Loss, check_lost, first_of, shown_by
from tests.crash.shown import Shown, check_shown, read_shown
from tests.crash.workload import CONFIG, PARTITIONS, Reader, end_of
from tests.fixtures.power import cut_power
from tests.fixtures.replicas import ReplicaProcess, Replicas, wait_identical, wait_until
from zk.session.session import ZooKeeperSession

PRODUCERS = 4

REPLICATED = (
    CONFIG
    + """
[zookeeper]
session_timeout_ms = 1000
sync_ms = 0

[replication]
mode = "MODE"
timeout_ms = 1000
silence_ms = 800
lag_ms = 1000
heartbeat_ms = 100
"""
)


class Story:
    """State shared by the rounds of one directory."""

    def __init__(self, running: Replicas, session: ZooKeeperSession, seed: int, random: Random) -> None:
        self.running = running
        self.random = random
        self.session = session
        self.producers = [PatientProducer(number, seed) for number in range(PRODUCERS)]
        self.operator = Operator(PRODUCERS, seed)
        self.reader = Reader()
        self.former: Log = {name: [] for name in PARTITIONS}
        self.promotions = 0
        self.was_put = False  # at least one message, which may be lost by now

    # -- mode sync --------------------------------------------------------------------------------------------

    def one_round(self) -> str:
        """One death, and everything that follows it. Returns what happened, for people."""
        running, random = self.running, self.random
        master = running.master
        self.give_links()
        load = self.begin()
        time.sleep(random.uniform(0.05, 0.5))
        said = [self.disturb(random.choice(running.slaves))]
        time.sleep(random.uniform(0.0, 0.3))
        left_behind = None
        if len(running.slaves) > 1 and random.random() < 0.3:
            left_behind = random.choice(running.slaves)
            left_behind.pause()  # while it is being fed: the master goes on without it, once it has left the set
            time.sleep(random.uniform(0.1, 1.5))
            said.append("one left behind")
        is_paused = random.random() < 0.4
        if is_paused:
            master.pause()
            load.paused()
        elif random.random() < 0.3:
            for slave in running.slaves:
                slave.pause()  # what comes now, they do not have, and nobody is told of
            time.sleep(0.1)
            master.kill()
            load.wait()
            self.live_again_alone()
            for slave in running.slaves:
                slave.resume()
            said.append("and again alone")
        else:
            master.kill()
            load.wait()
        if left_behind is not None:
            left_behind.resume()
        slave = self.find_successor()
        loss = Loss.between(master, slave)
        self.promote(slave)
        self.bring_back(master, is_paused=is_paused)
        if is_paused:
            load.wait()
        for other in running.slaves:
            if other.link is not None:
                other.link.heal()
            if not other.is_running:
                other.start()
        self.check()
        self.check_cut(master, loss, is_paused=is_paused)
        said.append("paused" if is_paused else "killed")
        return ", ".join(said)

    def power_round(self) -> str:
        """The power goes at a master that acknowledges before it fsyncs; it is started again, once or twice, and goes
        on. Now and then a slave takes its place instead."""
        running, random = self.running, self.random
        master = running.master
        if random.random() < 0.2:
            return self.one_round()
        self.give_links()
        load = self.begin()
        time.sleep(random.uniform(0.05, 0.5))
        said = [self.disturb(random.choice(running.slaves))]
        time.sleep(random.uniform(0.0, 0.3))
        master.kill()
        load.wait()
        lost = cut_power(master.data)
        for slave in running.slaves:
            if slave.link is not None:
                slave.link.heal()
        if random.random() < 0.5:
            master.launch()
            time.sleep(random.uniform(0.0, 2.0))
            master.kill()
            lost += cut_power(master.data)
            said.append("twice")
        master.start()
        wait_until(lambda: all(map(self.is_back_in_sync, running.slaves)), "every slave is in sync again")
        self.check()
        said.append(f"{lost} bytes lost")
        return ", ".join(said)

    def is_back_in_sync(self, slave: ReplicaProcess) -> bool:
        """Like `Replicas.is_in_sync`, of a master that may just begin again."""
        try:
            return self.running.is_in_sync(slave)
        except ConnectionError:
            return False

    def find_successor(self) -> ReplicaProcess:
        """A stopped slave that has everything: one that ZooKeeper names. Others that were asked are stopped, too."""
        for slave in self.random.sample(self.running.slaves, len(self.running.slaves)):
            self.end_slave(slave)
            told = slave.dry_run()
            risks = [one["text"] for one in told["findings"] if one["weight"] == "risk"]
            assert bool(risks) == (slave.number not in told["in_sync"]), f"{slave.number} of {told['in_sync']}: {risks}"
            if not risks:
                return slave
        raise AssertionError("nobody may be promoted")

    def live_again_alone(self) -> None:
        """The master comes back while no slave follows, is read, and dies again: nobody may have been shown what only
        it has."""
        master = self.running.master
        master.start()
        ends = {name: end_of(self.former[name] + self.reader.seen.get(name, [])) for name in PARTITIONS}
        again, seen = Reader(), dict(self.reader.seen)
        with ThreadPoolExecutor(1) as threads:
            reading = threads.submit(again.run, master.client, ends)
            time.sleep(self.random.uniform(0.1, 0.3))
            master.kill()
            reading.result()
        self.reader.seen = {name: seen.get(name, []) + again.seen.get(name, []) for name in PARTITIONS}

    def check(self) -> None:
        """Check every answer clients got against the current master."""
        self.producers[0].one_more(self.running.master.client)
        shown = read_shown(self.running.master.client)
        self.check_told(shown)
        self.former = shown.log

    # -- mode async -------------------------------------------------------------------------------------------

    def lossy_round(self) -> str:
        """One death, and a promotion that loses something: just what a plain walk over the two journals says."""
        running, random = self.running, self.random
        master, slave = running.master, random.choice(running.slaves)
        self.give_links()
        load = self.begin()
        time.sleep(random.uniform(0.05, 0.3))
        said = [self.disturb(random.choice(running.slaves))]
        if random.random() < 0.3:
            slave.pause()  # what comes now, it has as far as its socket takes it
        elif slave.link is not None and random.random() < 0.7:
            slave.link.refuse()  # what comes now, it never has
        time.sleep(random.uniform(0.0, 0.3))
        if is_paused := random.random() < 0.4:
            master.pause()
            load.hang_up()  # answers it gives once it resumes must not arrive: it is no master any more
        else:
            master.kill()
        load.wait()
        slave.resume()
        loss, lost = self.lose(master, slave)
        self.bring_back(master, is_paused=is_paused)
        self.check_cut(master, loss, is_paused=is_paused)
        said.append("paused" if is_paused else "killed")
        return f"{', '.join(said)}: {len(loss.tail)} records and {lost} acknowledged messages lost"

    def lose(self, master: ReplicaProcess, slave: ReplicaProcess) -> tuple[Loss, int]:
        """*slave* takes the place of *master*, which is gone or stands still, and nobody believes what is lost by that
        any more. Returns that, and how many plain messages were acknowledged of it."""
        self.end_slave(slave)
        loss = Loss.between(master, slave)
        full = Kept(loss.former).promote()
        self.check_told(shown_by(full))
        kept = Kept(loss.copy)
        told = slave.dry_run("--former-dir", str(self.as_if_dead(master)))["lost"]
        check_lost(told, must_be_told(kept, loss.tail), loss)
        ends = kept.ends
        kept.promote()
        self.promote(slave, accept_loss=True)
        shown = read_shown(self.running.master.client)
        check_shown(shown, shown_by(kept))
        lost = self.forget_lost(full, kept, ends)
        self.check_ledgers(shown)
        self.former = shown.log
        return loss, lost

    def as_if_dead(self, master: ReplicaProcess) -> Path:
        """Return its directory unlocked; that of a paused process is copied."""
        if not master.is_running:
            return master.data
        copy = master.data.with_name(f"former-{self.promotions}")
        shutil.copytree(master.data, copy)
        return copy

    def forget_lost(self, full: Kept, kept: Kept, ends: dict[PartitionName, int]) -> int:
        """Make the ledgers what clients may believe now. *full* is what the former master had, *kept* what is left,
        *ends* where its partitions end before the new master has done anything. Returns how many plain messages are
        lost."""
        count = 0
        for worker in self.workers:
            plain = worker.ledger.plain
            for place in [place for place in plain if place[1] >= ends.get(place[0], 0)]:
                del plain[place]
                count += 1
            for branch in worker.ledger.branches:
                if (first := first_of(branch, full)) is not None:
                    is_commit, is_in_doubt = kept.committed.get(first, False), first in kept.branches
                    branch.settle(visible=is_commit, in_doubt=is_in_doubt)
        for one in self.operator.decisions:
            listed = kept.decided.get(str(one.branch.key))
            is_listed = listed is not None and listed.why == one.why  # a branch may be decided again: each has its own
            one.forgotten = Known.NOT_ASKED if is_listed else Known.TOLD
        return count

    # -- what both do -----------------------------------------------------------------------------------------

    @property
    def workers(self) -> list[PatientProducer | Operator]:
        return [*self.producers, self.operator]

    def begin(self) -> Load:
        """Every slave is in sync, and everybody at work."""
        for slave in self.running.slaves:
            if slave.link is not None:
                slave.link.heal()
        wait_until(lambda: all(map(self.running.is_in_sync, self.running.slaves)), "every slave is in sync")
        return Load(self.workers, self.reader, self.former, self.running.master.client)

    def give_links(self) -> None:
        """Some that found their master by themselves are started again, with a link that can be disturbed."""
        for slave in self.running.slaves:
            if slave.link is None and self.random.random() < 0.7:
                self.end_slave(slave)
                slave.slave_id, slave.link = slave.number, self.running.new_link(slave)
                slave.start()

    def disturb(self, slave: ReplicaProcess) -> str:
        """Trouble between the master and *slave*, over when this returns, or not."""
        link, random = slave.link, self.random
        kinds = ["none", "pause"] + (["cut", "drag", "dumb"] if link is not None else [])
        kind, seconds = random.choice(kinds), random.uniform(0.05, 0.5)
        if kind == "pause":
            slave.pause()
            time.sleep(seconds)
            slave.resume()
        elif kind == "cut" and link is not None:
            link.refuse()
            time.sleep(seconds)
            if random.random() < 0.5:
                link.heal()
        elif kind == "drag" and link is not None:
            link.drag(0.01)
            time.sleep(seconds)
            link.drag(0)
        elif kind == "dumb" and link is not None:
            link.swallow()
            time.sleep(seconds)
            if random.random() < 0.5:
                link.heal()
        return kind

    def end_slave(self, slave: ReplicaProcess) -> None:
        """Before its promotion, one way or another."""
        match self.random.choice(["killed", "stopped", "paused"]):
            case "stopped":
                assert slave.stop() == 0, slave.log
            case "paused":
                slave.pause()
                slave.kill()
            case _:
                slave.kill()

    def promote(self, slave: ReplicaProcess, *, accept_loss: bool = False) -> None:
        """Promote it to master, whether or not others are paused."""
        others = [other for other in self.running.slaves if other is not slave and other.is_running]
        still = [other for other in others if self.random.random() < 0.5]
        for other in still:
            other.pause()
        self.running.promote(slave, accept_loss=accept_loss)
        for other in still:
            other.resume()
        self.promotions += 1

    def bring_back(self, former: ReplicaProcess, *, is_paused: bool) -> None:
        """The former master becomes a slave of the one that was promoted."""
        if is_paused:
            former.link = None
            former.resume()  # and notices by itself
        elif self.random.random() < 0.5:
            former.link = None
            former.start()  # as the master that it was: it notices by itself
        else:
            former.slave_id = former.number
            former.link = former.link or self.running.new_link(former)
            former.start()
        self.running.slaves.append(former)

    def check_told(self, shown: Shown) -> None:
        """Check that every acknowledged fact holds and all messages read before are still there."""
        self.check_ledgers(shown)
        for name, messages in self.former.items():
            seen = messages + self.reader.seen.get(name, [])
            assert shown.log[name][: len(seen)] == seen, f"{name}: what was read before is not there any more"

    def check_ledgers(self, shown: Shown) -> None:
        check_decisions(self.operator.decisions, shown.in_doubt, shown.decided)
        check([worker.ledger for worker in self.workers], shown.log, shown.in_doubt)
        self.was_put |= any(worker.ledger.plain for worker in self.workers)

    def check_cut(self, former: ReplicaProcess, loss: Loss, *, is_paused: bool) -> None:
        """Check that it follows, and that its divergent tail is saved in a file beside its journal."""
        wait_until(lambda: self.running.is_in_sync(former), "the former master follows")
        assert not loss.tail or loss.is_kept(former.data, is_more=is_paused), f"cut at {loss.start}, and not kept"


@contextlib.contextmanager
def story_of(replicas: Replicas, zookeeper: str, seed: int, random: Random) -> Iterator[Story]:
    """Start them; at the end all copies hold the same bytes. *zookeeper*: the connect string, with a path of their own:
    epochs are kept there."""
    with replicas as running, ZooKeeperSession(zookeeper) as session:
        yield Story(running, session, seed, random)
        for slave in running.slaves:
            if slave.link is not None:
                slave.link.heal()
        master = running.master.data
        for slave in running.slaves:
            wait_identical(master, slave.data)
