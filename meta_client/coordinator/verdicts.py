"""What recovery does with a branch that a participant lists as prepared: four questions, one answer. Pure."""

from enum import Enum


class Action(Enum):
    """What becomes of a listed branch."""

    COMMIT = "commit"
    ROLL_BACK = "roll back"
    LEAVE = "leave alone"


def action_for(*, is_ours: bool, is_in_flight: bool, is_decided: bool) -> Action:
    """The rule of presumed abort.

    *is_ours*: its identifier begins with this log's prefix. *is_in_flight*: a thread of this process is still
    working on it. *is_decided*: the log holds a decision to commit it.
    """
    match is_ours, is_in_flight, is_decided:
        case False, _, _:
            return Action.LEAVE  # another coordinator's promise: only that one knows how it ends
        case True, True, _:
            return Action.LEAVE  # its thread will finish it
        case True, False, True:
            return Action.COMMIT
        case _:
            return Action.ROLL_BACK  # no decision was made durable, so nobody was told: presumed abort
