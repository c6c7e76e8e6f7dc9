"""Metrics of a coordinator: while it works, when a broker is away, after a restart, and by a registry."""

import asyncio
import threading
from pathlib import Path

import psycopg
import pytest
from prometheus_client.registry import CollectorRegistry

from journal.records.xid import Xid
from meta_client.aio.coordinator import Coordinator as TaskCoordinator
from meta_client.coordinator import Coordinator, CoordinatorClosed, HeuristicOutcome, TwoPhaseStep
from meta_client.coordinator.metrics import FAMILIES, CoordinatorCollector
from meta_client.coordinator.status import CoordinatorStatus, TransactionEnd
from tests.fixtures.replicas import wait_until
from tests.meta_client.coordinator.conftest import World


def exported(coordinator: Coordinator, name: str, **labels: str) -> float | None:
    registry = CollectorRegistry()
    registry.register(CoordinatorCollector(coordinator))
    return registry.get_sample_value(f"metaq_coordinator_{name}", {"coordinator": coordinator.name, **labels})


def ended(coordinator: Coordinator) -> dict[str, int]:
    return {outcome.value: count for outcome, count in coordinator.status().counts.outcomes.items() if count}


def test_what_is_open_and_how_it_ended(world: World) -> None:
    seen: dict[TwoPhaseStep, CoordinatorStatus] = {}

    def look(step: TwoPhaseStep, xid: Xid) -> None:
        seen[step] = coordinator.status()

    with world.coordinator(look) as coordinator:
        world.work(coordinator, world.producer(), 1)
        with (
            pytest.raises(ZeroDivisionError),
            coordinator.transaction(world.connection, world.producer(), topics=("orders",)),
        ):
            raise ZeroDivisionError
        with coordinator.transaction(world.connection, world.producer(), topics=("orders",)):
            world.connection.execute("INSERT INTO numbers VALUES (2)")  # without a message: no decision
        assert ended(coordinator) == {"committed": 2, "rolled_back": 1}
        assert exported(coordinator, "transactions_total", outcome="committed") == 2
        assert exported(coordinator, "transactions_open") == exported(coordinator, "log_failed") == 0
        assert exported(coordinator, "decisions_unfinished_oldest_age_seconds") is None
    before, after = seen[TwoPhaseStep.PREPARED_DATABASE], seen[TwoPhaseStep.DECIDED]
    assert (before.transactions_open, before.decisions_unfinished, before.decisions_oldest_age_s) == (1, 0, None)
    assert (after.transactions_open, after.decisions_unfinished) == (1, 1)
    assert after.decisions_oldest_age_s is not None
    assert seen[TwoPhaseStep.FORGOTTEN].decisions_unfinished == 0


def test_a_decision_whose_broker_is_away_until_the_next_start(world: World) -> None:
    def kill(step: TwoPhaseStep, xid: Xid) -> None:
        if step is TwoPhaseStep.DECIDED:
            world.broker.kill()

    coordinator, raised = world.coordinator(kill), []

    def work() -> None:
        try:
            world.work(coordinator, world.producer(), 1)
        except CoordinatorClosed as error:
            raised.append(error)

    worker = threading.Thread(target=work)
    worker.start()
    wait_until(lambda: coordinator.status().decisions_unfinished == 1, "it is decided")
    wait_until(lambda: world.row_count() == 1, "the database has committed")
    coordinator.stop_waiting()
    worker.join()
    assert len(raised) == 1
    assert ended(coordinator) == {"left": 1}
    coordinator.close()
    world.broker.start()
    with world.coordinator() as coordinator:
        age_s = coordinator.status().decisions_oldest_age_s
        assert age_s is not None
        assert age_s > 0
        wait_until(lambda: (exported(coordinator, "decisions_unfinished_oldest_age_seconds") or 0) > age_s, "it ages")
        coordinator.recover([], [world.producer()])
        assert exported(coordinator, "recovery_failures_total") == 1  # the database was not asked
        coordinator.recover([world.connection], [world.producer()])
        assert exported(coordinator, "decisions_unfinished") == 0
        assert exported(coordinator, "recovered_total", outcome="committed") == 1
        assert ended(coordinator) == {}


def test_a_rollback_that_no_broker_confirms(world: World) -> None:
    def kill(step: TwoPhaseStep, xid: Xid) -> None:
        if step is TwoPhaseStep.PREPARED_BROKER:
            world.broker.kill()
            raise ZeroDivisionError

    with world.coordinator(kill) as coordinator:
        with pytest.raises(ZeroDivisionError):
            world.work(coordinator, world.producer(), 1)
        status = coordinator.status()
        assert (status.rollbacks_pending, ended(coordinator)) == (1, {"rolled_back": 1})
        assert status.rollbacks_oldest_age_s is not None
        world.broker.start()
        wait_until(lambda: coordinator.status().rollbacks_pending == 0, "the background recovery has told it")
        assert exported(coordinator, "recovered_total", outcome="rolled_back") == 1


def test_a_hazard_stays_until_somebody_forgets_it(world: World) -> None:
    found: list[Xid] = []

    def roll_back(step: TwoPhaseStep, xid: Xid) -> None:
        if step is TwoPhaseStep.DECIDED:
            found.append(xid)
            with psycopg.connect(world.database.dsn, autocommit=True) as other:
                for prepared in other.tpc_recover():
                    other.tpc_rollback(prepared)

    with world.coordinator(roll_back) as coordinator:
        with pytest.raises(HeuristicOutcome):
            world.work(coordinator, world.producer(), 1)
        assert ended(coordinator) == {"left": 1}
        coordinator.recover([world.connection], [world.producer()])
        assert exported(coordinator, "hazards") == 1
        coordinator.recover([], [world.producer()])  # that does not even ask the database
        assert exported(coordinator, "hazards") == 1
        coordinator.forget(found[0])
        assert exported(coordinator, "hazards") == 0
        assert exported(coordinator, "decisions_unfinished") == 0


def test_the_coordinator_for_tasks_tells_the_same(tmp_path: Path) -> None:
    async def look() -> None:
        async with await TaskCoordinator.open(tmp_path / "log", "shop") as coordinator:
            registry = CollectorRegistry()
            registry.register(CoordinatorCollector(coordinator))
            names = {metric.name for metric in registry.collect()}
            absent = {family.name for family in FAMILIES if "age_seconds" in family.name}
            assert names == {family.name.removesuffix("_total") for family in FAMILIES} - absent
            assert coordinator.status().counts.outcomes == dict.fromkeys(TransactionEnd, 0)

    asyncio.run(look())
