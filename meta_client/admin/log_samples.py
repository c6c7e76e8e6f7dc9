"""Samples of what a process logs, for every process with an admin port. Stands alone: all export them."""

from collections.abc import Iterator
from typing import Final

from meta_client.admin.families import Family, MetricKind, Sample
from meta_client.logs.counting import record_totals
from meta_client.logs.handler import lost_totals

RECORDS: Final = Family(
    "metaq_log_records_total", MetricKind.COUNTER, "Warnings and errors logged, also those left out.", ("level",)
)
LOST: Final = Family(
    "metaq_log_records_lost_total", MetricKind.COUNTER, "Records of any level that the log could not take.", ("log",)
)
FAMILIES: Final = (RECORDS, LOST)


def log_samples() -> Iterator[Sample]:
    """Yield the number of records of each level, and of those lost, if this process counts them. Any thread."""
    for level, count in record_totals().items():
        yield Sample(RECORDS, count, (level,))
    for kind, count in lost_totals().items():
        yield Sample(LOST, count, (kind,))
