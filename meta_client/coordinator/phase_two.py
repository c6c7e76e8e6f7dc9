"""Phase two: repeat a decided commit until it is done.

The wait between attempts doubles up to a bound. Logs when waiting begins, when its reason changes, and when it ends.
"""

import logging
import random
from collections.abc import Callable, Iterator
from typing import Protocol

from journal.records.xid import Xid
from meta_client.coordinator.errors import BranchUnknown, CoordinatorClosed, HeuristicOutcome, Unreachable
from meta_client.coordinator.participants import BranchEnd
from meta_client.errors import ClientClosed

log = logging.getLogger(__name__)

WAIT_S_FIRST = 0.02  # a restarting broker answers within a second
WAIT_S_MAX = 2.0  # bounds the load of a long outage


class Closing(Protocol):
    """Event that is set when the coordinator closes: a threading.Event, or its equivalent for a loop."""

    def set(self) -> None: ...

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the event is set or the timeout is over; return whether it is set."""


class Finishable(Protocol):
    """The methods of a Participant that phase two uses."""

    @property
    def name(self) -> str: ...

    def commit(self, xid: Xid) -> None: ...

    def outcome(self, xid: Xid, receipt: str) -> BranchEnd: ...


def waits_s() -> Iterator[float]:
    """Yield the delay before each further attempt, in seconds, with jitter."""
    wait_s = WAIT_S_FIRST
    while True:
        yield wait_s * random.uniform(0.5, 1.0)  # noqa: S311 - nothing secret about it
        wait_s = min(wait_s * 2, WAIT_S_MAX)


def commit_until_done(participant: Finishable, xid: Xid, receipt: str, wait: Callable[[float], bool]) -> None:
    """Commit the decided *xid* at *participant*; return once it is committed there, without a time limit.

    *wait* sleeps the given seconds before the next attempt and returns True to give up. Raises HeuristicOutcome, and
    CoordinatorClosed after giving up: the background recovery, or the next recover, continues.
    """
    reason = ""
    for wait_s in waits_s():
        try:
            commit_once(participant, xid, receipt, is_repeated=bool(reason))
        except Unreachable as error:
            if _is_closed(error):
                raise _given_up(participant, xid) from error
            if str(error) != reason:
                reason = str(error)
                log.warning("decided commit waits xid=%s reason=%s", xid, reason)
        else:
            break
        if wait(wait_s):
            raise _given_up(participant, xid)
    if reason:
        log.info("decided commit went through xid=%s participant=%s", xid, participant.name)


def _given_up(participant: Finishable, xid: Xid) -> CoordinatorClosed:
    return CoordinatorClosed(
        f"transaction {xid.gtrid.decode()} is decided and will commit, but {participant.name} has not confirmed: "
        "recover() at the next start, or a resolver, tells it"
    )


def _is_closed(error: BaseException | None) -> bool:
    """True if *error* comes from a closed client, so that retries are useless."""
    while error is not None and not isinstance(error, ClientClosed):
        error = error.__cause__
    return error is not None


def commit_once(participant: Finishable, xid: Xid, receipt: str, *, is_repeated: bool) -> bool:
    """Commit the decided *xid* at *participant*; return False if it had been committed before.

    *is_repeated*: an earlier attempt got no answer. Raises Unreachable, HeuristicOutcome.
    """
    try:
        participant.commit(xid)
    except BranchUnknown:
        check_committed(participant, xid, receipt, is_repeated=is_repeated)
        if not is_repeated:
            log.warning(
                "branch was already committed, not by this coordinator xid=%s participant=%s", xid, participant.name
            )
        return False
    return True


def check_committed(participant: Finishable, xid: Xid, receipt: str, *, is_repeated: bool) -> None:
    """Check that the decided *xid*, which *participant* does not hold as prepared, was committed.

    Raises Unreachable, and HeuristicOutcome for any other outcome.
    """
    match participant.outcome(xid, receipt):
        case BranchEnd.COMMITTED:
            return
        case BranchEnd.NOT_SUPPORTED if is_repeated:
            return  # committed by the attempt whose answer was lost, and forgotten, in X/Open's terms
        case BranchEnd.NOT_ENDED:
            raise Unreachable(participant.name, f"it held no prepared branch of {xid}, and holds it now")
        case BranchEnd.ROLLED_BACK as ended:
            answer = "rolled back before, not by this coordinator"
        case ended:
            answer = f"{ended.value}: another operator or resolver finished it, or it is lost"
    raise HeuristicOutcome(xid, participant.name, "commit", answer, ended)
