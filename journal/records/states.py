"""States of a transaction branch: one table, walked by one function. Pure (spec 2.7, corrections of Appendix A in).

A committed or rolled back branch is dropped, so the table has no state for it: FINISHED ends every branch. A pair that
the table lacks is a protocol error with the text and code of spec 2.7.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

from journal.records.state_table import IdentityEnum
from journal.records.xid import BranchKey, LocalKey


class XaCode(IntEnum):
    """X/Open XA return codes that a broker of the 1.4 line or its client uses (spec 2.3)."""

    XA_OK = 0
    XA_RDONLY = 3  # vote: nothing was put, the branch is forgotten, don't commit it
    XA_HEURRB = 6
    XA_HEURCOM = 7
    XA_HEURHAZ = 8
    XA_RBOTHER = 104
    XA_RBTIMEOUT = 106
    XAER_RMERR = -3
    XAER_NOTA = -4
    XAER_INVAL = -5
    XAER_PROTO = -6
    XAER_RMFAIL = -7
    XAER_DUPID = -8


class BranchState(IdentityEnum):
    """State of a branch."""

    START = 0
    IN_USE = 1
    PREPARED = 2
    FINISHED = 3
    HEUR_COMMIT = 4  # an operator committed it; lasts until it is forgotten, like the next two
    HEUR_ROLLBACK = 5
    HEUR_COMPLETE = 6  # an operator removed it, neither committed nor rolled back


class BranchEvent(IdentityEnum):
    """Event that may change the state of a branch."""

    PUT = "put"
    PREPARE = "prepare"
    COMMIT_ONE_PHASE = "commit in one phase"
    COMMIT_TWO_PHASE = "commit in two phases"
    ROLLBACK = "rollback"
    TIMEOUT = "timeout"
    HEURISTIC_COMMIT = "heuristic commit"
    HEURISTIC_ROLLBACK = "heuristic rollback"
    HEURISTIC_COMPLETE = "heuristic completion"
    FORGET = "forget"


class VerbRefused(Exception):
    """A verb that the branch's state does not allow. *code* and *text* are sent on the wire."""

    def __init__(self, code: XaCode, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


class BranchNotStarted(VerbRefused):
    """The broker has no live branch of this key: it was never begun, or it is over."""

    def __init__(self, key: BranchKey) -> None:
        kind = "Local" if isinstance(key, LocalKey) else "XA"
        super().__init__(XaCode.XAER_NOTA, f"{kind} transaction '{key}' has not been started.")
        self.key = key


S = BranchState
E = BranchEvent

_HEURISTIC: Final[Mapping[S, tuple[XaCode, str]]] = {
    S.HEUR_COMMIT: (XaCode.XA_HEURCOM, "committed"),
    S.HEUR_ROLLBACK: (XaCode.XA_HEURRB, "rolled back"),
    S.HEUR_COMPLETE: (XaCode.XA_HEURHAZ, "completed"),
}


class HeuristicallyEnded(VerbRefused):
    """An operator ended this branch: every verb reports that until it is forgotten (spec 2.7, note 3)."""

    def __init__(self, key: BranchKey, state: BranchState) -> None:
        code, word = _HEURISTIC[state]
        super().__init__(code, f"XA transaction '{key}' has been heuristically {word}.")


NEXT_XA: Final[Mapping[S, Mapping[E, S]]] = {
    S.START: {
        E.PUT: S.IN_USE,
        E.PREPARE: S.FINISHED,  # vote XA_RDONLY: nothing was put
        E.COMMIT_ONE_PHASE: S.FINISHED,
        E.ROLLBACK: S.FINISHED,
        E.TIMEOUT: S.FINISHED,
    },
    S.IN_USE: {
        E.PUT: S.IN_USE,
        E.PREPARE: S.PREPARED,
        E.COMMIT_ONE_PHASE: S.FINISHED,
        E.ROLLBACK: S.FINISHED,
        E.TIMEOUT: S.FINISHED,
    },
    S.PREPARED: {
        E.COMMIT_ONE_PHASE: S.FINISHED,
        E.COMMIT_TWO_PHASE: S.FINISHED,
        E.ROLLBACK: S.FINISHED,
        E.TIMEOUT: S.PREPARED,  # a prepared branch never times out
        E.HEURISTIC_COMMIT: S.HEUR_COMMIT,
        E.HEURISTIC_ROLLBACK: S.HEUR_ROLLBACK,
        E.HEURISTIC_COMPLETE: S.HEUR_COMPLETE,
    },
    S.HEUR_COMMIT: {E.FORGET: S.FINISHED},
    S.HEUR_ROLLBACK: {E.FORGET: S.FINISHED},
    S.HEUR_COMPLETE: {E.FORGET: S.FINISHED},
    S.FINISHED: {},
}

# A local transaction never prepares, and one-phase and two-phase commit are the same to it.
NEXT_LOCAL: Final[Mapping[S, Mapping[E, S]]] = {
    state: {event: S.FINISHED if state is not S.FINISHED and event is not E.PUT else S.IN_USE for event in allowed}
    for state, allowed in {
        S.START: (E.PUT, E.COMMIT_ONE_PHASE, E.COMMIT_TWO_PHASE, E.ROLLBACK, E.TIMEOUT),
        S.IN_USE: (E.PUT, E.COMMIT_ONE_PHASE, E.COMMIT_TWO_PHASE, E.ROLLBACK, E.TIMEOUT),
    }.items()
} | {state: {} for state in (S.PREPARED, S.FINISHED, *_HEURISTIC)}

_REFUSED: Final[Mapping[E, str]] = {
    E.PUT: "Cannot put now: the transaction has been prepared.",
    E.PREPARE: "Cannot call prepare now.",
    E.COMMIT_TWO_PHASE: "Cannot do 2 phase commit if the transaction has not been prepared.",
    E.COMMIT_ONE_PHASE: "Cannot commit now.",
    E.ROLLBACK: "Cannot roll back now.",
    E.TIMEOUT: "Cannot time out now.",
    E.HEURISTIC_COMMIT: "Cannot decide for it: only a prepared branch is in doubt.",
    E.HEURISTIC_ROLLBACK: "Cannot decide for it: only a prepared branch is in doubt.",
    E.HEURISTIC_COMPLETE: "Cannot decide for it: only a prepared branch is in doubt.",
    E.FORGET: "Cannot forget it: there is no heuristic decision.",
}


def next_state(key: BranchKey, state: BranchState, event: BranchEvent) -> BranchState:
    """Return the state after *event*. Raises VerbRefused if the table lacks it: BranchNotStarted once the branch is
    finished, HeuristicallyEnded once an operator has ended it."""
    if state is S.FINISHED:
        raise BranchNotStarted(key)
    is_local = isinstance(key, LocalKey)
    if is_local and event is E.PREPARE:
        raise VerbRefused(XaCode.XAER_RMERR, "Prepare not implemented on Local Transactions.")
    after = (NEXT_LOCAL if is_local else NEXT_XA)[state].get(event)
    if after is None and state in _HEURISTIC:
        raise HeuristicallyEnded(key, state)
    if after is None:
        raise VerbRefused(XaCode.XAER_PROTO, _REFUSED[event])
    return after
