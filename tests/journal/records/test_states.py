"""The state table of spec 2.7, row by row, for XA and for local keys."""

import itertools

import pytest

from journal.records.states import BranchEvent, BranchNotStarted, BranchState, VerbRefused, XaCode, next_state
from journal.records.xid import BranchKey, LocalKey
from tests.fixtures.journals import xa

S = BranchState
E = BranchEvent
XA = xa("order-1")
LOCAL = LocalKey("10.0.0.1-1700000000000-1", 1)

PROTO_PUT = (XaCode.XAER_PROTO, "Cannot put now: the transaction has been prepared.")
PROTO_PREPARE = (XaCode.XAER_PROTO, "Cannot call prepare now.")
PROTO_TWO_PHASE = (
    XaCode.XAER_PROTO,
    "Cannot do 2 phase commit if the transaction has not been prepared.",
)
NO_PREPARE = (XaCode.XAER_RMERR, "Prepare not implemented on Local Transactions.")
NOT_IN_DOUBT = (XaCode.XAER_PROTO, "Cannot decide for it: only a prepared branch is in doubt.")
NOT_DECIDED = (XaCode.XAER_PROTO, "Cannot forget it: there is no heuristic decision.")
UNDECIDED = (NOT_IN_DOUBT, NOT_IN_DOUBT, NOT_IN_DOUBT, NOT_DECIDED)
HEURCOM = (XaCode.XA_HEURCOM, f"XA transaction '{XA}' has been heuristically committed.")
HEURRB = (XaCode.XA_HEURRB, f"XA transaction '{XA}' has been heuristically rolled back.")
HEURHAZ = (XaCode.XA_HEURHAZ, f"XA transaction '{XA}' has been heuristically completed.")

# Columns as spec 2.7 has them: put, PREPARE, COMMIT_ONE_PHASE, COMMIT_TWO_PHASE, ROLLBACK, timeout; and those of 2.10:
# heuristic commit, rollback, completion; FORGET.
XA_TABLE = {
    S.START: (S.IN_USE, S.FINISHED, S.FINISHED, PROTO_TWO_PHASE, S.FINISHED, S.FINISHED, *UNDECIDED),
    S.IN_USE: (S.IN_USE, S.PREPARED, S.FINISHED, PROTO_TWO_PHASE, S.FINISHED, S.FINISHED, *UNDECIDED),
    S.PREPARED: (
        *(PROTO_PUT, PROTO_PREPARE, S.FINISHED, S.FINISHED, S.FINISHED, S.PREPARED),
        *(S.HEUR_COMMIT, S.HEUR_ROLLBACK, S.HEUR_COMPLETE, NOT_DECIDED),
    ),
    S.HEUR_COMMIT: (*[HEURCOM] * 9, S.FINISHED),
    S.HEUR_ROLLBACK: (*[HEURRB] * 9, S.FINISHED),
    S.HEUR_COMPLETE: (*[HEURHAZ] * 9, S.FINISHED),
}
LOCAL_TABLE = {
    S.START: (S.IN_USE, NO_PREPARE, S.FINISHED, S.FINISHED, S.FINISHED, S.FINISHED, *UNDECIDED),
    S.IN_USE: (S.IN_USE, NO_PREPARE, S.FINISHED, S.FINISHED, S.FINISHED, S.FINISHED, *UNDECIDED),
}


def outcome(key: BranchKey, state: BranchState, event: BranchEvent) -> BranchState | tuple[XaCode, str]:
    try:
        return next_state(key, state, event)
    except VerbRefused as error:
        return error.code, error.text


@pytest.mark.parametrize(("state", "event"), list(itertools.product(XA_TABLE, BranchEvent)))
def test_xa(state: BranchState, event: BranchEvent) -> None:
    assert outcome(XA, state, event) == XA_TABLE[state][list(BranchEvent).index(event)]


@pytest.mark.scenario("U03")
@pytest.mark.parametrize(("state", "event"), list(itertools.product(LOCAL_TABLE, BranchEvent)))
def test_local(state: BranchState, event: BranchEvent) -> None:
    assert outcome(LOCAL, state, event) == LOCAL_TABLE[state][list(BranchEvent).index(event)]


@pytest.mark.scenario("U04")
@pytest.mark.parametrize("event", BranchEvent)
def test_a_prepared_local_transaction_takes_nothing(event: BranchEvent) -> None:
    with pytest.raises(VerbRefused):
        next_state(LOCAL, S.PREPARED, event)


@pytest.mark.parametrize("event", BranchEvent)
@pytest.mark.parametrize(("key", "kind"), [(XA, "XA"), (LOCAL, "Local")])
def test_what_is_over_was_never_started(key: BranchKey, kind: str, event: BranchEvent) -> None:
    with pytest.raises(BranchNotStarted) as caught:
        next_state(key, S.FINISHED, event)
    assert caught.value.code is XaCode.XAER_NOTA
    assert caught.value.text == f"{kind} transaction '{key}' has not been started."
