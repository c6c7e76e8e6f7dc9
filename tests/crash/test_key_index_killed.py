"""SIGKILL while keys are indexed: METAQ_CRASH_ROUNDS kills (default 3); METAQ_CRASH_SEED repeats the choices of a run
that failed, not its timing."""

import os
import time
from collections import deque
from pathlib import Path
from random import Random

import pytest

from meta_client.protocol.requests import Find
from tests.fixtures.broker import BrokerProcess
from tests.fixtures.keyed import INDEXED, check_found, wait_covered, write_keyed
from tests.fixtures.wire import WireClient

ROUNDS = int(os.environ.get("METAQ_CRASH_ROUNDS", "3"))


@pytest.mark.timeout(600 + 10 * ROUNDS)
def test_killed_while_blocks_are_made(tmp_path: Path) -> None:
    """At any moment of it: puts, checkpoints, blocks that join. What is found is what a reader finds."""
    seed = int(os.environ.get("METAQ_CRASH_SEED", str(time.time_ns() % 2**32)))
    random = Random(seed)
    indexed = BrokerProcess(tmp_path / "broker", None, config=INDEXED)
    looked_at = deque([0], maxlen=4)  # where the last rounds ended their look: at all of it, each would take longer
    try:
        for _ in range(ROUNDS):
            indexed.start()
            with WireClient(indexed.port) as client:
                looked_at.append(check_found(client, looked_at[0]))
                until = time.monotonic() + random.uniform(0.1, 1.5)
                while time.monotonic() < until:
                    write_keyed(client, random)
                    time.sleep(random.uniform(0, 0.1))
            indexed.kill()
        indexed.start()
        with WireClient(indexed.port) as client:
            write_keyed(client, random)
            end = int(client.result(Find("orders", 0, 0, 1, b"none", 1)).message.split()[1])
            wait_covered(indexed, end - 3 * 262_144)
            check_found(client)
    except AssertionError as error:
        raise AssertionError(f"METAQ_CRASH_SEED={seed}: {error}") from error
    finally:
        indexed.kill()
    indexed.audit()
