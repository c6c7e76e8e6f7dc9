"""Meaning of each X/Open code for a branch that must commit or roll back. No broker: the table alone.

The heuristic answers need an operator's hand on a broker; here the producer is a stand-in that gives them.
"""

from dataclasses import dataclass, field
from typing import cast

import pytest

from journal.records.xid import Xid
from meta_client.coordinator.broker import BrokerParticipant
from meta_client.coordinator.errors import BranchUnknown, CoordinatorError, HeuristicOutcome, Unreachable
from meta_client.coordinator.names import BROKER, branch
from meta_client.errors import ClientXaError
from meta_client.producer.producer import Producer
from meta_client.protocol.xa import XaCode

XID = Xid(1, b"shop.0123abcd.1-1", b"")


@dataclass
class Answering:
    """A producer whose broker answers every COMMIT and ROLLBACK with one code."""

    code: XaCode
    forgotten: list[Xid] = field(default_factory=list)

    def tpc_commit(self, xid: Xid) -> None:
        raise ClientXaError(self.code, "as asked", f"COMMIT {xid} on broker 0")

    def tpc_rollback(self, xid: Xid) -> None:
        raise ClientXaError(self.code, "as asked", f"ROLLBACK {xid} on broker 0")

    def tpc_forget(self, xid: Xid) -> None:
        self.forgotten.append(xid)


COMMIT: dict[XaCode, type[CoordinatorError] | None] = {
    XaCode.XA_HEURCOM: None,
    XaCode.XA_HEURRB: HeuristicOutcome,
    XaCode.XA_HEURHAZ: HeuristicOutcome,
    XaCode.XA_RBOTHER: HeuristicOutcome,
    XaCode.XA_RBTIMEOUT: HeuristicOutcome,
    XaCode.XAER_NOTA: BranchUnknown,
    XaCode.XAER_RMFAIL: Unreachable,
    XaCode.XAER_RMERR: Unreachable,
    XaCode.XAER_PROTO: Unreachable,
    XaCode.XAER_INVAL: Unreachable,
    XaCode.XAER_DUPID: Unreachable,
}
# None: it is as was wanted. A branch that is gone is rolled back.
ROLLBACK: dict[XaCode, type[CoordinatorError] | None] = COMMIT | {
    XaCode.XA_HEURCOM: HeuristicOutcome,
    XaCode.XA_HEURRB: None,
    XaCode.XA_RBOTHER: None,
    XaCode.XA_RBTIMEOUT: None,
    XaCode.XAER_NOTA: None,
}


@pytest.mark.parametrize("code", set(XaCode) - {XaCode.XA_OK, XaCode.XA_RDONLY})
@pytest.mark.parametrize("commits", [True, False])
def test_every_code_has_its_meaning(code: XaCode, commits: bool) -> None:
    producer = Answering(code)
    participant = BrokerParticipant(cast(Producer, producer), lambda xid: True)
    finish, expected = (participant.commit, COMMIT[code]) if commits else (participant.rollback, ROLLBACK[code])
    if expected is None:
        finish(XID)
    else:
        with pytest.raises(expected) as caught:
            finish(XID)
        if expected is HeuristicOutcome:
            assert "had to commit" if commits else "had to roll back" in str(caught.value)
            assert "compare its rows with its messages" in str(caught.value)
    agrees = code is (XaCode.XA_HEURCOM if commits else XaCode.XA_HEURRB)
    assert producer.forgotten == ([branch(XID, BROKER)] if agrees else [])
