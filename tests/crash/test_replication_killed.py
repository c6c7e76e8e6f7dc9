"""A master dies under load, its slave takes its place, and the former master comes back as a slave: again and again.

In mode sync everything that was acknowledged is there afterwards, every branch that was prepared is in doubt, and
nothing was seen before that is not there now. In mode async what is lost is the end of the former master's journal,
and `metaq promote --old` tells it exactly. The link between them is cut, dragged and made dumb, and either side is
paused, before the master dies or is paused for good.

METAQ_CRASH_ROUNDS deaths (default 2, beside as many in mode async); METAQ_CRASH_SEED repeats the choices of a run that
failed, though not its timing.
"""

import os
import time
from contextlib import AbstractContextManager
from pathlib import Path
from random import Random

import pytest

from tests.crash.replicated import REPLICATED, Story, story_of
from tests.fixtures.replicas import Replicas
from zk.corner import Corner

ROUNDS = int(os.environ.get("METAQ_CRASH_ROUNDS", "2"))
ROUNDS_PER_DIRECTORY = 10  # everything is read back after every death


def story(directory: Path, zookeeper: Corner, mode: str, seed: int, random: Random) -> AbstractContextManager[Story]:
    connect = f"{zookeeper.connect}/{directory.name}"
    return story_of(Replicas(directory, connect, REPLICATED.replace("MODE", mode)), connect, seed, random)


def seeded() -> tuple[int, Random]:
    seed = int(os.environ.get("METAQ_CRASH_SEED") or time.time_ns() % 2**32)
    print(f"METAQ_CRASH_SEED={seed}")
    return seed, Random(seed)


@pytest.mark.timeout(60 + 30 * ROUNDS)
def test_nothing_acknowledged_is_lost_when_a_slave_in_sync_takes_over(tmp_path: Path, zookeeper: Corner) -> None:
    seed, random = seeded()
    promotions = 0
    for first in range(0, ROUNDS, ROUNDS_PER_DIRECTORY):
        with story(tmp_path / f"{first}", zookeeper, "sync", seed + first, random) as told:
            for number in range(first, min(first + ROUNDS_PER_DIRECTORY, ROUNDS)):
                print(number, told.one_round(), flush=True)
            assert any(producer.ledger.plain for producer in told.producers), "nothing was put"
        promotions += told.promotions
    print(f"rounds={ROUNDS} promotions={promotions}")
    assert promotions


@pytest.mark.timeout(60 + 30 * ROUNDS)
def test_what_an_asynchronous_slave_lacks_is_an_end_and_told_exactly(tmp_path: Path, zookeeper: Corner) -> None:
    seed, random = seeded()
    for first in range(0, ROUNDS, ROUNDS_PER_DIRECTORY):
        with story(tmp_path / f"{first}", zookeeper, "async", seed + first, random) as told:
            for number in range(first, min(first + ROUNDS_PER_DIRECTORY, ROUNDS)):
                print(number, told.lossy_round(), flush=True)
