"""A master dies under load, a slave takes its place, and the former master comes back as a slave: again and again.

Producers, XA branches in all their steps and an operator who ends some by hand are at work. The link is cut, dragged
and made dumb, and either side paused, before the master dies or is paused for good. With two slaves one of them is
chosen, the other follows it, and the former master comes back as a third.

In mode sync everything that was acknowledged is there afterwards, every branch that was prepared is in doubt, every
decision stands, and nothing was seen before that is not there now. In mode async what is lost is the end of the former
master's journal: what is left and what is lost are worked out from the bytes of both journals, and the new master
shows just the one, and `metaq promote --former-dir` tells just the other. In both, what is cut off the former master's
journal is kept beside it.

A master that acknowledges what its slaves have fsynced, and it has not, loses its power, comes back, and is killed
while it takes back what it lost: all that was acknowledged is there, too.

METAQ_CRASH_ROUNDS deaths of each kind (default 1); METAQ_CRASH_SEED repeats the choices of a run that failed, though
not its timing.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.crash.replicated import REPLICATED, Story, story_of
from tests.fixtures.replicas import Replicas
from zk.embedded.chroot import Chroot

ROUNDS = int(os.environ.get("METAQ_CRASH_ROUNDS", "1"))
ROUNDS_PER_DIRECTORY = 10  # everything is read back after every death


def tell(
    directory: Path, zookeeper: Chroot, mode: str, slaves: int, a_round: Callable[[Story], str], flush: str = "sync"
) -> None:
    """Run the given number of rounds. Everything is read back after every death, so one directory serves only a few.
    *flush*: of all brokers."""
    seed = int(os.environ.get("METAQ_CRASH_SEED") or time.time_ns() % 2**32)
    print(f"METAQ_CRASH_SEED={seed}")
    random = Random(seed)
    for first in range(0, ROUNDS, ROUNDS_PER_DIRECTORY):
        connect = f"{zookeeper.connect}/{first}"
        replicas = Replicas(directory / f"{first}", connect, REPLICATED.replace("MODE", mode), slaves)
        for process in replicas.processes:
            process.flush = flush
        with story_of(replicas, connect, seed + first, random) as story:
            for number in range(first, min(first + ROUNDS_PER_DIRECTORY, ROUNDS)):
                print(number, a_round(story), flush=True)
            assert story.was_put


@pytest.mark.timeout(600 + 90 * ROUNDS)
@pytest.mark.parametrize("slaves", [1, 2])
def test_nothing_acknowledged_is_lost_when_a_slave_in_sync_takes_over(
    slaves: int, tmp_path: Path, zookeeper: Chroot
) -> None:
    tell(tmp_path, zookeeper, "sync", slaves, Story.one_round)


@pytest.mark.timeout(600 + 90 * ROUNDS)
@pytest.mark.parametrize("slaves", [1, 2])
def test_nothing_acknowledged_is_lost_when_a_master_that_fsyncs_later_loses_its_power(
    slaves: int, tmp_path: Path, zookeeper: Chroot
) -> None:
    tell(tmp_path, zookeeper, "sync", slaves, Story.power_round, "interval:300")


@pytest.mark.timeout(600 + 90 * ROUNDS)
@pytest.mark.parametrize("slaves", [1, 2])
def test_what_an_asynchronous_slave_lacks_is_an_end_and_told_exactly(
    slaves: int, tmp_path: Path, zookeeper: Chroot
) -> None:
    tell(tmp_path, zookeeper, "async", slaves, Story.lossy_round)
