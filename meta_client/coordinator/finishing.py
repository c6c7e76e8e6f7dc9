"""Carrying out a decision: a commit that was decided is asked for until it is done.

The wait between attempts doubles up to a bound. A state is logged once: when the waiting begins, when its reason
changes, when it ends.
"""

import logging
import random
from collections.abc import Iterator
from typing import Protocol

from journal.xid import Xid
from meta_client.coordinator.errors import BranchUnknown, CoordinatorClosed, Unreachable
from meta_client.coordinator.participants import Participant

log = logging.getLogger(__name__)

WAIT_S_FIRST = 0.02  # a broker that is being restarted answers within a second: don't add to it
WAIT_S_MAX = 2.0  # an outage of minutes costs a question every two seconds


class Closing(Protocol):
    """Whether the coordinator is being closed: a threading.Event, or what stands for one in a loop."""

    def set(self) -> None: ...

    def is_set(self) -> bool: ...

    def wait(self, timeout: float | None = None) -> bool:
        """Wait so many seconds, or until it is set; whether it is."""


def waits_s() -> Iterator[float]:
    """How long to wait before each further attempt, in seconds; spread, so that threads don't ask in step."""
    wait_s = WAIT_S_FIRST
    while True:
        yield wait_s * random.uniform(0.5, 1.0)  # noqa: S311 - nothing secret about it
        wait_s = min(wait_s * 2, WAIT_S_MAX)


def commit_until_done(participant: Participant, xid: Xid, closing: Closing) -> None:
    """Commit the decided *xid* at *participant*; returns once it is committed there, however long that takes.

    Raises HeuristicOutcome, and CoordinatorClosed when *closing* is set: the next recover goes on.
    """
    reason = ""
    for wait_s in waits_s():
        try:
            participant.commit(xid)
        except BranchUnknown:
            # After a decision it means: committed already, by an attempt whose answer was lost.
            if not reason:
                log.warning("branch was finished by somebody else xid=%s participant=%s", xid, participant.name)
            break
        except Unreachable as error:
            if str(error) != reason:
                reason = str(error)
                log.warning("decided commit waits xid=%s reason=%s", xid, reason)
        else:
            break
        if closing.wait(wait_s):
            raise CoordinatorClosed(
                f"transaction {xid.gtrid.decode()} is decided and will commit, but {participant.name} has not heard "
                f"of it before the coordinator was closed: run recover() at the next start"
            )
    if reason:
        log.info("decided commit went through xid=%s participant=%s", xid, participant.name)
