"""The result of an audit. Pure values: safe to keep, to compare, to send and to print."""

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Final

CLAIMS: Final = {
    "records": "every record reads back as it was written",
    "frames": "every message reads back, and none is uncounted",
    "offsets": "every offset of every partition is taken exactly once",
    "identity": "no batch number and no message id is used twice",
    "outcomes": "every branch ends at most once and publishes exactly what was put",
    "checkpoints": "every checkpoint says what the records below it add up to",
    "range": "something vouches for where the journal begins, and how far it went at least",
    "indexes": "every partition's index points at its messages, and leaves none out (--indexes)",
    "archive": "the archive holds every segment that its manifest lists, unchanged",
}


class AuditVerdict(Enum):
    """Verdict of a check. UNPROVEN: bytes that do not read back may explain all its findings. UNKNOWN: nothing speaks
    against it, and nothing vouches for it."""

    HOLDS = "holds"
    FAILS = "FAILS"
    UNPROVEN = "unproven"
    UNKNOWN = "unknown"


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
class SourcedClaim:
    """A claim about LSNs [since, until), and its *source*: what vouches for it, or why nothing does."""

    claim: str
    since: int
    until: int
    source: str
    is_vouched: bool = True


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check. *judged*: what it examined, as in "12 branches". *counts*: findings by problem, including
    those that corruption may explain, *unproven* in number. *examples*: the first few in LSN order, proven ones
    first. *unknown*: what nothing vouches for, and should."""

    name: str
    claim: str
    judged: str
    counts: dict[str, int]
    unproven: int
    examples: tuple[Example, ...]
    unknown: tuple[str, ...] = ()

    @property
    def failures(self) -> int:
        return sum(self.counts.values()) - self.unproven

    @property
    def verdict(self) -> AuditVerdict:
        if self.failures:
            return AuditVerdict.FAILS
        if self.unproven:
            return AuditVerdict.UNPROVEN
        return AuditVerdict.UNKNOWN if self.unknown else AuditVerdict.HOLDS

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
    """The audit of one directory. *vouched_end*: LSN up to which no record can be missing; None: unknown."""

    path: str
    checks: tuple[CheckResult, ...]
    totals: Totals
    evidence: tuple[SourcedClaim, ...] = ()
    vouched_end: int | None = None

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
        totals = self.totals
        over = f"{totals.records:,} records, {totals.messages:,} messages, {totals.branches:,} branches"
        if self.holds:
            doubt = f"; {totals.in_doubt:,} branches are in doubt" if totals.in_doubt else ""
            return (
                f"Nothing is lost and nothing is doubled from LSN {totals.first_lsn} to LSN {self.vouched_end}: "
                f"all {len(self.checks)} checks hold over {over}{doubt}."
            )
        parts = []
        for verdict, verb in (
            (AuditVerdict.FAILS, "failed"),
            (AuditVerdict.UNPROVEN, "unproven"),
            (AuditVerdict.UNKNOWN, "unknown"),
        ):
            if names := [check.name for check in self.checks if check.verdict is verdict]:
                parts.append(f"{verb}: {', '.join(names)}")
        return f"This journal is NOT proven whole ({'; '.join(parts)}) over {over}: keep a copy before anything else."

    def as_json(self) -> dict[str, object]:
        """Return plain values: the output of `metaq audit --json`."""
        return {
            "path": self.path,
            "holds": self.holds,
            "sentence": self.sentence,
            "vouched_end": self.vouched_end,
            "evidence": [
                {
                    "claim": one.claim,
                    "since": one.since,
                    "until": one.until,
                    "source": one.source,
                    "vouched": one.is_vouched,
                }
                for one in self.evidence
            ],
            "totals": asdict(self.totals),
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
                    "unknown": list(check.unknown),
                    "examples": [asdict(one) for one in check.examples],
                }
                for check in self.checks
            ],
        }
