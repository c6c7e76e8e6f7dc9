"""Finishing what a crash left in doubt: decided transactions are committed, all others rolled back.

Restartable: every question may be asked again, so that a crash in here is repaired by running it again. One branch
that can't be finished holds up no other.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from journal.xid import Xid
from meta_client.coordinator.decision_log import DecisionLog
from meta_client.coordinator.errors import BranchUnknown, CoordinatorError, HeuristicOutcome
from meta_client.coordinator.flight import Flight
from meta_client.coordinator.participants import Participant
from meta_client.coordinator.verdicts import Action, action_for
from meta_client.coordinator.where import Where

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Recovered:
    """What recovery did about one transaction. *problem* says why it is not finished, None once it is."""

    xid: Xid
    action: Action
    done: tuple[str, ...]  # one entry a participant, as in "the broker: committed"
    problem: str | None = None

    def __str__(self) -> str:
        outcome = f"NOT FINISHED: {self.problem}" if self.problem else "finished"
        return f"{self.xid.gtrid.decode(errors='replace')}: {self.action.value}: {', '.join(self.done)}: {outcome}"


def recover(
    decisions: DecisionLog, flight: Flight, databases: Sequence[Participant], brokers: Sequence[Participant]
) -> list[Recovered]:
    """Ask every participant what it holds, then finish what is ours and not in flight; one report a transaction.

    Raises Unreachable when a participant can't even list; nothing was changed then.
    """
    holders: dict[Xid, list[Participant]] = {}
    for participant in (*databases, *brokers):
        for xid in participant.prepared():
            holders.setdefault(xid, []).append(participant)
    # In this order: a transaction that ends between the listing and here is refused by its participants as unknown,
    # which is harmless; one that begins in between was not listed. The other way round it would be rolled back.
    in_flight = flight.in_flight()
    decided = decisions.unfinished()
    reports = []
    for xid in decided | dict.fromkeys(holders, ""):
        action = action_for(is_ours=decisions.name.owns(xid), is_in_flight=xid in in_flight, is_decided=xid in decided)
        if action is Action.LEAVE:
            if decisions.name.is_namesake(xid):
                log.warning("prepared branch of another log left alone xid=%s", xid)
            continue
        if action is Action.COMMIT:
            report = _commit(xid, Where.parse(decided[xid]), databases, brokers, holders.get(xid, []))
            if report.problem is None:
                decisions.forget(xid)
        else:
            report = _roll_back(xid, holders[xid])
        log.log(logging.INFO if report.problem is None else logging.ERROR, "recovered %s", report)
        reports.append(report)
    _settle(flight, (*databases, *brokers), reports)
    return reports


def _commit(
    xid: Xid,
    where: Where,
    databases: Sequence[Participant],
    brokers: Sequence[Participant],
    holders: Sequence[Participant],
) -> Recovered:
    """The database first, as always: a broker hears of it once the rows are visible."""
    done: list[str] = []
    for place, candidates in ((where.database, databases), (where.broker, brokers)):
        reached = [participant for participant in candidates if participant.reaches(place)]
        if not reached:
            return Recovered(xid, Action.COMMIT, tuple(done), f"nobody asked {place}: recover with it at hand")
        holding = [participant for participant in reached if participant in holders]
        try:
            if not holding:
                if reached[0].was_rolled_back(xid, place):
                    raise HeuristicOutcome(xid, reached[0].name, "commit", "rolled back before, by somebody else")
                done.append(f"{reached[0].name}: committed before")
                continue
            holding[0].commit(xid)
        except BranchUnknown:
            done.append(f"{holding[0].name}: committed before")
        except CoordinatorError as error:
            return Recovered(xid, Action.COMMIT, tuple(done), str(error))
        else:
            done.append(f"{holding[0].name}: committed")
    return Recovered(xid, Action.COMMIT, tuple(done))


def _roll_back(xid: Xid, holders: Iterable[Participant]) -> Recovered:
    done: list[str] = []
    problems: list[str] = []
    for participant in holders:
        try:
            participant.rollback(xid)
        except CoordinatorError as error:
            problems.append(str(error))
        else:
            done.append(f"{participant.name}: rolled back")
    # Two producers of one qualifier list the same branch: said once.
    return Recovered(xid, Action.ROLL_BACK, tuple(dict.fromkeys(done)), "; ".join(problems) or None)


def _settle(flight: Flight, participants: Iterable[Participant], reports: Iterable[Recovered]) -> None:
    """Rollbacks owed to a resource that has now been asked are paid, unless its report says otherwise."""
    still = {report.xid for report in reports if report.problem is not None}
    asked = list(participants)
    for debt in flight.debts():
        if debt.xid not in still and any(participant.reaches(debt.where) for participant in asked):
            flight.pay(debt)
