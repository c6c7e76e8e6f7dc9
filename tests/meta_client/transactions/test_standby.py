"""A standby of the database takes over: nothing is told to brokers that it does not have."""

import threading
import time
from pathlib import Path

import psycopg
import pytest

from meta_broker.testing.postgres import EmbeddedPostgres
from meta_client.coordinator.errors import CannotEnlist, DecisionUnknown
from meta_client.transactions import commit_sequence
from meta_client.transactions.databases import table_at
from tests.fixtures.broker_pool import BrokerPool
from tests.fixtures.postgres import Database
from tests.fixtures.replicas import wait_until
from tests.fixtures.standby import promote, standby_of
from tests.meta_client.transactions.conftest import make_postgres, running_world

WAITING = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep' AND query ~ 'metaq.block'"
)


def test_a_commit_that_a_synchronous_standby_does_not_have_is_not_believed(
    broker_pool: BrokerPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL shows it to others as soon as the session that waits for the standby is ended."""
    monkeypatch.setattr(commit_sequence, "UNKNOWN_S", 0.5)
    ended: list[BaseException | None] = []
    with EmbeddedPostgres(tmp_path / "primary") as primary, standby_of(primary, tmp_path / "standby") as standby:
        world_of = make_postgres(Database(primary.dsn, lambda: psycopg.connect(primary.dsn)))
        with running_world(world_of, broker_pool) as world, psycopg.connect(primary.dsn, autocommit=True) as admin:
            admin.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            admin.execute("SELECT pg_reload_conf()")
            world.work(1)
            world.check([1])
            with pytest.raises(CannotEnlist, match="is a replica that is being read"):
                table_at(standby.dsn)
            standby.kill()

            def work() -> None:
                try:
                    world.work(2)
                except DecisionUnknown as error:
                    ended.append(error)
                else:
                    ended.append(None)

            thread = threading.Thread(target=work)
            thread.start()
            wait_until(lambda: bool(admin.execute(WAITING.encode()).fetchall()), "COMMIT waits for the standby")
            wait_until(lambda: world.deciding.numbers() == [1, 2], "others see it")
            time.sleep(0.5)
            assert (world.messages(), ended) == ([1], [])
            primary.kill()
            standby.restart()
            promote(standby)
            thread.join(60)
            assert [type(one) for one in ended] == [DecisionUnknown]
            with world.open_client(age_s=0.2, interval_s=0.1) as client:
                client.resolve(standby.dsn)
                wait_until(lambda: not world.prepared(), "it is rolled back")
            world.deciding.connect = lambda: psycopg.connect(standby.dsn)
            world.check([1])
