"""SIGKILL the broker and the client at every step of two-phase commit, sixteen branches under way, and restart both.

A round kills each once, in either order or in the same step; every pair of steps comes before any comes again. After
ROUNDS_PER_DIRECTORY rounds what is left is decided, and everything read back through a plain consumer.
METAQ_CRASH_ROUNDS rounds (default 10); METAQ_CRASH_SEED repeats the choices of a run that failed, not its timing.
"""

import contextlib
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from journal.records.record import PartitionName
from meta_client.client import Client
from meta_client.consumer.messages.batch import Batch
from meta_client.protocol.answers import parse_keys
from meta_client.protocol.requests import TransactionVerb
from tests.crash.history import Read, check_in_doubt, check_read, read_history
from tests.crash.two_phase import QUALIFIER, Step, Victim, name_of
from tests.crash.workload import CONFIG, PARTITIONS
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.wire import WireClient
from zk.embedded.chroot import Chroot

ROUNDS = int(os.environ.get("METAQ_CRASH_ROUNDS", "10"))
ROUNDS_PER_DIRECTORY = 10
READ_S = 60

Plan = list[tuple[Victim, Step]]


class Nursery:
    """The process that the clients are born in, and what it says."""

    def __init__(self, history: Path) -> None:
        command = (sys.executable, "-m", "tests.crash.two_phase", str(history))
        self._errors = history.with_suffix(".err")
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def lines(self) -> Iterator[str]:
        """Lines printed until a client has ended, which must be because it was killed."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(b"ended"):
                assert line == b"ended -9\n", f"{line!r}: {self._errors.read_text()}"
                return
            yield line.decode().strip()
        raise AssertionError(f"the nursery ended: {self._errors.read_text()}")

    def close(self) -> None:
        """End a client that is still alive, by closing its input."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=10)
        self._process.stdout.close()


def plans_of(broker: Step, client: Step, random: Random) -> list[Plan]:
    """The lives of clients that make a round, each with its kills in their order."""
    by_broker, by_client = (Victim.BROKER, broker), (Victim.CLIENT, client)
    if broker is client and random.random() < 0.7:
        return [[(Victim.BOTH, broker)]]
    if random.random() < 0.6:
        return [[by_broker, by_client]]
    return [[by_client], [by_broker, (Victim.CLIENT, Step.PREPARED)]]


@pytest.mark.timeout(600 + 20 * ROUNDS)
def test_both_sides_die_at_every_step(tmp_path: Path, zookeeper: Chroot) -> None:
    seed = int(os.environ.get("METAQ_CRASH_SEED") or time.time_ns() % 2**32)
    print(f"METAQ_CRASH_SEED={seed}")
    random, counts = Random(seed), [0, 0, 0]
    pairs = itertools.cycle(random.sample(list(itertools.product(Step, Step)), k=len(Step) ** 2))
    for first in range(0, ROUNDS, ROUNDS_PER_DIRECTORY):
        rounds = list(itertools.islice(pairs, min(ROUNDS_PER_DIRECTORY, ROUNDS - first)))
        broker = BrokerProcess(tmp_path / f"broker-{first}", None, config=CONFIG)
        broker.flush = random.choice(("sync", "interval:50"))
        history = tmp_path / f"history-{first}"
        with contextlib.ExitStack() as stack:
            stack.callback(broker.kill)
            broker.start()
            nursery = Nursery(history)
            stack.callback(nursery.close)
            plans = [plan for pair in rounds for plan in plans_of(*pair, random)]
            for number, plan in enumerate(plans):
                live(broker, nursery, number, f"{seed}-{first}-{number}", plan, random)
            settle(broker, history)
            found = read_back(broker, f"{zookeeper.connect}/{first}")  # where no other journal has its number
        counts = [sum(pair) for pair in zip(counts, check_read(read_history(history), found), strict=True)]
        broker.audit()
    print(f"rounds={ROUNDS} acknowledged={counts[0]} unknown={counts[1]} refused={counts[2]}")
    assert all(counts[::2]), counts


def live(broker: BrokerProcess, nursery: Nursery, number: int, seed: str, plan: Plan, random: Random) -> None:
    """One life of the clients, and as many deaths of the broker as it wants, sometimes one more in its recovery."""
    nursery.tell(json.dumps({"number": number, "port": broker.port, "seed": seed, "plan": plan}))
    for victim in nursery.lines():
        broker.kill()
        while random.random() < 0.2:
            broker.launch()
            time.sleep(random.uniform(0.0, 0.5))
            broker.kill()
        broker.start()
        if victim == Victim.BROKER:
            nursery.tell("up")


def settle(broker: BrokerProcess, history: Path) -> None:
    """Decide what is in doubt: what was to be committed is, nothing else."""
    with WireClient(broker.port) as client:
        keys = parse_keys(client.verb(TransactionVerb.RECOVER, None, qualifier=QUALIFIER))
        known = read_history(history)
        check_in_doubt(known, {name_of(key) for key in keys})
        for key in keys:
            verb = TransactionVerb.COMMIT_TWO_PHASE if known[name_of(key)].may_be_read() else TransactionVerb.ROLLBACK
            client.verb(verb, key)


def read_back(lone: BrokerProcess, zookeeper: str) -> Read:
    """Return everything a consumer group gets from the broker after one more crash."""
    lone.kill()
    found: dict[PartitionName, list[tuple[int, bytes]]] = {name: [] for name in PARTITIONS}
    with contextlib.ExitStack() as stack:
        broker = BrokerProcess(lone.data, zookeeper, config=CONFIG)
        stack.callback(broker.kill)
        broker.start()
        client = stack.enter_context(Client(zookeeper, session_timeout_ms=4_000))
        consumer = stack.enter_context(client.consumer(f"reader-{lone.data.name}"))

        def keep(batch: Batch) -> None:  # each partition's batches come one after the other
            messages = found[PartitionName(batch.topic, batch.partition.number)]
            messages.extend((message.offset, message.payload) for message in batch.messages)

        for topic in {name.topic for name in PARTITIONS}:
            consumer.subscribe(topic, keep)
        consumer.start()
        deadline = time.monotonic() + READ_S
        while not consumer.is_caught_up():
            assert time.monotonic() < deadline, "the consumer does not reach the end"
            threading.Event().wait(0.01)
    return found
