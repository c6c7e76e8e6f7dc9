"""Rows and messages of services with an outbox, while relays, two brokers and the database are killed or stopped.

Services write until they are ended: a row, and messages, in one transaction: for each broker, and to a topic of both.
Two relays move them.
METAQ_CRASH_ROUNDS rounds (default 3) of three accidents; METAQ_CRASH_SEED repeats the choices of a run that failed, not
its timing.
"""

import contextlib
import itertools
import os
import signal
import threading
import time
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import psycopg
import pymysql
import pytest

from meta_client.protocol.requests import TopicVerb
from tests.fixtures.broker_pool import BrokerPool
from tests.fixtures.forked import Forked, start_metaq
from tests.fixtures.reading import read_whole
from tests.fixtures.topic_commands import done
from tests.meta_client.outbox.conftest import OutboxWorld
from tests.meta_client.transactions.conftest import PARTITIONS, do, running_world
from tests.meta_client.transactions.test_crashes import killable

ROUNDS = int(os.environ.get("METAQ_CRASH_ROUNDS", "3"))
SPREAD = f"spread-{time.time_ns()}"
TOPICS = {**PARTITIONS, SPREAD: 4}
SERVICES = 3
KEYS = 5  # of a service
STILL_S = 60.0  # without a message moved: a backlog grows with the rounds, and takes as long as it takes
NO_DATABASE = 2  # exit status of a relay that begins while the database is away: its supervisor begins it again


class Services:
    """Threads that write numbers, each its own; who loses the database begins again."""

    def __init__(self, on: OutboxWorld) -> None:
        self._on = on
        self._ending = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(number,)) for number in range(SERVICES)]

    def __enter__(self) -> None:
        for thread in self._threads:
            thread.start()

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join()

    def _work(self, service: int) -> None:
        numbers = itertools.count(service * 1_000_000)
        while not self._ending.is_set():
            with contextlib.suppress(psycopg.Error, pymysql.Error), closing(self._on.world.deciding.connect()) as it:
                while not self._ending.is_set():
                    self._write(it, service, next(numbers))
            self._ending.wait(0.05)

    def _write(self, connection: Any, service: int, number: int) -> None:
        do(connection, f"INSERT INTO numbers VALUES ({number})")
        for topic in TOPICS:
            self._on.outbox.send(connection, topic, b"%d" % number, attribute=f"{service}-{number % KEYS}")
        if number % 11:
            connection.commit()
        else:
            connection.rollback()


class Relays:
    """Two processes of `metaq outbox relay`."""

    def __init__(self, on: OutboxWorld, directory: Path) -> None:
        self._words = ["outbox", "relay", "--database", on.url, "--zk", on.world.zookeeper, "--rows", "50"]
        self._words += ["--expect", f"{SPREAD}=0:2,1:2"]  # one of them may be down when a relay begins
        self._files = contextlib.ExitStack()
        self._log = self._files.enter_context((directory / "relays.log").open("ab"))
        (directory / "nothing").touch()
        self._nothing = self._files.enter_context((directory / "nothing").open("rb"))
        self.running = [self._start() for _ in range(2)]

    def _start(self) -> Forked:
        return start_metaq(self._words, stdin=self._nothing, stdout=self._log, stderr=self._log)

    def kill(self, index: int) -> None:
        self.running[index].kill()
        assert self.running[index].wait() in (-signal.SIGKILL, NO_DATABASE)
        self.running[index] = self._start()

    def stop(self, index: int, seconds: float) -> None:
        self.running[index].send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        self.running[index].send_signal(signal.SIGCONT)

    def close(self) -> None:
        for one in self.running:
            one.kill()
            one.wait()
        self._files.close()


@pytest.mark.timeout(400 + 30 * ROUNDS)
@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_every_row_has_its_message_once_and_in_order(tmp_path: Path, broker_pool: BrokerPool, kind: str) -> None:
    seed = int(os.environ.get("METAQ_CRASH_SEED") or time.time_ns() % 2**32)
    print(f"METAQ_CRASH_SEED={seed}")
    random = Random(seed)
    with (
        killable(kind) as (server, deciding),
        running_world(deciding, broker_pool, brokers=2) as world,
        contextlib.ExitStack() as stack,
    ):
        on = OutboxWorld(world)
        for broker in world.brokers:
            with broker.client() as client:
                done(client, TopicVerb.CREATE, SPREAD, partitions="2")
        stack.enter_context(on.closing)
        with closing(Relays(on, tmp_path)) as relays, Services(on):
            for _ in range(ROUNDS * 3):
                time.sleep(random.uniform(0.1, 0.6))
                accident(random, server, random.choice(world.brokers), relays)
        on.engine.dispose()  # its connection may be one of a database that was killed
        with closing(Relays(on, tmp_path)):
            wait_moved(on)
        numbers = deciding.numbers()
        for topic, partitions in TOPICS.items():
            found = list(read_whole(world.client, topic, partitions, world.begins))
            assert sorted(int(one.payload) for one in found) == numbers
            last: dict[str | None, int] = {}
            for one in found:
                assert int(one.payload) > last.get(one.attribute, -1), "in order"
                last[one.attribute] = int(one.payload)
            assert len({one.partition for one in found}) > 1
        assert on.status()[:3] == (0, None, 0)
        assert deciding.query("SELECT gtrid FROM metaq_decision WHERE hazard IS NOT NULL") == []
    print(f"rounds={ROUNDS} rows={len(numbers)}")


def accident(random: Random, server: Any, broker: Any, relays: Relays) -> None:
    match random.choice(("relay", "relay", "relay", "stopped", "both", "broker", "database")):
        case "relay":
            relays.kill(random.randrange(2))
        case "stopped":
            relays.stop(random.randrange(2), random.uniform(0.1, 2.0))
        case "both":
            relays.kill(0)
            relays.kill(1)
        case "broker":
            broker.kill()
            time.sleep(random.choice((0.0, 0.5, 4.0)))
            broker.start()
        case "database":
            server.restart()  # killed before


def wait_moved(on: OutboxWorld) -> None:
    left, deadline = on.status().waiting, time.monotonic() + STILL_S
    while left or on.world.prepared():
        assert time.monotonic() < deadline, (on.status(), on.world.prepared())
        time.sleep(0.1)
        if (now := on.status().waiting) != left:
            left, deadline = now, time.monotonic() + STILL_S
