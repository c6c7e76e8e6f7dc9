"""Rows and messages of a service whose decisions are rows, while service, brokers and database are killed at random.

Two resolvers run all the time in processes of their own. After each round, and some seconds of quiet, nothing is
prepared, and rows and messages are the same, as plain SQL and a plain consumer see them. METAQ_CRASH_ROUNDS rounds
(default 4); METAQ_CRASH_SEED repeats the choices of a run that failed, not its timing.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import psycopg
import pytest

from meta_client.demo.postgres import EmbeddedPostgres
from tests.fixtures.forked import start_metaq
from tests.fixtures.postgres import Database
from tests.meta_client.transactions.conftest import World, make_postgres, running_world
from zk.corner import Corner

ROUNDS = int(os.environ.get("METAQ_CRASH_ROUNDS", "4"))
WAYS = ("psycopg", "sqlalchemy", "django")  # of a life of the service, in turn
ROOT = Path(__file__).parents[2]
QUIET_S = 20.0  # on a busy machine: what a look takes, and a broker that comes back


@pytest.mark.timeout(300 + 30 * ROUNDS)
def test_rows_and_messages_are_the_same_whoever_dies(tmp_path: Path, zookeeper: Corner) -> None:
    seed = int(os.environ.get("METAQ_CRASH_SEED") or time.time_ns() % 2**32)
    print(f"METAQ_CRASH_SEED={seed}")
    random = Random(seed)
    with (
        EmbeddedPostgres() as server,
        running_world(
            make_postgres(Database(server.dsn, lambda: psycopg.connect(server.dsn))), tmp_path, zookeeper, brokers=2
        ) as world,
        resolvers(world, tmp_path),
    ):
        total = 0
        for life in range(1, ROUNDS + 1):
            one_life(world, server, life, random)
            total = check(world)
        assert total, "nothing was written"
        hazards = world.deciding.query("SELECT gtrid, hazard FROM metaq_decision WHERE hazard IS NOT NULL")
        assert hazards == [], "a report of what is not so"
        print(f"rounds={ROUNDS} transactions={total}")


@contextlib.contextmanager
def resolvers(world: World, directory: Path) -> Iterator[None]:
    """Two, and what they say in files."""
    words = ["txn", "resolver", "--database", world.deciding.url, "--zk", world.zookeeper]
    with contextlib.ExitStack() as stack:
        nothing = stack.enter_context(Path(os.devnull).open("rb"))
        running = []
        for number in range(2):
            said = stack.enter_context((directory / f"resolver-{number}.log").open("wb"))
            options = ["--age", "0.5", "--interval", "0.2"]
            running.append(start_metaq(words + options, stdin=nothing, stdout=said, stderr=said))
            stack.callback(running[-1].wait)
            stack.callback(running[-1].kill)
        yield
        assert [one.poll() for one in running] == [None, None], "a resolver gave up"


def one_life(world: World, server: EmbeddedPostgres, life: int, random: Random) -> None:
    """A service that works, who is killed meanwhile, and its own end."""
    module = "tests.crash.decision_row_child"
    command = [sys.executable, "-m", module, world.deciding.url, world.zookeeper, str(life), WAYS[life % len(WAYS)]]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as service:
        assert service.stdout is not None
        assert service.stdout.readline() == b"works\n", service.stderr and service.stderr.read().decode()
        for _ in range(random.randint(0, 2)):
            time.sleep(random.uniform(0.2, 1.0))
            broker = random.choice((*world.brokers, None))
            if broker is None:
                server.restart()  # killed before
                continue
            broker.kill()
            time.sleep(random.choice((0.0, 0.5)))
            broker.start()
        time.sleep(random.uniform(0.3, 1.0))
        assert service.poll() is None, service.stderr and service.stderr.read().decode()
        service.kill()
        service.communicate()


def check(world: World) -> int:
    """Nothing is prepared, and rows and messages are the same; how many."""
    deadline = time.monotonic() + QUIET_S
    producer = world.client.producer(world.deciding.identity.name.qualifier)
    while (listing := producer.tpc_list()).failures or any(listing.keys.values()):
        assert time.monotonic() < deadline, listing
        time.sleep(0.1)
    rows = world.deciding.numbers()
    assert world.messages("orders") == rows
    assert world.messages("bills") == [number for number in rows if number % 3 == 0]
    return len(rows)
