"""The three kills: each is a SIGKILL, proven to come at the step it claims, and recovered from.

A kill between two steps is not left to luck: the producer process holds the transaction there and reports it, and both
sides' prepared transactions are read before it is released.
"""

import random
import time
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from meta_broker.demo.child_lines import RecoveryDone, Trapped, Work
from meta_broker.demo.environment import Environment
from meta_client.coordinator import TwoPhaseStep
from meta_client.coordinator.recovery import Action

TRAP_TIMEOUT_S = 30
RECOVERY_TIMEOUT_S = 120
INVOICES_MIN = 100  # with fewer, all would be done before the last kill


class Kill(NamedTuple):
    """One kill. *problem* says what was seen instead if it was not survived."""

    title: str
    proof: str
    seconds: float  # until everything served again
    problem: str | None = None


class Appointment(NamedTuple):
    """A kill after so many *invoices*. The producers wait there, and then go on *until* the next one.

    They wait because a fast machine would finish the rest of the work while a broker is being restarted.
    """

    invoices: int
    until: int
    title: str
    kill: Callable[[Environment, random.Random, int], Kill]


def appointments(invoices: int, dice: random.Random) -> list[Appointment]:
    """Plan the kills for *invoices* in all: one in each of three stretches, with work left after the last."""
    plan = [
        (0.15, 0.30, "kill the broker at a random moment", kill_broker_anywhere),
        (0.40, 0.55, "kill the broker between a prepare and its commit", kill_broker_before_commit),
        (0.65, 0.75, "kill the producers between prepare and commit", kill_producers_before_commit),
    ]
    counts = [int(invoices * dice.uniform(first, last)) for first, last, _, _ in plan] + [invoices]
    return [
        Appointment(count, until, title, kill)
        for (_, _, title, kill), (count, until) in zip(plan, pairwise(counts), strict=True)
    ]


def kill_broker_anywhere(environment: Environment, dice: random.Random, until: int) -> Kill:
    """Kill the broker at a random moment of the four threads' work."""
    environment.producers.send(Work(until))
    time.sleep(dice.uniform(0, 0.05))
    started = time.monotonic()
    environment.broker.kill()
    done, _ = environment.progress()
    environment.broker.start()
    return Kill("broker, at a random moment", f"{done} invoices were done", time.monotonic() - started)


def kill_broker_before_commit(environment: Environment, dice: random.Random, until: int) -> Kill:
    """Kill the broker once the database has committed and the broker has only prepared: only its log knows the
    transaction.
    """
    del dice
    title = "broker, between a prepare and its commit"
    environment.producers.send(Work(until, [TwoPhaseStep.COMMITTED_DATABASE.name]))
    held = environment.producers.wait_for(Trapped, TRAP_TIMEOUT_S).transaction
    started = time.monotonic()
    environment.broker.kill()
    environment.broker.start()
    seconds = time.monotonic() - started
    in_database, on_broker = environment.in_doubt_in_database(), environment.in_doubt_on_broker()
    environment.producers.send(Work(until))
    if held in in_database or held not in on_broker:
        return Kill(title, "", seconds, f"{held} was held, prepared are {in_database} and {on_broker}")
    return Kill(title, f"{held}: committed in the database, still prepared on the broker after its restart", seconds)


def kill_producers_before_commit(environment: Environment, dice: random.Random, until: int) -> Kill:
    """Kill the producers with two transactions held, just before and just after the decision, which recovery must
    end differently.
    """
    del dice
    title = "producers, between prepare and commit"
    expected_by_step = {
        TwoPhaseStep.PREPARED_DATABASE.name: Action.ROLL_BACK.name,
        TwoPhaseStep.DECIDED.name: Action.COMMIT.name,
    }
    environment.producers.send(Work(until, [*expected_by_step]))
    trapped = [environment.producers.wait_for(Trapped, TRAP_TIMEOUT_S) for _ in range(2)]
    held = {it.step: it.transaction for it in trapped}
    started = time.monotonic()
    environment.producers.kill()
    prepared = environment.in_doubt_in_database() & environment.in_doubt_on_broker()
    environment.start_producers(until)
    actions = environment.producers.wait_for(RecoveryDone, RECOVERY_TIMEOUT_S).actions
    seconds = time.monotonic() - started
    expected = {transaction: expected_by_step[step] for step, transaction in held.items()}
    if len(expected) < len(expected_by_step) or not prepared >= {*expected} or not actions.items() >= expected.items():
        return Kill(title, "", seconds, f"{held} were held, prepared were {prepared}, recovery did {actions}")
    undecided, decided = (held[step] for step in expected_by_step)
    return Kill(title, f"{undecided}: rolled back; {decided}: committed; both were prepared on both sides", seconds)
