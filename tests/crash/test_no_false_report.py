"""Healthy transactions beside resolvers, of which nothing is ever told: not that one is in doubt, nor rolled back.

500 for each of METAQ_CRASH_ROUNDS rounds (default 4): `make crash` does 100,000.
"""

import itertools
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from meta_client.transactions.resolver_state import Counts
from tests.crash.test_decision_row import ROUNDS, resolvers
from tests.fixtures.broker_pool import BrokerPool
from tests.meta_client.transactions.conftest import make, running_world

THREADS = 16
TRANSACTIONS = 500 * ROUNDS


@pytest.mark.timeout(120 + 3 * ROUNDS)
@pytest.mark.parametrize("kind", ["postgres", "mariadb"])
def test_of_healthy_transactions_nothing_is_told(
    request: pytest.FixtureRequest, kind: str, tmp_path: Path, broker_pool: BrokerPool, caplog: pytest.LogCaptureFixture
) -> None:
    numbers = itertools.count()
    lock = threading.Lock()

    def next_number() -> int:
        with lock:
            return next(numbers)

    def work() -> None:
        with closing(world.deciding.connect()) as connection:
            while (number := next_number()) < TRANSACTIONS:
                world.work(number, connection=connection)

    caplog.set_level(logging.INFO, "meta_client.transactions")
    with running_world(make(kind, request), broker_pool) as world:
        with resolvers(world, tmp_path) as logs, ThreadPoolExecutor(THREADS) as pool:
            for done in [pool.submit(work) for _ in range(THREADS)]:
                done.result()
            world.wait_quiet()
        world.check(list(range(TRANSACTIONS)))
        (counts,) = world.client.transaction_counts().values()
        assert counts == Counts(rows_deleted=counts.rows_deleted)
    assert [record.getMessage() for record in caplog.records] == []
    assert [log.read_text() for log in logs] == ["", ""]
