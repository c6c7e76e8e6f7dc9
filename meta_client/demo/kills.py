"""The three kills. Each is SIGKILL, each is proven to have come at the step it claims, and each is recovered from.

A kill between two steps is no matter of luck: the producer process holds the transaction there (traps), says so, and
what both sides have prepared is looked at before anybody is let go.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from meta_client.coordinator import Step
from meta_client.coordinator.verdicts import Action
from meta_client.demo.stage import Stage
from meta_client.demo.talk import Proceed, Recovered, Release, Trap, Trapped

TRAP_TIMEOUT_S = 30
RECOVERY_TIMEOUT_S = 120
INVOICES_MIN = 100  # fewer are done before the last kill can come


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill that was survived, or not: then *problem* says what was seen instead."""

    title: str
    proof: str
    seconds: float  # until everybody served again
    problem: str | None = None


Killer = Callable[[Stage, random.Random, int], Kill]


@dataclass(frozen=True, slots=True)
class Appointment:
    """Who is killed once so many *invoices* are done. The producers wait there, and go on *until* the next one.

    A fast machine is done with the rest of the work while a broker is being restarted: hence they wait.
    """

    invoices: int
    until: int
    title: str
    kill: Killer


def appointments(invoices: int, dice: random.Random) -> list[Appointment]:
    """When to kill whom, for *invoices* in all: one kill in each of three stretches, with work left after the last."""
    plan: list[tuple[float, float, str, Killer]] = [
        (0.15, 0.30, "kill the broker at a random moment", kill_broker_anywhere),
        (0.40, 0.55, "kill the broker between a prepare and its commit", kill_broker_before_commit),
        (0.65, 0.75, "kill the producers between prepare and commit", kill_producers_before_commit),
    ]
    counts = [int(invoices * dice.uniform(first, last)) for first, last, _, _ in plan] + [invoices]
    return [
        Appointment(count, until, title, kill)
        for (_, _, title, kill), (count, until) in zip(plan, pairwise(counts), strict=True)
    ]


def kill_broker_anywhere(stage: Stage, dice: random.Random, until: int) -> Kill:
    """Whatever the four threads are doing at the moment."""
    stage.producers.send(Proceed(until))
    time.sleep(dice.uniform(0, 0.05))
    started = time.monotonic()
    stage.broker.kill()
    done, _ = stage.progress()
    stage.broker.start()
    return Kill("broker, at a random moment", f"{done} invoices were done", time.monotonic() - started)


def kill_broker_before_commit(stage: Stage, dice: random.Random, until: int) -> Kill:
    """The database has committed, the broker has only prepared: nobody but its log can know what is to become of it."""
    del dice
    title = "broker, between a prepare and its commit"
    stage.producers.send(Trap([Step.COMMITTED_DATABASE.name]))
    stage.producers.send(Proceed(until))
    held = stage.producers.wait_for(Trapped, TRAP_TIMEOUT_S).transaction
    started = time.monotonic()
    stage.broker.kill()
    stage.broker.start()
    seconds = time.monotonic() - started
    in_database, on_broker = stage.in_doubt_in_database(), stage.in_doubt_on_broker()
    stage.producers.send(Release())
    if held in in_database or held not in on_broker:
        return Kill(title, "", seconds, f"{held} was held, prepared are {in_database} and {on_broker}")
    return Kill(title, f"{held}: committed in the database, still prepared on the broker after its restart", seconds)


def kill_producers_before_commit(stage: Stage, dice: random.Random, until: int) -> Kill:
    """Two transactions at once, one just before the decision, one just after: recovery must end them differently."""
    del dice
    title = "producers, between prepare and commit"
    steps = [Step.PREPARED_DATABASE, Step.DECIDED]
    stage.producers.send(Trap([step.name for step in steps]))
    stage.producers.send(Proceed(until))
    trapped = [stage.producers.wait_for(Trapped, TRAP_TIMEOUT_S) for _ in steps]
    held = {Step[trap.step]: trap.transaction for trap in trapped}
    started = time.monotonic()
    stage.producers.kill()
    prepared = stage.in_doubt_in_database() & stage.in_doubt_on_broker()
    stage.start_producers(until)
    recovered = stage.producers.wait_for(Recovered, RECOVERY_TIMEOUT_S)
    seconds = time.monotonic() - started
    actions = {one.transaction: one.action for one in recovered.transactions}
    undecided, decided = held[Step.PREPARED_DATABASE], held[Step.DECIDED]
    expected = {undecided: Action.ROLL_BACK.name, decided: Action.COMMIT.name}
    if held.keys() != set(steps) or not prepared >= set(expected) or not actions.items() >= expected.items():
        return Kill(title, "", seconds, f"{held} were held, prepared were {prepared}, recovery did {actions}")
    return Kill(title, f"{undecided}: rolled back; {decided}: committed; both were prepared on both sides", seconds)
