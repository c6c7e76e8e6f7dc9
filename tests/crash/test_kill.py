"""SIGKILL at random moments: acknowledged facts hold after every restart.

METAQ_CRASH_ROUNDS kills per flush mode (default 6); METAQ_CRASH_SEED repeats the choices of a run that failed,
though not its timing.
"""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from tests.crash.ledger import Log, check
from tests.crash.workload import CONFIG, PARTITIONS, Producer, Reader, end_of, read_back
from tests.fixtures.broker import BrokerProcess

ROUNDS = int(os.environ.get("METAQ_CRASH_ROUNDS", "6"))
ROUNDS_PER_DIRECTORY = 10  # everything is read back after every kill: a directory must not grow without end
PRODUCERS = 4


@pytest.mark.timeout(600 + 20 * ROUNDS)
@pytest.mark.parametrize("flush", ["sync", "interval:50"])
def test_what_was_acknowledged_survives_sigkill(flush: str, tmp_path: Path) -> None:
    seed = int(os.environ.get("METAQ_CRASH_SEED") or time.time_ns() % 2**32)
    print(f"METAQ_CRASH_SEED={seed}")
    random = Random(seed)
    for first in range(0, ROUNDS, ROUNDS_PER_DIRECTORY):
        broker = BrokerProcess(tmp_path / f"broker-{first}", None, config=CONFIG)
        broker.flush = flush
        try:
            many_lives(broker, min(ROUNDS_PER_DIRECTORY, ROUNDS - first), seed + first, random)
        finally:
            broker.kill()


def many_lives(broker: BrokerProcess, rounds: int, seed: int, random: Random) -> None:
    producers, reader = [Producer(number, seed) for number in range(PRODUCERS)], Reader()
    former: Log = {name: [] for name in PARTITIONS}
    broker.start()
    for _ in range(rounds):
        with ThreadPoolExecutor(PRODUCERS + 1) as threads:
            ends = {name: end_of(messages) for name, messages in former.items()}
            tasks = [threads.submit(producer.run, broker.client) for producer in producers]
            tasks.append(threads.submit(reader.run, broker.client, ends))
            time.sleep(random.uniform(0.1, 0.9))
            broker.kill()
            for task in tasks:
                task.result()
        broker.audit()
        while random.random() < 0.3:  # dies again, somewhere in its recovery
            broker.launch()
            time.sleep(random.uniform(0.0, 0.5))
            broker.kill()
        broker.start()
        log, in_doubt = read_back(broker.client)
        check([producer.ledger for producer in producers], log, in_doubt)
        for name, messages in former.items():
            seen = messages + reader.seen[name]
            assert log[name][: len(seen)] == seen, f"{name}: what was read before is not there any more"
        former = log
    assert any(producer.ledger.plain for producer in producers), "nothing was put"
    assert broker.stop() == 0
    broker.start()
    log, in_doubt = read_back(broker.client)
    check([producer.ledger for producer in producers], log, in_doubt)
    assert log == former
