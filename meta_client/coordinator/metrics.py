"""Metrics of a coordinator, for a registry of prometheus_client in the service's own process.

REGISTRY.register(CoordinatorCollector(coordinator))
"""

from collections.abc import Iterator
from typing import Final, Protocol

from meta_client.admin.families import Family, MetricKind, Sample, SampleCollector
from meta_client.coordinator.recovery import Action
from meta_client.coordinator.status import CoordinatorStatus

_LABELS: Final = ("coordinator",)
C, G = MetricKind.COUNTER, MetricKind.GAUGE

OPEN: Final = Family("metaq_coordinator_transactions_open", G, "Transactions in progress.", _LABELS)
ENDED: Final = Family(
    "metaq_coordinator_transactions_total",
    C,
    "Transactions ended, as their own blocks saw it; left: decided, and recovery goes on; unknown: start again.",
    (*_LABELS, "outcome"),
)
DECIDED: Final = Family(
    "metaq_coordinator_decisions_unfinished",
    G,
    "Decisions to commit that a database or broker has not confirmed, of transactions in progress included.",
    _LABELS,
)
DECIDED_AGE: Final = Family(
    "metaq_coordinator_decisions_unfinished_oldest_age_seconds",
    G,
    "Time since the oldest of them, or since its log was compacted before this start; absent without one.",
    _LABELS,
)
ROLLBACKS: Final = Family(
    "metaq_coordinator_rollbacks_pending",
    G,
    "Rollbacks of this process that a database or broker has not confirmed: its branch may be prepared there.",
    _LABELS,
)
ROLLBACKS_AGE: Final = Family(
    "metaq_coordinator_rollbacks_pending_oldest_age_seconds",
    G,
    "Time since the oldest of them; absent without one.",
    _LABELS,
)
RECOVERED: Final = Family(
    "metaq_coordinator_recovered_total", C, "Transactions that recovery ended.", (*_LABELS, "outcome")
)
FAILED: Final = Family(
    "metaq_coordinator_recovery_failures_total", C, "Times that recovery could not end a transaction.", _LABELS
)
HAZARDS: Final = Family(
    "metaq_coordinator_hazards",
    G,
    "Transactions that recovery found ended otherwise on one side, and nobody has forgotten: mend them by hand.",
    _LABELS,
)
LOG_FAILED: Final = Family(
    "metaq_coordinator_log_failed", G, "1 once the decision log takes no more decisions.", _LABELS
)
FAMILIES: Final = tuple(value for value in list(globals().values()) if isinstance(value, Family))


class HasStatus(Protocol):
    """A coordinator, for threads or for tasks."""

    @property
    def name(self) -> str:
        """Prefix of every identifier that it creates."""

    def status(self) -> CoordinatorStatus:
        """Return what it has open, and what it has done. Any thread; reads no disk."""


class CoordinatorCollector(SampleCollector):
    """Collects the metrics of *coordinator*, meta_client.coordinator's or meta_client.aio's. Any thread."""

    def __init__(self, coordinator: HasStatus) -> None:
        super().__init__(lambda: samples(coordinator.name, coordinator.status()))


def samples(name: str, status: CoordinatorStatus) -> Iterator[Sample]:
    counts = status.counts
    yield Sample(OPEN, status.transactions_open, (name,))
    for outcome, count in counts.outcomes.items():
        yield Sample(ENDED, count, (name, outcome))
    yield Sample(DECIDED, status.decisions_unfinished, (name,))
    yield Sample(DECIDED_AGE, status.decisions_oldest_age_s, (name,))
    yield Sample(ROLLBACKS, status.rollbacks_pending, (name,))
    yield Sample(ROLLBACKS_AGE, status.rollbacks_oldest_age_s, (name,))
    yield Sample(RECOVERED, counts.recovered[Action.COMMIT], (name, "committed"))
    yield Sample(RECOVERED, counts.recovered[Action.ROLL_BACK], (name, "rolled_back"))
    yield Sample(FAILED, counts.recovery_failures, (name,))
    yield Sample(HAZARDS, counts.hazards, (name,))
    yield Sample(LOG_FAILED, status.is_log_failed, (name,))
