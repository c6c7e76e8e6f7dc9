"""Finishes transactions in doubt after a crash: commits decided ones, rolls back all others.

Restartable: every request may be repeated, so a crash in here is repaired by running again. One stuck branch delays no
other.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from journal.records.xid import Xid
from meta_client.coordinator.decision_log import DecisionLog
from meta_client.coordinator.errors import CoordinatorError, HeuristicOutcome, ParticipantEnd, Unreachable
from meta_client.coordinator.in_flight import InFlight
from meta_client.coordinator.participants import BranchEnd, Participant
from meta_client.coordinator.phase_two import check_committed, commit_once
from meta_client.coordinator.receipts import Receipts

log = logging.getLogger(__name__)


class Action(Enum):
    """Action of recovery on a transaction, done or tried."""

    COMMIT = "commit"
    ROLL_BACK = "roll back"


@dataclass(frozen=True, slots=True)
class RecoveredTransaction:
    """Recovery's report on one transaction. *problem*: the reason why it is not finished, or None."""

    xid: Xid
    action: Action
    done: tuple[str, ...]  # one entry per participant, as in "the broker: committed"
    problem: str | None = None
    is_hazard: bool = False  # the problem needs repair by hand: retries are useless

    def __str__(self) -> str:
        outcome = f"NOT FINISHED: {self.problem}" if self.problem else "finished"
        return f"{self.xid.gtrid.decode(errors='replace')}: {self.action.value}: {', '.join(self.done)}: {outcome}"


def recover(
    decisions: DecisionLog,
    in_flight: InFlight,
    databases: Sequence[Participant],
    brokers: Sequence[Participant],
    *,
    told: dict[Xid, str] | None = None,
) -> list[RecoveredTransaction]:
    """List prepared branches everywhere, then finish those of this log that are not in flight; one report a
    transaction.

    Raises Unreachable if a participant can't list; nothing was changed then. With *told*, such participants are skipped
    instead, and problems logged before are not logged again.
    """
    # Transactions in flight at any moment from here on are left alone. So the decisions and the lists are about
    # transactions that have ended before: their prepares are over, and their decisions are in the log.
    with in_flight.watch() as seen:
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
            if xid in seen or not decisions.name.owns(xid):  # its owner, or another coordinator, ends it
                if decisions.name.is_namesake(xid):
                    log.warning("prepared branch of another log left alone xid=%s", xid)
                continue
            if xid in decided:
                report = _commit(xid, Receipts.parse(decided[xid]), sides, holders.get(xid, []))
                if report.problem is None:
                    decisions.forget(xid)
            else:  # no durable decision, so no commit was sent: presumed abort
                report = _roll_back(xid, holders[xid])
            if report.problem is None:
                log.info("recovered %s", report)
            elif told is None or told.get(xid) != report.problem:
                log.error("not recovered %s", report)
            if told is not None:
                told[xid] = report.problem or ""
            reports.append(report)
    _settle(in_flight, asked, holders, reports)
    return reports


def _commit(
    xid: Xid, receipts: Receipts, sides: Sequence[Sequence[Participant]], holders: Sequence[Participant]
) -> RecoveredTransaction:
    """Commit the database first, then the broker, so that messages appear after their rows."""
    done: list[str] = []
    ended: list[ParticipantEnd] = []
    for receipt, candidates in zip((receipts.database, receipts.broker), sides, strict=True):
        reached = [participant for participant in candidates if participant.reaches(receipt)]
        if not reached:
            return RecoveredTransaction(
                xid, Action.COMMIT, tuple(done), f"{receipt} was not asked: recover with it at hand"
            )
        # Not listed, so it has ended; it had prepared, since the decision precedes the listing.
        one = next((participant for participant in reached if participant in holders), reached[0])
        try:
            if one in holders:
                is_news = commit_once(one, xid, receipt, is_repeated=False)
            else:
                check_committed(one, xid, receipt, is_repeated=False)
                is_news = False
        except HeuristicOutcome as error:
            if not ended:  # the first one: the other is unchanged
                ended += [(other.name, BranchEnd.NOT_ENDED) for other in holders if other.name != one.name][:1]
            problem = error.beside(*ended)
            return RecoveredTransaction(xid, Action.COMMIT, tuple(done), str(problem), is_hazard=True)
        except CoordinatorError as error:
            return RecoveredTransaction(xid, Action.COMMIT, tuple(done), str(error))
        done.append(f"{one.name}: committed" if is_news else f"{one.name}: committed before")
        ended.append((one.name, BranchEnd.COMMITTED))
    return RecoveredTransaction(xid, Action.COMMIT, tuple(done))


def _roll_back(xid: Xid, holders: Iterable[Participant]) -> RecoveredTransaction:
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
    # Two producers of one qualifier list the same branch: log it once.
    done = list(dict.fromkeys(done))
    return RecoveredTransaction(xid, Action.ROLL_BACK, tuple(done), "; ".join(problems) or None, is_hazard=is_hazard)


def _settle(
    in_flight: InFlight,
    asked: Sequence[Participant],
    holders: Mapping[Xid, Sequence[Participant]],
    reports: Iterable[RecoveredTransaction],
) -> None:
    """End a pending rollback once it is done, or once its branch is unlisted and can't appear any more."""
    problems = {report.xid: report.problem for report in reports}
    for rollback in in_flight.pending_rollbacks():
        if not any(participant.reaches(rollback.resource_id) for participant in asked):
            continue
        is_listed = any(participant.reaches(rollback.resource_id) for participant in holders.get(rollback.xid, ()))
        if problems.get(rollback.xid, "left alone") is None if is_listed else in_flight.is_past_late_prepare(rollback):
            in_flight.remove_rollback(rollback)
