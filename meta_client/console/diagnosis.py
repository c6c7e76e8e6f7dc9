"""The doctor's verdicts for pages, and the part of them that is certain carried out: `metaq txn doctor`, on request.

Where anything is prepared a diagnosis takes as long as the age below which a transaction is left to its own process.
"""

import contextlib
import time
from dataclasses import dataclass
from typing import Any, Final

from journal.records.xid import XaKey
from meta_client.console.reads import Reads, Unknown
from meta_client.console.settings import ConsoleSettings
from meta_client.doctor.advice import advice_on
from meta_client.doctor.applier import Applied, apply, record_finding, verbs_of
from meta_client.doctor.cases import Case, Side, cases_of
from meta_client.doctor.evidence import problems
from meta_client.doctor.rows import row_of
from meta_client.doctor.sources import gather

EXTRA_S: Final = 60.0  # beyond the age, for the answers of many sides
NOT_THE_SAME: Final = "the verdict is another one than was confirmed: look again"


@dataclass(frozen=True, slots=True)
class DiagnosedSide:
    """One side of a transaction. *row*: as `metaq txn doctor --json` has it."""

    side: Side
    row: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Diagnosed:
    case: Case
    sides: tuple[DiagnosedSide, ...]

    @property
    def seen(self) -> str:
        """Verdicts in one line, by which a confirmed diagnosis is compared with a later one."""
        said = [f"{self.case.decision.said.value}"]
        said += sorted(f"{one.side.place}={one.side.answer.said.value}={one.side.verdict.value}" for one in self.sides)
        return "; ".join(said)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Every transaction that some side knows and that is not over, and the sides that could not be asked."""

    cases: tuple[Diagnosed, ...]
    problems: tuple[tuple[str, str], ...]

    def of(self, broker_id: int, key: XaKey) -> Diagnosed | None:
        return next((one for one in self.cases if any(each.side.at == (broker_id, key) for each in one.sides)), None)


async def read_diagnosis(settings: ConsoleSettings, reads: Reads) -> Diagnosis | Unknown:
    """Ask every side. Requests at the same time share one diagnosis."""
    return await reads.call("diagnosis", lambda: diagnose(settings), settings.age_s + EXTRA_S)


def diagnose(settings: ConsoleSettings) -> Diagnosis:
    """Ask every side. Blocks. Raises ZooKeeperError."""
    found = gather(settings.client, settings.databases, settings.logs, settings.age_s, contextlib.nullcontext)
    now_ms = time.time_ns() // 1_000_000
    cases = []
    for case in cases_of(found, now_ms, settings.age_s):
        if not case.is_over:
            rows = (row_of(case, side, advice_on(case, side, settings.doctor), now_ms) for side in case.sides)
            cases.append(Diagnosed(case, tuple(map(DiagnosedSide, case.sides, rows))))
    return Diagnosis(tuple(cases), tuple(problems(found)))


def apply_certain(settings: ConsoleSettings, broker_id: int, key: XaKey, seen: str) -> list[Applied] | Unknown:
    """Diagnose again, and do what is certain of the transaction with this branch, as `metaq txn doctor --apply` does.

    Unknown if the verdicts are not *seen*, which was confirmed: then nothing was changed. Blocks."""
    found = diagnose(settings).of(broker_id, key)
    if found is None or found.seen != seen:
        return Unknown(NOT_THE_SAME)
    return list(apply(found.case, verbs_of(settings.client)))


def put_on_record(settings: ConsoleSettings, broker_id: int, key: XaKey, seen: str) -> Applied | Unknown:
    """Diagnose again, and put this branch, mixed or hazardous, on its broker's ledger.

    Unknown as in apply_certain. Blocks."""
    found = diagnose(settings).of(broker_id, key)
    if found is None or found.seen != seen:
        return Unknown(NOT_THE_SAME)
    (one,) = (one for one in found.sides if one.side.at == (broker_id, key))
    if not one.side.may_be_noted:
        return Unknown("nothing about it belongs on the ledger, or it is there already")
    return record_finding(found.case, one.side, settings.who, one.row["reason"], verbs_of(settings.client))
