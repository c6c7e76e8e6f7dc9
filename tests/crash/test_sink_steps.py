"""The sink of Spark, killed at every step of a batch's end: each row once, nothing left prepared.

A driver dies before or after each of its requests; the batch is then run again, by other attempts of its tasks. Now and
then a broker dies with it. METAQ_CRASH_ROUNDS goes through the steps of tasks and drivers at random as often; without
it, every second step of the driver once.
"""

import itertools
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from meta_client.batches.decision import SinkFailed
from meta_client.batches.names import QUALIFIER, BatchName, BranchName
from meta_client.client import Client
from spark_jobs.sink.commit import BatchEnd, verbs_of
from spark_jobs.sink.writers import Prepared, write_task
from tests.crash.sink_child import options_of, rows_of
from tests.fixtures.broker import BrokerProcess, running_broker
from tests.fixtures.forked import Forked, start_module
from tests.fixtures.reading import read_whole
from zk.embedded.chroot import Chroot
from zk.tree.paths import QueryKey

TOPIC = "orders"
PARTITIONS = [f"{broker}-{number}" for broker in range(2) for number in range(4)]
ROUNDS = int(os.environ.get("METAQ_CRASH_ROUNDS", "0"))
STEPS_MAX = 200
WAIT_S = 60

Rows = list[tuple[str, str]]


class World:
    """Two brokers, and batches that are written to them."""

    def __init__(self, zookeeper: str, brokers: list[BrokerProcess], client: Client) -> None:
        self.zookeeper = zookeeper
        self.brokers = brokers
        self.client = client
        self.sent: list[str] = []

    def rows(self, label: str) -> list[Rows]:
        """Rows of a batch, of each of its two tasks; every task has some at both brokers."""
        tasks = [[(each, f"{label} {task} {each}") for each in PARTITIONS] for task in range(2)]
        self.sent += [payload for task in tasks for _, payload in task]
        return tasks

    def run_tasks(self, name: BatchName, tasks: list[Rows]) -> tuple[BranchName, ...]:
        options = options_of(self.zookeeper, TOPIC)
        prepared = [write_task(options, name, iter([rows_of(rows)])) for rows in tasks]
        return tuple(branch for each in prepared for branch in each.branches)

    def commit(self, name: BatchName, branches: tuple[BranchName, ...]) -> None:
        BatchEnd(self.client, name.query).commit(name, branches)

    def child(self, role: str, name: BatchName, step: int, argument: object) -> Forked:
        words = (role, self.zookeeper, TOPIC, name.query, str(name.batch), str(step), json.dumps(argument))
        return start_module("tests.crash.sink_child", *words)

    def restart(self, number: int) -> None:
        self.brokers[number].kill()
        self.brokers[number].start()
        deadline = time.monotonic() + WAIT_S
        while len(self.client.topology.view(TOPIC, 5).available) < len(PARTITIONS):
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def prepared(self) -> list[object]:
        listing = verbs_of(self.client).list_prepared(QUALIFIER)
        assert not listing.failures
        return [key for keys in listing.keys.values() for key in keys]

    def check(self) -> None:
        found = Counter(message.payload.decode() for message in read_whole(self.client, TOPIC, len(PARTITIONS)))
        assert found == Counter(self.sent)
        assert self.prepared() == []


@pytest.fixture
def world(zookeeper: Chroot, tmp_path: Path) -> Iterator[World]:
    config = f"[topics.{TOPIC}]\npartitions = 4\n\n[zookeeper]\nsession_timeout_ms = 4000\nsync_ms = 0\n"
    with ExitStack() as opened:
        brokers = [
            opened.enter_context(
                running_broker(tmp_path / f"{number}", zookeeper.connect, broker_id=number, config=config)
            )
            for number in range(2)
        ]
        yield World(zookeeper.connect, brokers, opened.enter_context(Client(zookeeper.connect)))


def test_a_driver_killed_at_every_step(world: World) -> None:
    decided = undecided = 0
    for step in itertools.count(1, 2):
        name = BatchName(f"query-{step}", 7)
        tasks = world.rows(str(step))
        first = world.run_tasks(name, tasks)
        assert len(first) == 4
        status = world.child("commit", name, step, first).wait(WAIT_S)
        if status == 0:
            assert step > 20  # past the last one
            break
        assert status == -signal.SIGKILL
        assert step < STEPS_MAX
        if step % 8 == 5:
            world.restart(step % 2)
        is_decided = BatchEnd(world.client, name.query).decisions.read().batch == name.batch
        decided, undecided = decided + is_decided, undecided + (not is_decided)
        world.commit(name, world.run_tasks(name, tasks))  # as Spark runs a batch that it has not noted
    world.check()
    assert decided
    assert undecided


def test_a_batch_that_failed_leaves_nothing(world: World) -> None:
    name = BatchName("failing", 3)
    end = BatchEnd(world.client, name.query)
    branches = world.run_tasks(name, world.rows("failed"))
    world.run_tasks(name, world.rows("lost"))  # an attempt that Spark does not count
    world.sent.clear()
    end.abort(name)
    world.check()
    # Rolled back is no decision: the batch may be run again, and then the names of the first run are no good.
    world.commit(name, world.run_tasks(name, world.rows("again")))
    world.check()
    end.abort(name)  # Spark calls it, too, when commit has raised: what is decided stays
    world.commit(name, branches)
    world.check()


def test_a_late_driver_changes_nothing(world: World) -> None:
    """Paused before it decided, it wakes up when another one has run this batch and the next."""
    late = world.run_tasks(BatchName("query", 1), world.rows("late"))
    world.sent.clear()
    world.commit(BatchName("query", 1), world.run_tasks(BatchName("query", 1), world.rows("one")))
    world.check()
    pending = world.run_tasks(BatchName("query", 2), world.rows("two"))
    world.commit(BatchName("query", 1), late)
    assert len(world.prepared()) == len(pending), "the next batch's branches are not its to end"
    world.commit(BatchName("query", 2), pending)
    world.check()


def test_a_decision_that_is_under_way_when_the_batch_is_aborted(world: World) -> None:
    """The request to write it may still arrive: it must not commit what was rolled back."""
    name = BatchName("query", 0)
    end = BatchEnd(world.client, name.query)
    version = end.decisions.version()
    end.abort(name)
    path = world.client.session.paths.of(QueryKey(name.query))
    assert world.client.session.exchange(path, b'{"batch":0}', version) is None


def test_a_broker_that_stays_away_fails_the_query_and_not_the_batch(world: World) -> None:
    name = BatchName("query", 0)
    branches = world.run_tasks(name, world.rows("x"))
    world.brokers[1].kill()
    with pytest.raises(SinkFailed, match="spark:query:0 is decided, and not yet committed at broker 1"):
        BatchEnd(world.client, name.query, patience_s=0).commit(name, branches)
    world.brokers[1].start()
    world.restart(0)
    world.commit(name, ())  # the next run, none of whose tasks had a row
    world.check()


@pytest.mark.skipif(not ROUNDS, reason="a campaign: set METAQ_CRASH_ROUNDS")
def test_tasks_drivers_and_brokers_killed_at_random(world: World) -> None:
    seed = int(os.environ.get("METAQ_CRASH_SEED", str(time.time_ns() % 1_000_000)))
    print(f"METAQ_CRASH_SEED={seed}")
    random = Random(seed)
    for batch in range(ROUNDS):
        name = BatchName("query", batch)
        tasks = world.rows(str(batch))
        for _ in range(random.randrange(3)):  # runs that die, of a task or of the driver
            if random.random() < 0.5:
                world.child("task", name, random.randint(1, 40), tasks[0]).wait(WAIT_S)
            branches = world.run_tasks(name, tasks)
            world.child("commit", name, random.randint(1, 40), branches).wait(WAIT_S)
            if random.random() < 0.3:
                world.restart(random.randrange(2))
        world.commit(name, world.run_tasks(name, tasks))
    world.check()


def test_what_a_task_returns_names_its_branches(world: World) -> None:
    name = BatchName("query", 0)
    options = options_of(world.zookeeper, TOPIC)
    prepared = write_task(options, name, iter([rows_of([("1-0", "x")])]))
    assert isinstance(prepared, Prepared)
    assert [broker_id for broker_id, _ in prepared.branches] == [1]
    empty = write_task(options, name, iter([]))
    assert empty.branches == ()
    with pytest.raises(SinkFailed, match="a row has no payload"):
        write_task(options, name, iter([rows_of([("1-0", "y"), ("0-0", None)])]))  # type: ignore[list-item]
    world.commit(name, ())
    assert world.prepared() == []
