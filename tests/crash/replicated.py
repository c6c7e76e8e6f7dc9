"""Stories of a master and its slave under load: who dies, who takes whose place, and what is there afterwards.

How the processes reach each other, and what fails between them, is the matter of Replicas and its links.
"""

import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from random import Random

from meta_client.protocol.responses import Result
from tests.crash.ledger import Log, check
from tests.crash.workload import CONFIG, PARTITIONS, Connect, Producer, Reader, end_of, read_back
from tests.fixtures.replicas import ReplicaProcess, Replicas, check_identical, wait_until
from tests.fixtures.wire import Refused, WireClient
from zk.replication import read_replication
from zk.session import ZooKeeperSession

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


class PatientProducer(Producer):
    """A producer that goes on when a broker refuses: what it asked for is as open as if the broker had died."""

    def __init__(self, number: int, seed: int) -> None:
        super().__init__(number, seed)
        self.refusals = 0

    def run(self, connect: Connect) -> None:
        with contextlib.suppress(ConnectionError), connect() as client:
            while True:
                step = self._random.choice([self._plain, self._plain, self._local, self._xa, self._xa, self._finish])
                try:
                    step(client)
                except Refused:
                    self.refusals += 1

    def run_plain(self, connect: Connect) -> None:
        """As run, with messages outside transactions alone."""
        with contextlib.suppress(ConnectionError), connect() as client:
            while True:
                self._plain(client)

    def one_more(self, connect: Connect) -> None:
        """Put until something is acknowledged: then everything before is, or never will be."""
        with connect() as client:
            wait_until(lambda: self._is_acknowledged(client), "a put is acknowledged")

    def _is_acknowledged(self, client: WireClient) -> bool:
        before = self.refusals
        self._plain(client)
        return self.refusals == before

    def _refused(self, answer: Result) -> None:
        self.refusals += 1


class Load:
    """Producers at work on one master, and a reader, until it is gone."""

    def __init__(self, producers: list[PatientProducer], reader: Reader, former: Log, connect: Connect) -> None:
        self._threads = ThreadPoolExecutor(len(producers) + 1)
        ends = {name: end_of(messages) for name, messages in former.items()}
        self._tasks: list[Future[None]] = [self._threads.submit(producer.run, connect) for producer in producers]
        self._tasks.append(self._threads.submit(reader.run, connect, ends))

    def wait(self) -> None:
        """Until all have seen the master's end. Raises what they raised."""
        for task in self._tasks:
            task.result(timeout=30)
        self._threads.shutdown()


class Story:
    """What the rounds of one directory share."""

    def __init__(self, running: Replicas, session: ZooKeeperSession, seed: int, random: Random) -> None:
        self.running = running
        self.random = random
        self.session = session
        self.producers = [PatientProducer(number, seed) for number in range(PRODUCERS)]
        self.reader = Reader()
        self.former: Log = {name: [] for name in PARTITIONS}
        self.promotions = 0

    def is_in_sync(self, slave: ReplicaProcess) -> bool:
        node = read_replication(self.session, 0).node
        return node is not None and node.master == self.running.master.url and slave.number in node.in_sync

    def one_round(self) -> str:
        """One death, and everything that follows it. Returns what happened, for people."""
        running, random = self.running, self.random
        master, (slave,) = running.master, running.slaves
        wait_until(lambda: self.is_in_sync(slave), "the slave is in sync")
        load = Load(self.producers, self.reader, self.former, master.client)
        time.sleep(random.uniform(0.05, 0.5))
        trouble = self.disturb(slave)
        time.sleep(random.uniform(0.0, 0.3))
        is_paused, is_alone = random.random() < 0.4, random.random() < 0.3
        if is_paused:
            master.pause()
        else:
            if is_alone:
                slave.pause()  # what comes now, it does not have, and nobody is told of
                time.sleep(0.1)
            master.kill()
            load.wait()
            if is_alone:
                self.live_again_alone()
                slave.resume()
                trouble += ", and again alone"
        if random.random() < 0.7:
            slave.kill()
        else:
            assert slave.stop() == 0, slave.log
        findings = slave.dry_run()["findings"]
        risks = [one["text"] for one in findings if one["weight"] == "risk"]
        is_whole = not risks
        if is_whole:
            running.promote(slave)
            self.promotions += 1
            self.bring_back(master, is_paused=is_paused)
        elif is_paused:
            master.resume()
            master.kill()
        if is_paused:
            load.wait()
        if not is_whole:  # the master did not count on its slave: it comes back itself
            if slave.link is not None:
                slave.link.heal()
            master.start()
            slave.start()
        self.check()
        return f"{trouble}, {'paused' if is_paused else 'killed'}, {'; '.join(risks) or 'promoted'}"

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

    def bring_back(self, former: ReplicaProcess, *, is_paused: bool) -> None:
        """The former master becomes the slave of the one that was promoted."""
        if is_paused:
            former.resume()  # and notices by itself
        elif self.random.random() < 0.5:
            former.link = None
            former.start()  # as the master that it was: it notices by itself
        else:
            former.slave_id = former.number
            former.start()
        self.running.slaves.append(former)

    def lossy_round(self) -> str:
        """As one_round in mode async, with plain messages: what is lost is what `metaq promote --old` says."""
        running, random = self.running, self.random
        master, (slave,) = running.master, running.slaves
        wait_until(lambda: self.is_in_sync(slave), "the slave is in sync")
        with ThreadPoolExecutor(PRODUCERS) as threads:
            tasks = [threads.submit(producer.run_plain, master.client) for producer in self.producers]
            time.sleep(random.uniform(0.05, 0.3))
            if slave.link is not None and random.random() < 0.7:
                slave.link.refuse()  # what comes now, the slave never has
                time.sleep(random.uniform(0.05, 0.3))
            master.kill()
            for task in tasks:
                task.result()
        slave.kill()
        told = slave.dry_run("--old", str(master.data))["lost"]
        if slave.link is not None:
            slave.link.heal()
        running.promote(slave, accept_loss=True)
        log, in_doubt = read_back(running.master.client)
        lost = self.forget_lost(log, told["ranges"])
        check([producer.ledger for producer in self.producers], log, in_doubt)
        self.former = log
        self.promotions += 1
        self.bring_back(master, is_paused=False)
        wait_until(lambda: self.is_in_sync(master), "the former master follows")
        return (
            f"{lost} acknowledged messages lost, {sum(messages for _, _, messages in told['ranges'].values())} told of"
        )

    def forget_lost(self, log: Log, told: dict[str, tuple[int, int, int]]) -> int:
        """Take what was lost out of the producers' ledgers; returns how many messages. It must be the end of each
        partition, and just what was told of."""
        ends = {name: end_of(messages) for name, messages in log.items()}
        for name, end in ends.items():
            assert told.get(str(name), (end,))[0] == end, f"{name} ends at {end}, and {told[str(name)]} was told of"
        count = 0
        for producer in self.producers:
            plain = producer.ledger.plain
            for name, offset in [place for place in plain if place[1] >= ends[place[0]]]:
                start, end, _ = told[str(name)]
                assert start <= offset < end, f"{name} at {offset} is lost, and [{start}, {end}) was told of"
                del plain[name, offset]
                count += 1
        return count

    def check(self) -> None:
        """Everything that anybody was told is so, at the master of the moment."""
        running = self.running
        self.producers[0].one_more(running.master.client)
        log, in_doubt = read_back(running.master.client)
        check([producer.ledger for producer in self.producers], log, in_doubt)
        for name, messages in self.former.items():
            seen = messages + self.reader.seen.get(name, [])
            assert log[name][: len(seen)] == seen, f"{name}: what was read before is not there any more"
        self.former = log

    def disturb(self, slave: ReplicaProcess) -> str:
        """Trouble between master and slave, over when this returns, or not."""
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


@contextlib.contextmanager
def story_of(replicas: Replicas, zookeeper: str, seed: int, random: Random) -> Iterator[Story]:
    """Start them; at the end master and slave hold the same bytes. *zookeeper*: the connect string, with a path of
    their own: epochs are kept there."""
    with replicas as running, ZooKeeperSession(zookeeper) as session:
        yield Story(running, session, seed, random)
        wait_until(lambda: is_identical(running.master.data, running.slaves[0].data), "both copies are the same")
        check_identical(running.master.data, running.slaves[0].data)


def is_identical(one: Path, other: Path) -> bool:
    try:
        check_identical(one, other)
    except AssertionError:
        return False
    return True
