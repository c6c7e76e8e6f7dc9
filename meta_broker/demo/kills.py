"""The three kills: each is a SIGKILL, proven to come at the step it claims, and recovered from.

A kill between two steps is not left to luck: the producer process holds the transaction there (traps) and reports it,
and both sides' prepared transactions are read before it is released.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from meta_broker.demo.stage import Stage
from meta_broker.demo.talk import Proceed, Recovered, Release, Trap, Trapped
from meta_client.coordinator import Step
from meta_client.coordinator.recovery_policy import Action

TRAP_TIMEOUT_S = 30
RECOVERY_TIMEOUT_S = 120
INVOICES_MIN = 100  # with fewer, all would be done before the last kill


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill. *problem* says what was seen instead if it was not survived."""

    title: str
    proof: str
    seconds: float  # until everything served again
    problem: str | None = None


Killer = Callable[[Stage, random.Random, int], Kill]


@dataclass(frozen=True, slots=True)
class Appointment:
    """A kill after so many *invoices*. The producers wait there, and then go on *until* the next one.

    They wait because a fast machine would finish the rest of the work while a broker is being restarted.
    """

    invoices: int
    until: int
    title: str
    kill: Killer


def appointments(invoices: int, dice: random.Random) -> list[Appointment]:
    """Plan the kills for *invoices* in all: one in each of three stretches, with work left after the last."""
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
    """Kill the broker at a random moment of the four threads' work."""
    stage.producers.send(Proceed(until))
    time.sleep(dice.uniform(0, 0.05))
    started = time.monotonic()
    stage.broker.kill()
    done, _ = stage.progress()
    stage.broker.start()
    return Kill("broker, at a random moment", f"{done} invoices were done", time.monotonic() - started)


def kill_broker_before_commit(stage: Stage, dice: random.Random, until: int) -> Kill:
    """Kill the broker once the database has committed and the broker has only prepared: only its log knows the
    transaction.
    """
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
    """Kill the producers with two transactions held, just before and just after the decision, which recovery must
    end differently.
    """
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
