"""Questions that tests ask of an audit's report."""

from collections.abc import Callable
from pathlib import Path

from spark_jobs.audit.report import AuditReport, AuditVerdict

Audit = Callable[[Path], AuditReport]


def verdicts(report: AuditReport, verdict: AuditVerdict) -> set[str]:
    return {check.name for check in report.checks if check.verdict is verdict}
