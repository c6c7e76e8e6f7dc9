"""ZooKeeper, brokers, a fleet and its links, and everything that can be done to them in a round."""

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random

from tests.crash.groups.feed import Feed
from tests.crash.groups.fleet import Fleet, Member
from tests.crash.groups.watch import Watch
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.tcp_proxy import TcpProxy
from zk.embedded.server import EmbeddedZooKeeper
from zk.session.lease import now
from zk.tree.nodes import Partition

SESSION_S = 2.0
SETTLE_S = 30.0
FLOOD_MESSAGES, FLOOD_BYTES = 300, 8_000
PARTITIONS = re.compile(r"^partitions = (\d+)$", re.MULTILINE)
PARTITIONS_MAX = 12  # of a broker


@dataclass(eq=False)
class Stage:
    """One world. Acts begin at moments of their own; those on one broker, or on one link, wait for each other."""

    server: EmbeddedZooKeeper
    brokers: Sequence[BrokerProcess]
    fleet: Fleet
    random: Random
    feed: Feed | None = None
    links: Sequence[TcpProxy] = ()  # to the brokers
    database: TcpProxy | None = None  # to the store of offsets
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _busy: dict[object, threading.Lock] = field(default_factory=dict)
    _untouched: list[Member] = field(default_factory=list)

    def take(self) -> Member:
        """A member to hurt, in this round no other's."""
        with self._lock:
            return self._untouched.pop()

    def play(self, acts: Sequence[Callable[[], None]]) -> None:
        """One round: all of *acts*."""
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

    def expire(self) -> None:
        self.fleet.expire(self.take())

    def restart_zookeeper(self) -> None:
        with self._note("ZooKeeper restarted"):
            self.server.kill()
            time.sleep(self.random.uniform(0.0, 1.0))
            self.server.restart()
            time.sleep(2.0)

    def restart_broker(self) -> None:
        broker = self.random.choice(self.brokers)
        with self._alone(broker), self._note("broker restarted"):
            if self.random.random() < 0.5:
                broker.kill()
            else:
                assert broker.stop() == 0
            time.sleep(self.random.uniform(0.0, 1.0))
            broker.start()

    def stop_broker(self) -> None:
        """SIGSTOP and SIGCONT, sometimes for longer than its session."""
        broker = self.random.choice(self.brokers)
        with self._alone(broker), self._note("broker stopped"):
            broker.pause()
            time.sleep(self.random.uniform(0.3, 4.0))
            broker.resume()
            time.sleep(1.0)

    def add_partition(self) -> None:
        broker = self.random.choice(self.brokers)
        with self._alone(broker):
            config = broker.config_path.read_text()
            match = PARTITIONS.search(config)
            assert match is not None
            if (count := int(match[1])) == PARTITIONS_MAX:
                return
            broker.config_path.write_text(PARTITIONS.sub(f"partitions = {count + 1}", config))
            broker.hang_up()
        assert self.feed is not None
        self.feed.add(Partition(broker.broker_id, count))

    def cut_broker(self) -> None:
        self._hurt("link to a broker", self.random.choice(self.links))

    def cut_database(self) -> None:
        assert self.database is not None
        self._hurt("link to the database", self.database)

    def flood(self) -> None:
        """Send more than a broker retains."""
        assert self.feed is not None
        broker = self.random.choice(self.brokers)
        chosen = [Partition(broker.broker_id, number) for number in self.random.sample(range(3), 2)]
        for number in range(FLOOD_MESSAGES):
            self.feed.send(chosen[number % len(chosen)], FLOOD_BYTES)

    def _hurt(self, what: str, link: TcpProxy) -> None:
        way = self.random.choice(["swallowed", "refused", "dragged"])
        with self._alone(link), self._note(f"{what} {way}"):
            if way == "dragged":
                link.drag(self.random.uniform(0.02, 0.3))
            else:
                (link.swallow if way == "swallowed" else link.refuse)()
            time.sleep(self.random.uniform(0.2, 3.5))
            link.drag(0)
            link.heal()
            time.sleep(1.0)

    @contextlib.contextmanager
    def _alone(self, with_it: object) -> Iterator[None]:
        with self._lock:
            busy = self._busy.setdefault(with_it, threading.Lock())
        with busy:
            yield

    @contextlib.contextmanager
    def _note(self, kind: str) -> Iterator[None]:
        began = now()
        yield
        self.fleet.note(began, None, kind)


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
