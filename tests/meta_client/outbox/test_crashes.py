"""A relay dies at each step of a batch: the next one moves what it did not, each message once and in order."""

import time

import pytest

from meta_client import Client
from meta_client.outbox import Relay, rows
from meta_client.transactions import TransactionConfig
from tests.fixtures.forked import start_module
from tests.meta_client.outbox.conftest import OutboxWorld


@pytest.mark.parametrize("step", ["PREPARED", "RECORDED", "DECIDED", "COMMIT_SENT"])
def test_a_relay_is_killed(outboxed: OutboxWorld, step: str) -> None:
    outboxed.work(*range(20))
    world = outboxed.world
    assert start_module("tests.meta_client.outbox.relaying", outboxed.url, world.zookeeper, step).wait() == -9
    is_decided = step in ("DECIDED", "COMMIT_SENT")
    assert outboxed.status().waiting == (0 if is_decided else 20)
    outboxed.work(*range(20, 30))
    config = TransactionConfig(age_s=0.5, interval_s=0.1)
    with Client(world.zookeeper, transactions=config) as client, Relay(client, outboxed.url) as relay:
        deadline = time.monotonic() + 60
        while outboxed.status().waiting or world.prepared():
            assert time.monotonic() < deadline, relay.trouble
            time.sleep(0.05)
        assert relay.counts.moved == (10 if is_decided else 30)
    world.check(list(range(30)))


def test_a_relay_that_hangs_gives_way_when_it_goes_on(on_postgres: OutboxWorld) -> None:
    """Another one waits for its lock, says so, and moves what is left."""
    world = on_postgres.world
    on_postgres.work(*range(10))
    with on_postgres.engine.connect() as hanging:
        assert rows.lock(hanging) is not None
        with on_postgres.relay() as relay:
            deadline = time.monotonic() + 30
            while relay.trouble is None:
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert "lock timeout" in relay.trouble
            assert relay.counts.moved == 0
            hanging.rollback()
            world.check(list(range(10)))
