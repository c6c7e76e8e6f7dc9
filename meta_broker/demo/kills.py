"""The three kills: each is a SIGKILL, proven to come at the step it claims, and recovered from.

A kill between two steps is not left to luck: the producer process holds the transaction there and reports it, and both
sides' prepared transactions are read before it is released.
"""

import random
import time
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from meta_broker.demo.environment import Environment
from meta_broker.demo.producers import RecoveryDone, Trapped
from meta_client.coordinator import TwoPhaseStep
from meta_client.coordinator.recovery import Action

TRAP_TIMEOUT_S = 30
RECOVERY_TIMEOUT_S = 120
INVOICES_MIN = 100  # with fewer, all would be done before the last kill


class Kill(NamedTuple):
    """One kill. *problem* says what was seen instead if it was not survived."""

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
    kill: Callable[[Environment, int], Kill]


def appointments(invoices: int, dice: random.Random) -> list[Appointment]:
    """Plan the kills for *invoices* in all: one in each of three stretches, with work left after the last."""
    anywhere = partial(kill_broker_anywhere, after_s=dice.uniform(0, 0.05))
    counts = [int(invoices * dice.uniform(*part)) for part in ((0.15, 0.30), (0.40, 0.55), (0.65, 0.75))]
    return [
        Appointment(counts[0], counts[1], "broker, at a random moment", anywhere),
        Appointment(counts[1], counts[2], "broker, between a prepare and its commit", kill_broker_before_commit),
        Appointment(counts[2], invoices, "producers, between prepare and commit", kill_producers_before_commit),
    ]


def kill_broker_anywhere(environment: Environment, until: int, after_s: float) -> Kill:
    """Kill the broker at a random moment of the four threads' work."""
    environment.producers.order(until)
    time.sleep(after_s)
    started = time.monotonic()
    environment.broker.kill()
    done, _ = environment.progress()
    environment.broker.start()
    return Kill(f"{done} invoices were done", time.monotonic() - started)


def kill_broker_before_commit(environment: Environment, until: int) -> Kill:
    """Kill the broker once the database has committed a transaction that the broker has only prepared."""
    environment.producers.order(until, TwoPhaseStep.COMMITTED_DATABASE)
    held = environment.producers.wait_for(Trapped, TRAP_TIMEOUT_S).transaction
    started = time.monotonic()
    environment.broker.kill()
    environment.broker.start()
    seconds = time.monotonic() - started
    in_database, on_broker = environment.in_doubt_in_database(), environment.in_doubt_on_broker()
    environment.producers.order(until)
    if held in in_database or held not in on_broker:
        return Kill("", seconds, f"{held} was held, prepared are {in_database} and {on_broker}")
    return Kill(f"{held}: committed in the database, still prepared on the broker after its restart", seconds)


def kill_producers_before_commit(environment: Environment, until: int) -> Kill:
    """Kill the producers with two transactions held, before and after the decision: recovery must tell them apart."""
    expected_by_step = {TwoPhaseStep.PREPARED_DATABASE: Action.ROLL_BACK, TwoPhaseStep.DECIDED: Action.COMMIT}
    environment.producers.order(until, *expected_by_step)
    trapped = [environment.producers.wait_for(Trapped, TRAP_TIMEOUT_S) for _ in range(2)]
    held = {it.step: it.transaction for it in trapped}
    started = time.monotonic()
    environment.producers.kill()
    prepared = environment.in_doubt_in_database() & environment.in_doubt_on_broker()
    environment.producers.start(until)
    actions = environment.producers.wait_for(RecoveryDone, RECOVERY_TIMEOUT_S).actions
    seconds = time.monotonic() - started
    expected = {transaction: expected_by_step[step] for step, transaction in held.items()}
    if len(expected) < len(expected_by_step) or not prepared >= {*expected} or not actions.items() >= expected.items():
        return Kill("", seconds, f"{held} were held, prepared were {prepared}, recovery did {actions}")
    undecided, decided = (held[step] for step in expected_by_step)
    return Kill(f"{undecided}: rolled back; {decided}: committed; both were prepared on both sides", seconds)
