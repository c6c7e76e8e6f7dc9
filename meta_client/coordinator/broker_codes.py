"""Meaning of a broker's answers about a prepared branch: X/Open codes and STATUS. Pure."""

from collections.abc import Mapping
from typing import Final

from journal.records.xid import Xid
from meta_client.coordinator.errors import BranchUnknown, HeuristicOutcome, Unreachable
from meta_client.coordinator.participants import BranchEnd
from meta_client.protocol.answers import BranchStatus
from meta_client.protocol.errors import XaError
from meta_client.protocol.xa import XaCode

# An operator's decision counts until FORGET. Any other state promises nothing.
_ENDED: Final = {
    BranchStatus.COMMITTED: BranchEnd.COMMITTED,
    BranchStatus.HEURISTICALLY_COMMITTED: BranchEnd.COMMITTED,
    BranchStatus.ROLLED_BACK: BranchEnd.ROLLED_BACK,
    BranchStatus.HEURISTICALLY_ROLLED_BACK: BranchEnd.ROLLED_BACK,
    BranchStatus.PREPARED: BranchEnd.NOT_ENDED,
}
_HEURISTIC: Final[Mapping[int, BranchEnd]] = {
    XaCode.XA_HEURCOM: BranchEnd.COMMITTED,
    XaCode.XA_HEURRB: BranchEnd.ROLLED_BACK,
    XaCode.XA_HEURHAZ: BranchEnd.UNKNOWN,
}
_ROLLED_BACK_CODES: Final = range(100, 108)  # X/Open XA: XA_RBBASE to XA_RBEND, rolled back by the resource itself


def ended_as(status: BranchStatus | None) -> BranchEnd:
    """Return the outcome that STATUS reports. None: the broker does not support STATUS."""
    return BranchEnd.NOT_SUPPORTED if status is None else _ENDED.get(status, BranchEnd.UNKNOWN)


def verdict(name: Xid, participant: str, wanted: str, error: XaError) -> BranchUnknown | HeuristicOutcome | Unreachable:
    """Return the error for a refused COMMIT or ROLLBACK of the prepared branch *name*."""
    xid = Xid(name.format_id, name.gtrid, b"")
    match error.code:
        case XaCode.XAER_NOTA:
            return BranchUnknown(name, participant)
        case code if code in _HEURISTIC:
            return HeuristicOutcome(xid, participant, wanted, str(error), _HEURISTIC[code])
        case code if code in _ROLLED_BACK_CODES and wanted == "roll back":
            return BranchUnknown(name, participant)
        case code if code in _ROLLED_BACK_CODES:
            return HeuristicOutcome(xid, participant, wanted, str(error), BranchEnd.ROLLED_BACK)
    # XAER_RMFAIL, XAER_RMERR and whatever else: no verdict about the branch, so that asking again is right.
    return Unreachable(participant, str(error))
