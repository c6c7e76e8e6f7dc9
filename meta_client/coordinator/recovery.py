"""Finishing what a crash left in doubt: decided transactions are committed, all others rolled back.

Restartable: every question may be asked again, so that a crash in here is repaired by running it again. One branch
that can't be finished holds up no other.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from journal.xid import Xid
from meta_client.coordinator.decision_log import DecisionLog
from meta_client.coordinator.errors import CoordinatorError, HeuristicOutcome, Side, Unreachable
from meta_client.coordinator.finishing import check_committed, commit_once
from meta_client.coordinator.flight import Flight
from meta_client.coordinator.participants import Ended, Participant
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
    is_hazard: bool = False  # the problem is one for a person: asking again will not mend it

    def __str__(self) -> str:
        outcome = f"NOT FINISHED: {self.problem}" if self.problem else "finished"
        return f"{self.xid.gtrid.decode(errors='replace')}: {self.action.value}: {', '.join(self.done)}: {outcome}"


def recover(
    decisions: DecisionLog,
    flight: Flight,
    databases: Sequence[Participant],
    brokers: Sequence[Participant],
    *,
    told: dict[Xid, str] | None = None,
) -> list[Recovered]:
    """Ask every participant what it holds, then finish what is ours and not in flight; one report a transaction.

    Raises Unreachable when a participant can't even list; nothing was changed then. With *told*, whoever can't list is
    left out instead, and a problem that was told before is not logged again.
    """
    # What is in flight at any moment from here on is left alone. So what the decisions and the lists say is about
    # transactions that have come to rest before: their prepares are over, and their decisions are in the log.
    with flight.watched() as seen:
        decided = decisions.unfinished()
        holders: dict[Xid, list[Participant]] = {}
        asked: list[Participant] = []
        for participant in (*databases, *brokers):
            try:
                listed = participant.prepared()
            except Unreachable as error:
                if told is None:
                    raise
                log.debug("not recovered from reason=%s", error)
                continue
            asked.append(participant)
            for xid in listed:
                holders.setdefault(xid, []).append(participant)
        sides = [[one for one in side if one in asked] for side in (databases, brokers)]
        reports = []
        for xid in decided | dict.fromkeys(holders, ""):
            action = action_for(is_ours=decisions.name.owns(xid), is_in_flight=xid in seen, is_decided=xid in decided)
            if action is Action.LEAVE:
                if decisions.name.is_namesake(xid):
                    log.warning("prepared branch of another log left alone xid=%s", xid)
                continue
            if action is Action.COMMIT:
                report = _commit(xid, Where.parse(decided[xid]), sides, holders.get(xid, []))
                if report.problem is None:
                    decisions.forget(xid)
            else:
                report = _roll_back(xid, holders[xid])
            if report.problem is None:
                log.info("recovered %s", report)
            elif told is None or told.get(xid) != report.problem:
                log.error("not recovered %s", report)
            if told is not None:
                told[xid] = report.problem or ""
            reports.append(report)
    _settle(flight, asked, holders, reports)
    return reports


def _commit(
    xid: Xid, where: Where, sides: Sequence[Sequence[Participant]], holders: Sequence[Participant]
) -> Recovered:
    """The database first, as always: a broker hears of it once the rows are visible."""
    done: list[str] = []
    ended: list[Side] = []
    for receipt, candidates in zip((where.database, where.broker), sides, strict=True):
        reached = [participant for participant in candidates if participant.reaches(receipt)]
        if not reached:
            return Recovered(xid, Action.COMMIT, tuple(done), f"nobody asked {receipt}: recover with it at hand")
        # Not listed: whatever it ended as, it had prepared, since it was decided before anybody was asked.
        one = next((participant for participant in reached if participant in holders), reached[0])
        try:
            if one in holders:
                is_news = commit_once(one, xid, receipt, is_repeated=False)
            else:
                check_committed(one, xid, receipt, is_repeated=False)
                is_news = False
        except HeuristicOutcome as error:
            if not ended:  # the first: the other one has not heard of anything
                ended += [(other.name, Ended.NOT_ENDED) for other in holders if other.name != one.name][:1]
            problem = error.beside(*ended)
            return Recovered(xid, Action.COMMIT, tuple(done), str(problem), is_hazard=True)
        except CoordinatorError as error:
            return Recovered(xid, Action.COMMIT, tuple(done), str(error))
        done.append(f"{one.name}: committed" if is_news else f"{one.name}: committed before")
        ended.append((one.name, Ended.COMMITTED))
    return Recovered(xid, Action.COMMIT, tuple(done))


def _roll_back(xid: Xid, holders: Iterable[Participant]) -> Recovered:
    done: list[str] = []
    problems: list[str] = []
    is_hazard = False
    for participant in holders:
        try:
            participant.rollback(xid)
        except CoordinatorError as error:
            problems.append(str(error))
            is_hazard |= isinstance(error, HeuristicOutcome)
        else:
            done.append(f"{participant.name}: rolled back")
    # Two producers of one qualifier list the same branch: said once.
    done = list(dict.fromkeys(done))
    return Recovered(xid, Action.ROLL_BACK, tuple(done), "; ".join(problems) or None, is_hazard=is_hazard)


def _settle(
    flight: Flight,
    asked: Sequence[Participant],
    holders: Mapping[Xid, Sequence[Participant]],
    reports: Iterable[Recovered],
) -> None:
    """A pending rollback is over once it is done, or once its branch is not listed and can't appear any more."""
    problems = {report.xid: report.problem for report in reports}
    for debt in flight.debts():
        if not any(participant.reaches(debt.where) for participant in asked):
            continue
        is_listed = any(participant.reaches(debt.where) for participant in holders.get(debt.xid, ()))
        if problems.get(debt.xid, "left alone") is None if is_listed else flight.is_certain(debt):
            flight.pay(debt)
