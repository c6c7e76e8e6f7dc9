"""Metrics and health of a resolver. Read on any thread."""

import functools
from collections.abc import Iterator
from typing import Final

from meta_client.admin.families import Family, MetricKind, Sample
from meta_client.admin.health import Health
from meta_client.admin.server import AdminServer
from meta_client.admin.serving import serve_samples
from meta_client.transactions.resolver import Resolver

C, G = MetricKind.COUNTER, MetricKind.GAUGE

BRANCHES: Final = Family("metaq_resolver_branches_total", C, "Branches of others that it ended.", ("outcome",))
HAZARDS: Final = Family(
    "metaq_resolver_hazards_total", C, "Transactions whose row and message may differ: see metaq txn ledger."
)
ROWS_DELETED: Final = Family("metaq_resolver_rows_deleted_total", C, "Rows of finished transactions.")
FAILED: Final = Family("metaq_resolver_failed_passes_total", C, "Passes that did not reach the database.")
WAITING: Final = Family("metaq_resolver_branches_waiting", G, "Prepared branches that the last pass saw.")
WAITING_AGE: Final = Family(
    "metaq_resolver_branches_waiting_oldest_age_seconds",
    G,
    "Time since it first saw the oldest of these; absent without one.",
)
UNREACHABLE: Final = Family("metaq_resolver_unreachable", G, "Databases and brokers that did not answer it.")
LAST_PASS: Final = Family(
    "metaq_resolver_last_pass_age_seconds", G, "Time since the last pass ended; absent before the first."
)
PASS_S_MAX: Final = 30.0  # exceeds the wait for any single answer
FAMILIES: Final = tuple(value for value in list(globals().values()) if isinstance(value, Family))


def serve_resolver_admin(resolver: Resolver, port: int, interval_s: float) -> AdminServer:
    """Serve metrics and health of *resolver*, which makes a pass every *interval_s*, on 127.0.0.1 until the server is
    closed. Raises CannotServe."""
    check = functools.partial(ready, resolver, interval_s)
    return serve_samples(functools.partial(samples, resolver), check, port)


def ready(resolver: Resolver, interval_s: float) -> Health:
    """Return whether the last pass, moments ago, reached the database and every broker."""
    if (age_s := resolver.last_pass_age_s) is None:
        return Health(("it has not looked yet",))
    if age_s > interval_s + PASS_S_MAX:
        waits = f"it has ended no pass for {age_s:.0f} s: it waits for the database or a broker, or ends thousands"
        return Health((waits, *resolver.unreachable))
    return Health(resolver.unreachable)


def samples(resolver: Resolver) -> Iterator[Sample]:
    counts, age_s = resolver.counts, resolver.last_pass_age_s
    yield Sample(BRANCHES, counts.resolved_committed, ("committed",))
    yield Sample(BRANCHES, counts.resolved_rolled_back, ("rolled_back",))
    yield Sample(HAZARDS, counts.hazards)
    yield Sample(ROWS_DELETED, counts.rows_deleted)
    yield Sample(FAILED, counts.errors)
    yield Sample(LAST_PASS, age_s)
    if age_s is not None:
        yield Sample(WAITING, resolver.waiting)
        yield Sample(WAITING_AGE, resolver.waiting_oldest_age_s)
        yield Sample(UNREACHABLE, len(resolver.unreachable))
