"""Treatment of a branch that a participant lists as prepared, by four facts. Pure."""

from enum import Enum


class Action(Enum):
    """Treatment of a listed branch."""

    COMMIT = "commit"
    ROLL_BACK = "roll back"
    LEAVE = "leave alone"


def action_for(*, is_ours: bool, is_in_flight: bool, is_decided: bool) -> Action:
    """Return the action under presumed abort.

    *is_ours*: the identifier has this log's prefix. *is_in_flight*: this process is still working on it. *is_decided*:
    the log holds a decision to commit it.
    """
    match is_ours, is_in_flight, is_decided:
        case False, _, _:
            return Action.LEAVE  # another coordinator decides it
        case True, True, _:
            return Action.LEAVE  # its owner finishes it
        case True, False, True:
            return Action.COMMIT
        case _:
            return Action.ROLL_BACK  # no durable decision, so no commit was sent: presumed abort
