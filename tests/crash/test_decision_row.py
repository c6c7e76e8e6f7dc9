"""Rows and messages of a service whose decisions are rows, while service, brokers and database are killed at random.

One of two brokers has a slave in mode sync, which takes its master's place now and then. Two resolvers run all the time
in processes of their own. After each round, and some seconds of quiet, nothing is
prepared, and rows and messages are the same, as plain SQL and a plain consumer see them. METAQ_CRASH_ROUNDS rounds
(default 4); METAQ_CRASH_SEED repeats the choices of a run that failed, not its timing.
"""

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import IO, Any

import pytest

from meta_client import Client
from tests.fixtures.broker import running_broker
from tests.fixtures.forked import start_metaq, start_speaking
from tests.fixtures.replicas import Replicas, wait_until
from tests.meta_client.coordinator.conftest import QUICK
from tests.meta_client.transactions.conftest import BILLS, World
from tests.meta_client.transactions.test_crashes import killable
from zk.embedded.chroot import Chroot

ROUNDS = int(os.environ.get("METAQ_CRASH_ROUNDS", "4"))
WAYS = {  # of a life of the service, in turn
    "threads": ("driver", "sqlalchemy", "django"),
    "tasks": ("tasks psycopg pool", "tasks asyncpg pool", "tasks asyncpg session", "tasks psycopg session"),
}
REPLICATED = f"""{QUICK}
[replication]
mode = "sync"
timeout_ms = 1000
silence_ms = 800
lag_ms = 1000
heartbeat_ms = 100
"""
QUIET_S = 60.0  # on a busy machine: what a look takes, a broker that comes back, a disk that lets a commit wait


@pytest.mark.timeout(300 + 30 * ROUNDS)
@pytest.mark.parametrize(("kind", "who"), [("postgres", "threads"), ("postgres", "tasks"), ("mariadb", "threads")])
def test_rows_and_messages_are_the_same_whichever_process_dies(
    tmp_path: Path, zookeeper: Chroot, kind: str, who: str
) -> None:
    seed = int(os.environ.get("METAQ_CRASH_SEED") or time.time_ns() % 2**32)
    print(f"METAQ_CRASH_SEED={seed}")
    random = Random(seed)
    with (
        killable(kind) as (server, deciding),
        Replicas(tmp_path / "orders", zookeeper.connect, REPLICATED) as copies,
        running_broker(tmp_path / "bills", zookeeper.connect, broker_id=1, config=BILLS) as bills,
        Client(zookeeper.connect) as client,
    ):
        world = World(deciding, [copies.master, bills], zookeeper.connect, client, begins={})
        with resolvers(world, tmp_path, "--age", "0.5", "--interval", "0.2"):
            total, promotions, longest_s = 0, 0, 0.0
            for life in range(1, ROUNDS + 1):
                promotions += one_life(world, server, copies, life, WAYS[who][life % len(WAYS[who])], random)
                quiet_s, total = check(world)
                longest_s = max(longest_s, quiet_s)
        hazards = deciding.query("SELECT gtrid, hazard FROM metaq_decision WHERE hazard IS NOT NULL")
        assert hazards == [], "a report of what is not so"
    print(f"rounds={ROUNDS} promotions={promotions} transactions={total} quiet after at most {longest_s:.1f} s")


@contextlib.contextmanager
def resolvers(world: World, directory: Path, *options: str) -> Iterator[list[Path]]:
    """Two, and the files of what they say."""
    words = ["txn", "resolver", "--database", world.deciding.url, "--zk", world.zookeeper]
    with contextlib.ExitStack() as stack:
        nothing = stack.enter_context(Path(os.devnull).open("rb"))
        logs = [directory / f"resolver-{number}.log" for number in range(2)]
        running = []
        for log in logs:
            said = stack.enter_context(log.open("wb"))
            running.append(start_metaq([*words, *options], stdin=nothing, stdout=said, stderr=said))
            stack.callback(running[-1].wait)
            stack.callback(running[-1].kill)
        yield logs
        assert [one.poll() for one in running] == [None, None], "a resolver gave up"


def one_life(world: World, server: Any, copies: Replicas, life: int, way: str, random: Random) -> int:
    """Run a service, kill other processes meanwhile, then end it, once it has written. Returns how many slaves were
    promoted."""
    promotions, before = 0, len(world.deciding.numbers())
    words = ("tests.crash.decision_row_child", world.deciding.url, world.zookeeper, str(life), way)
    with contextlib.ExitStack() as ends:
        errors = ends.enter_context(tempfile.TemporaryFile())
        service, said = start_speaking(*words, stderr=errors)
        ends.enter_context(said)
        ends.callback(service.wait)
        ends.callback(service.kill)
        assert said.readline() == b"works\n", text_of(errors)
        for _ in range(random.randint(0, 2)):
            time.sleep(random.uniform(0.2, 1.0))
            match random.choice(("orders", "bills", "database", "heir")):
                case "database":
                    server.restart()  # killed before
                case "heir":
                    take_over(copies, random)
                    world.brokers[0] = copies.master
                    promotions += 1
                case name:
                    broker = world.brokers[name == "bills"]
                    broker.kill()
                    time.sleep(random.choice((0.0, 0.5)))
                    broker.start()
        wait_until(lambda: service.poll() is not None or len(world.deciding.numbers()) > before, "the service writes")
        time.sleep(random.uniform(0.3, 1.0))
        assert service.poll() is None, text_of(errors)
    return promotions


def text_of(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


def take_over(copies: Replicas, random: Random) -> None:
    """The master is killed, its slave takes its place, and is followed by it."""
    (slave,) = copies.slaves
    wait_until(lambda: copies.is_in_sync(slave), "the slave is in sync")
    copies.master.kill()
    if random.random() < 0.5:
        slave.kill()
    else:
        assert slave.stop() == 0, slave.log
    former = copies.promote(slave)
    former.slave_id = former.number
    former.start()
    copies.slaves.append(former)


def check(world: World) -> tuple[float, int]:
    """Check that nothing stays prepared and rows match messages. Returns the seconds that took, and the count."""
    began = time.monotonic()
    deadline = began + QUIET_S
    producer = world.client.producer(world.deciding.identity.name.qualifier)
    while (listing := producer.tpc_list()).failures or any(listing.keys.values()):
        assert time.monotonic() < deadline, listing
        time.sleep(0.1)
    quiet_s = time.monotonic() - began
    rows = world.deciding.numbers()
    assert world.messages("orders") == rows
    assert world.messages("bills") == [number for number in rows if number % 3 == 0]
    return quiet_s, len(rows)
