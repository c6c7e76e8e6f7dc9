"""Metrics and health of a relay. Read on any thread."""

import functools
from collections.abc import Iterator
from typing import Final

from meta_client.admin.families import Family, MetricKind, Sample
from meta_client.admin.health import Health
from meta_client.admin.server import AdminServer
from meta_client.admin.serving import serve_samples
from meta_client.outbox.relay import Relay

MOVED: Final = Family("metaq_outbox_messages_moved_total", MetricKind.COUNTER, "Messages that it moved to brokers.")
REFUSED: Final = Family(
    "metaq_outbox_messages_refused_total", MetricKind.COUNTER, "Messages that it set aside: see metaq outbox list."
)
FAILED: Final = Family(
    "metaq_outbox_failed_passes_total", MetricKind.COUNTER, "Passes that moved nothing: database or brokers away."
)
WAITING: Final = Family(
    "metaq_outbox_messages_waiting",
    MetricKind.GAUGE,
    "Messages that wait, seconds ago; above 100,000 estimated. Absent while not known.",
)
WAITING_AGE: Final = Family(
    "metaq_outbox_messages_waiting_oldest_age_seconds",
    MetricKind.GAUGE,
    "Age of the oldest of these by the database's clock; absent without one.",
)
ASIDE: Final = Family(
    "metaq_outbox_messages_set_aside", MetricKind.GAUGE, "Messages set aside at present; absent while not known."
)
LAST_PASS: Final = Family(
    "metaq_outbox_last_pass_age_seconds", MetricKind.GAUGE, "Time since its last pass ended; absent before the first."
)
PASS_S_MAX: Final = 30.0  # exceeds the wait for any single answer
FAMILIES: Final = (MOVED, REFUSED, FAILED, WAITING, WAITING_AGE, ASIDE, LAST_PASS)


def serve_relay_admin(relay: Relay, port: int) -> AdminServer:
    """Serve metrics and health of *relay* on 127.0.0.1 until the server is closed. Raises CannotServe."""
    return serve_samples(functools.partial(samples, relay), functools.partial(ready, relay), port)


def ready(relay: Relay) -> Health:
    """Return whether the last pass, moments ago, reached the database and the brokers, and every topic has one."""
    if (age_s := relay.last_pass_age_s) is None:
        return Health(("it has not looked yet",))
    if age_s > PASS_S_MAX:
        return Health((f"it has waited for {age_s:.0f} s, for the database or for a broker",))
    without = [f"messages of topic {topic} wait for a broker" for topic in relay.waiting_for]
    away = [f"messages wait for broker {broker_id}" for broker_id in relay.brokers_away]
    away += [f"messages of topic {topic} wait for broker {broker_id}" for topic, broker_id in relay.places_away]
    return Health((*((relay.trouble,) if relay.trouble else ()), *without, *away))


def samples(relay: Relay) -> Iterator[Sample]:
    counts = relay.counts
    yield Sample(MOVED, counts.moved)
    yield Sample(REFUSED, counts.refused)
    yield Sample(FAILED, counts.failed_passes)
    yield Sample(LAST_PASS, relay.last_pass_age_s)
    if (status := relay.status) is not None:
        yield Sample(WAITING, status.waiting)
        yield Sample(WAITING_AGE, relay.oldest_age_s)
        yield Sample(ASIDE, status.aside)
