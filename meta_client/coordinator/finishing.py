"""Carrying out a decision: a commit that was decided is asked for until it is done.

The wait between attempts doubles up to a bound. A state is logged once: when the waiting begins, when its reason
changes, when it ends.
"""

import logging
import random
from collections.abc import Callable, Iterator
from typing import Protocol

from journal.xid import Xid
from meta_client.coordinator.errors import BranchUnknown, CoordinatorClosed, HeuristicOutcome, Unreachable
from meta_client.coordinator.participants import Ended
from meta_client.errors import ClientClosed

log = logging.getLogger(__name__)

WAIT_S_FIRST = 0.02  # a broker that is being restarted answers within a second: don't add to it
WAIT_S_MAX = 2.0  # an outage of minutes costs a question every two seconds


class Closing(Protocol):
    """Whether the coordinator is being closed: a threading.Event, or what stands for one in a loop."""

    def set(self) -> None: ...

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> bool:
        """Wait so many seconds, or until it is set; whether it is."""


class Finishable(Protocol):
    """What committing takes of a Participant."""

    @property
    def name(self) -> str: ...

    def commit(self, xid: Xid) -> None: ...

    def outcome(self, xid: Xid, receipt: str) -> Ended: ...


def waits_s() -> Iterator[float]:
    """How long to wait before each further attempt, in seconds; spread, so that threads don't ask in step."""
    wait_s = WAIT_S_FIRST
    while True:
        yield wait_s * random.uniform(0.5, 1.0)  # noqa: S311 - nothing secret about it
        wait_s = min(wait_s * 2, WAIT_S_MAX)


def commit_until_done(participant: Finishable, xid: Xid, receipt: str, rest: Callable[[float], bool]) -> None:
    """Commit the decided *xid* at *participant*; returns once it is committed there, however long that takes.

    *rest* waits so many seconds before the next attempt; True: give up. Raises HeuristicOutcome, and CoordinatorClosed
    when it gives up: the resolver, or the next recover, goes on.
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
        if rest(wait_s):
            raise _given_up(participant, xid)
    if reason:
        log.info("decided commit went through xid=%s participant=%s", xid, participant.name)


def _given_up(participant: Finishable, xid: Xid) -> CoordinatorClosed:
    return CoordinatorClosed(
        f"transaction {xid.gtrid.decode()} is decided and will commit, but {participant.name} has not heard of it yet, "
        "and nobody waits any longer: recover() at the next start, or a resolver, tells it"
    )


def _is_closed(error: BaseException | None) -> bool:
    """Whether *error* comes from a client that was closed, which no repetition mends."""
    while error is not None and not isinstance(error, ClientClosed):
        error = error.__cause__
    return error is not None


def commit_once(participant: Finishable, xid: Xid, receipt: str, *, is_repeated: bool) -> bool:
    """Commit the decided *xid* at *participant*; False: it had been committed before.

    *is_repeated*: an attempt before this one got no answer. Raises Unreachable, HeuristicOutcome.
    """
    try:
        participant.commit(xid)
    except BranchUnknown:
        check_committed(participant, xid, receipt, is_repeated=is_repeated)
        if not is_repeated:
            log.warning("branch had been committed by somebody else xid=%s participant=%s", xid, participant.name)
        return False
    return True


def check_committed(participant: Finishable, xid: Xid, receipt: str, *, is_repeated: bool) -> None:
    """Ask how the decided *xid* ended at *participant*, which does not hold it as prepared.

    Raises Unreachable, and HeuristicOutcome unless it says that it was committed.
    """
    match participant.outcome(xid, receipt):
        case Ended.COMMITTED:
            return
        case Ended.UNTOLD if is_repeated:
            return  # X/Open's way to say so: it was committed by the attempt whose answer got lost, and is over
        case Ended.NOT_ENDED:
            raise Unreachable(participant.name, f"it held no prepared branch of {xid}, and holds it now")
        case Ended.ROLLED_BACK as ended:
            answer = "rolled back before, by somebody else"
        case ended:
            answer = f"{ended.value}: it was finished by somebody else, or lost"
    raise HeuristicOutcome(xid, participant.name, "commit", answer, ended)
