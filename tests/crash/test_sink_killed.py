"""A Spark query that writes to two brokers is killed, driver, JVM and workers at once, or a broker is: each row once.

A campaign of METAQ_CRASH_ROUNDS kills: some time after a batch has begun, once a branch is prepared, or once a batch is
decided and Spark has not noted its end, which takes a moment. METAQ_CRASH_SEED repeats the choices of a run that
failed, not its timing. test_sink_steps.py kills at chosen steps, and without Spark.
"""

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest

from meta_client.batches.decision import NOTHING, Decisions, known_queries
from meta_client.batches.names import QUALIFIER
from meta_client.client import Client
from spark_jobs.sink.commit import verbs_of
from tests.fixtures.broker import BrokerProcess, running_broker
from tests.fixtures.reading import read_whole
from tests.fixtures.replicas import wait_until
from zk.embedded.chroot import Chroot

ROUNDS = int(os.environ.get("METAQ_CRASH_ROUNDS", "0"))
WAIT_S = 180
FILES = 4  # a round
ROWS = 10  # a file


class Query:
    """The program, and the batches that it has begun."""

    def __init__(self, zookeeper: str, topic: str, directory: Path, trigger: str) -> None:
        self._checkpoint = directory / "checkpoint"
        words = ["tests.crash.sink_query", zookeeper, topic, str(directory), "local[2]", trigger]
        with (directory / "query.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *words], stdout=log, stderr=log, start_new_session=True
            )

    def batches(self) -> int:
        return len(self._numbers("offsets"))

    def noted(self) -> int:
        """Return the newest batch that Spark has noted as ended."""
        return max(self._numbers("commits"), default=NOTHING)

    def _numbers(self, of: str) -> list[int]:
        return [int(each.name) for each in (self._checkpoint / of).glob("*") if each.name.isdigit()]

    def wait_for_batch(self, number: int) -> None:
        """Return once it has begun that many batches, or ended."""
        wait_until(lambda: self.batches() >= number or self._process.poll() is not None, "a batch has begun", WAIT_S)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Return once it holds, or the program has ended."""
        wait_until(lambda: condition() or self._process.poll() is not None, "the moment to kill has come", WAIT_S)

    def wait(self) -> int:
        return self._process.wait(WAIT_S)

    def kill(self) -> None:
        """SIGKILL to the program, its JVM and their Python workers: all of the session that it leads."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@pytest.mark.timeout(600 + 60 * ROUNDS)
@pytest.mark.skipif(not ROUNDS, reason="a campaign: set METAQ_CRASH_ROUNDS")
def test_a_query_killed_at_random(zookeeper: Chroot, tmp_path: Path) -> None:
    seed = int(os.environ.get("METAQ_CRASH_SEED", str(time.time_ns() % 1_000_000)))
    print(f"METAQ_CRASH_SEED={seed}")
    random = Random(seed)
    (tmp_path / "in").mkdir()
    files = in_between = 0

    def add_files() -> None:
        nonlocal files
        for _ in range(FILES):
            made = tmp_path / f"{files}.tmp"
            made.write_text("".join(f"{files * ROWS + row}\n" for row in range(ROWS)))
            made.rename(tmp_path / "in" / f"{files:06}.txt")
            files += 1

    with (
        running_broker(tmp_path / "a", zookeeper.connect, broker_id=0) as first,
        running_broker(tmp_path / "b", zookeeper.connect, broker_id=1) as second,
        Client(zookeeper.connect) as client,
    ):
        brokers: tuple[BrokerProcess, BrokerProcess] = (first, second)

        def is_prepared() -> bool:
            return any(verbs_of(client).list_prepared(QUALIFIER).keys.values())

        def decided() -> int:
            return max(
                (Decisions(client.session, each).read().batch for each in known_queries(client.session)),
                default=NOTHING,
            )

        def is_between(query: Query) -> bool:
            return decided() > query.noted()

        for _ in range(ROUNDS):
            add_files()
            query = Query(zookeeper.connect, "orders", tmp_path, "endless")
            try:
                query.wait_for_batch(query.batches() + random.randint(1, FILES // 2))
                match random.choice(("begun", "prepared", "decided")):
                    case "begun":
                        time.sleep(random.random())
                    case "prepared":
                        query.wait_until(is_prepared)
                    case "decided":
                        query.wait_until(partial(is_between, query))
                        time.sleep(random.random() / 20)
                if random.random() < 0.3:
                    broker = random.choice(brokers)
                    broker.kill()
                    broker.start()
                    time.sleep(random.random())
            finally:
                query.kill()
            in_between += is_between(query)
        add_files()
        last = Query(zookeeper.connect, "orders", tmp_path, "all")
        try:
            assert last.wait() == 0, (tmp_path / "query.log").read_text()[-5000:]
        finally:
            last.kill()
        assert in_between >= ROUNDS // 10, "it was killed between its decision and Spark's note of it"
        found = Counter(int(message.payload) for message in read_whole(client, "orders", 8))
        assert found == Counter(range(files * ROWS)), f"METAQ_CRASH_SEED={seed}"
        listing = verbs_of(client).list_prepared(QUALIFIER)
        assert not listing.failures
        # What attempts of a batch have prepared that was never repeated, the next batch rolls back, and there was one.
        assert [key for keys in listing.keys.values() for key in keys] == []
