"""Metrics and health of a relay: numbers that are old are not told, and what waits is."""

import threading
import time
from typing import Any

import pytest

from meta_client.outbox import Relay
from meta_client.outbox.relay_metrics import ASIDE, WAITING, ready, samples
from meta_client.transactions import CommitStep
from tests.meta_client.outbox.conftest import OutboxWorld
from tests.meta_client.outbox.test_relay import drain


def values(relay: Relay) -> dict[str, Any]:
    return {sample.family.name: sample.value for sample in samples(relay)}


def test_without_a_database_nothing_is_told_of_the_outbox(on_postgres: OutboxWorld) -> None:
    relay = on_postgres.relay()
    relay.run_pass()
    on_postgres.world.deciding.execute("DROP TABLE metaq_outbox")
    deadline = time.monotonic() + 60
    while {WAITING.name, ASIDE.name} & values(relay).keys():
        assert time.monotonic() < deadline
        relay.run_pass()
    assert "does not exist" in ready(relay).why_not[0]


def test_a_relay_that_waits_for_a_broker_s_commit_is_not_ready(
    on_postgres: OutboxWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meta_client.outbox.relay_metrics.PASS_S_MAX", 0.3)
    monkeypatch.setattr("meta_client.outbox.relay.STATUS_S", 0.1)
    (broker,) = on_postgres.world.brokers

    def observe(step: CommitStep, gtrid: str) -> None:
        if step is CommitStep.DECIDED:
            broker.kill()

    with on_postgres.world.open_client(observer=observe) as client:
        relay = Relay(client, on_postgres.url)
        relay.run_pass()
        on_postgres.work(1)
        passing = threading.Thread(target=relay.run_pass)
        passing.start()
        deadline = time.monotonic() + 60
        while WAITING.name in values(relay) or "for a broker" not in "".join(ready(relay).why_not):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert passing.is_alive()
        on_postgres.work(2)
        other = on_postgres.relay()
        assert not other.run_pass()
        assert "broker 0" in str(other.trouble)
        assert values(other)[WAITING.name] == 1
        broker.start()
        passing.join()
        assert not ready(relay).why_not
        relay.close()
    drain(other)
    on_postgres.world.check([1, 2])
