"""Playing a state machine until it has made its steps, from a seed that does the same again."""

import os
import time
from collections.abc import Callable

from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

STEPS_MIN = int(os.environ.get("METAQ_MODEL_STEPS", "3000"))  # `make crash` plays more
TIMEOUT_S = 600 + STEPS_MIN // 100  # enough to shrink what failed: the example that is printed is the one to look at
RUNS_MAX = 20


class Counted(RuleBasedStateMachine):
    """A machine whose rules count themselves."""

    steps = 0  # of all machines of its class together

    def count(self) -> None:
        type(self).steps += 1


def play(
    machine: type[Counted],
    *,
    steps_a_machine: int,
    steps_an_example: int,
    is_enough: Callable[[], bool] = lambda: True,
) -> None:
    """Play *machine*, from METAQ_MODEL_SEED and the seeds after it, until METAQ_MODEL_STEPS are made and *is_enough*.

    *steps_a_machine*: how many rules a machine follows at most; *steps_an_example*: about how many steps those are. A
    seed whose machines end early makes fewer, and the next one goes on.
    """
    chosen = int(os.environ.get("METAQ_MODEL_SEED") or time.time_ns() % 2**32)
    print(f"METAQ_MODEL_SEED={chosen}")
    machine.steps = 0
    for number in range(RUNS_MAX):
        seed(chosen + number)(machine)
        run_state_machine_as_test(
            machine,
            settings=settings(
                max_examples=max(STEPS_MIN - machine.steps, 0) // steps_an_example + 10,
                stateful_step_count=steps_a_machine,
                deadline=None,
                print_blob=True,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
            ),
        )
        print(f"seed={chosen + number} steps={machine.steps}")
        if machine.steps >= STEPS_MIN and is_enough():
            return
    raise AssertionError(
        f"{machine.steps} steps in {RUNS_MAX} runs: that was to be {STEPS_MIN}, and enough of each kind"
    )
