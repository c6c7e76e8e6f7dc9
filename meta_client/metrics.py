"""Metrics of a client's consumers, for a registry of prometheus_client in the service's own process.

    REGISTRY.register(ClientCollector(client))

Consumers of one group in one client are added up: a registry must not export one time series twice.
"""

from collections.abc import Iterator
from operator import add
from typing import Final, Protocol

from meta_client.admin.families import Family, MetricKind, Sample, SampleCollector
from meta_client.consumer.consumer import Consumer
from meta_client.consumer.traffic import ConsumedTotals, PartitionLag

_TOPIC: Final = ("consumergroup", "topic")
_GROUP: Final = ("consumergroup",)
C, G = MetricKind.COUNTER, MetricKind.GAUGE

CONSUMERS: Final = Family("metaq_consumergroup_consumers", G, "Consumers of this client.", _GROUP)
PARTITIONS: Final = Family("metaq_consumergroup_partitions", G, "Partitions that they own.", _TOPIC)
LAG_BYTES: Final = Family(
    "metaq_consumergroup_lag_bytes", G, "Not delivered of these; absent while one is unknown.", _TOPIC
)
LAG_MESSAGES: Final = Family(
    "metaq_consumergroup_lag_messages",
    G,
    "The same in messages, as brokers count them once a second at most; absent as the bytes, and until they have.",
    _TOPIC,
)
LAG_SECONDS: Final = Family(
    "metaq_consumergroup_lag_seconds",
    G,
    "Time since everything of the partition furthest behind was delivered, or it was assigned; absent as the bytes.",
    _TOPIC,
)
MESSAGES: Final = Family(
    "metaq_consumergroup_messages_delivered_total",
    C,
    "Messages delivered by the consumers that are open, repetitions included.",
    _TOPIC,
)
BYTES: Final = Family("metaq_consumergroup_bytes_delivered_total", C, "The same in bytes, headers included.", _TOPIC)
SKIPPED: Final = Family(
    "metaq_consumergroup_bytes_skipped_total",
    C,
    "Deleted by retention before the group consumed them, at most; lag does not tell of them.",
    _TOPIC,
)
REBALANCES: Final = Family(
    "metaq_consumergroup_rebalances_total", C, "Rebalances of the consumers that are open.", _GROUP
)
FINDINGS: Final = Family(
    "metaq_consumergroup_findings", G, "What their watchdogs find now, as Consumer.findings() says.", _GROUP
)
FAMILIES: Final = tuple(value for value in list(globals().values()) if isinstance(value, Family))


class HasConsumers(Protocol):
    """A client, for threads or for tasks."""

    @property
    def consumers(self) -> tuple[Consumer, ...]:
        """The consumers that are not closed. Any thread."""


class ClientCollector(SampleCollector):
    """Collects the metrics of all consumers of *client*, meta_client's or meta_client.aio's, until that is closed.
    Any thread."""

    def __init__(self, client: HasConsumers) -> None:
        super().__init__(lambda: samples(client.consumers))


def samples(consumers: tuple[Consumer, ...]) -> Iterator[Sample]:
    """Yield the sums over the consumers of each group."""
    by_group: dict[str, list[Consumer]] = {}
    for consumer in consumers:
        by_group.setdefault(consumer.group, []).append(consumer)
    for group, members in by_group.items():
        yield Sample(CONSUMERS, len(members), (group,))
        yield Sample(REBALANCES, sum(_rebalances(member) for member in members), (group,))
        yield Sample(FINDINGS, sum(len(member.findings()) for member in members), (group,))
        by_topic: dict[str, list[PartitionLag]] = {}
        totals: dict[str, ConsumedTotals] = {}
        for member in members:
            for (topic, _), lag in member.lags().items():
                by_topic.setdefault(topic, []).append(lag)
                totals.setdefault(topic, ConsumedTotals())  # a counter's first increase shows only from a 0
            for topic, more in member.totals().items():
                totals[topic] = ConsumedTotals(*map(add, totals.get(topic, ConsumedTotals()), more))
        for topic, lags in by_topic.items():
            size = [lag.bytes for lag in lags if lag.bytes is not None]
            seconds = [lag.seconds for lag in lags if lag.seconds is not None]
            yield Sample(PARTITIONS, len(lags), (group, topic))
            yield Sample(LAG_BYTES, sum(size) if len(size) == len(lags) else None, (group, topic))
            messages = [lag.messages for lag in lags if lag.messages is not None]
            yield Sample(LAG_MESSAGES, sum(messages) if len(messages) == len(lags) else None, (group, topic))
            yield Sample(LAG_SECONDS, max(seconds) if len(seconds) == len(lags) else None, (group, topic))
        for topic, total in totals.items():
            yield Sample(MESSAGES, total.messages, (group, topic))
            yield Sample(BYTES, total.bytes, (group, topic))
            yield Sample(SKIPPED, total.skipped_bytes, (group, topic))


def _rebalances(consumer: Consumer) -> int:
    recent = consumer.rebalances()
    return recent[-1].number if recent else 0
