"""The result of an audit. Pure values: safe to keep, to compare, to send and to print."""

from dataclasses import dataclass
from enum import Enum
from typing import Final

CLAIMS: Final = {
    "records": "every record reads back as it was written",
    "frames": "every message reads back, and none is uncounted",
    "offsets": "every offset of every partition is taken exactly once",
    "outcomes": "every branch ends at most once and publishes exactly what was put",
    "checkpoints": "every checkpoint says what the records below it add up to",
}


class AuditVerdict(Enum):
    """Verdict of a check. UNPROVEN: bytes that do not read back may explain all its findings."""

    HOLDS = "holds"
    FAILS = "FAILS"
    UNPROVEN = "unproven"


@dataclass(frozen=True, slots=True)
class Example:
    """One finding. *subject* and *detail* make a sentence; *lsn* is its place in the journal."""

    problem: str
    lsn: int
    subject: str
    detail: str

    def __str__(self) -> str:
        return f"{self.subject} {self.detail}"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check. *judged*: what it examined, as in "12 branches". *counts*: findings by problem, including
    those that corruption may explain, *unproven* in number. *examples*: the first few in LSN order, proven ones
    first."""

    name: str
    claim: str
    judged: str
    counts: dict[str, int]
    unproven: int
    examples: tuple[Example, ...]

    @property
    def failures(self) -> int:
        return sum(self.counts.values()) - self.unproven

    @property
    def verdict(self) -> AuditVerdict:
        if self.failures:
            return AuditVerdict.FAILS
        return AuditVerdict.UNPROVEN if self.unproven else AuditVerdict.HOLDS

    @property
    def holds(self) -> bool:
        return self.verdict is AuditVerdict.HOLDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Totals of the journal. *messages*: those that consumers see; branches are counted over all of it."""

    records: int
    segments: int
    bytes: int
    first_lsn: int
    end_lsn: int
    partitions: int
    messages: int
    branches: int
    prepared: int
    committed: int
    rolled_back: int
    in_doubt: int  # prepared, undecided
    active: int  # neither
    checkpoints: int


@dataclass(frozen=True, slots=True)
class AuditReport:
    """The audit of one directory."""

    path: str
    checks: tuple[CheckResult, ...]
    totals: Totals

    @property
    def holds(self) -> bool:
        return all(check.holds for check in self.checks)

    def check(self, name: str) -> CheckResult:
        """Return a check by name. Raises KeyError."""
        for check in self.checks:
            if check.name == name:
                return check
        raise KeyError(name)

    @property
    def sentence(self) -> str:
        """Return the result in one sentence."""
        totals = self.totals
        over = f"{totals.records:,} records, {totals.messages:,} messages, {totals.branches:,} branches"
        if self.holds:
            doubt = f"; {totals.in_doubt:,} branches are in doubt" if totals.in_doubt else ""
            return f"Nothing is lost and nothing is doubled: all {len(self.checks)} checks hold over {over}{doubt}."
        parts = []
        for verdict, verb in ((AuditVerdict.FAILS, "failed"), (AuditVerdict.UNPROVEN, "unproven")):
            if names := [check.name for check in self.checks if check.verdict is verdict]:
                parts.append(f"{verb}: {', '.join(names)}")
        return f"This journal is NOT proven whole ({'; '.join(parts)}) over {over}: keep a copy before anything else."

    def as_json(self) -> dict[str, object]:
        """Return plain values: the output of `metaq audit --json`."""
        totals = self.totals
        return {
            "path": self.path,
            "holds": self.holds,
            "sentence": self.sentence,
            "totals": {name: getattr(totals, name) for name in totals.__slots__},
            "checks": [
                {
                    "name": check.name,
                    "verdict": check.verdict.value.lower(),
                    "holds": check.holds,
                    "claim": check.claim,
                    "judged": check.judged,
                    "failures": check.failures,
                    "unproven": check.unproven,
                    "counts": check.counts,
                    "examples": [
                        {"problem": one.problem, "lsn": one.lsn, "subject": one.subject, "detail": one.detail}
                        for one in check.examples
                    ],
                }
                for check in self.checks
            ],
        }
