"""Metrics and health of a relay: numbers that are old are not told, and what waits is."""

import threading
import time
from typing import Any

import pytest

from meta_client.outbox import Relay
from meta_client.outbox.relay_metrics import ASIDE, WAITING, ready, samples
from meta_client.transactions import CommitStep
from tests.meta_client.outbox.conftest import OutboxWorld, drain


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


def test_a_relay_whose_broker_has_not_committed_is_not_ready(
    on_postgres: OutboxWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for a while: status and readiness tell so, and then that its topic waits."""
    monkeypatch.setattr("meta_client.outbox.relay_metrics.PASS_S_MAX", 0.3)
    monkeypatch.setattr("meta_client.outbox.contents.STATUS_S", 0.1)
    monkeypatch.setattr("meta_client.outbox.relay.COMMIT_S", 2.0)
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
        passing.join()
        assert relay.counts.moved == 1
        monkeypatch.setattr("meta_client.outbox.contents.STATUS_S", 5.0)
        on_postgres.work(2)
        other = on_postgres.relay()
        for one in (relay, other):
            drain(one)
            assert ready(one).why_not == ("messages of topic orders wait for a broker", "messages wait for broker 0")
            assert values(one)[WAITING.name] == 1
        broker.start()
        relay.close()
    while other.waiting_for:
        assert time.monotonic() < deadline
        drain(other)
    assert not ready(other).why_not
    on_postgres.world.check([1, 2])
