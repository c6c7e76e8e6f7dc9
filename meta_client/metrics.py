"""Metrics of a client's consumers, for a registry of prometheus_client in the service's own process.

    REGISTRY.register(ClientCollector(client))

Consumers of one group in one client are added up: a registry must not export one time series twice.
"""

from collections.abc import Iterator
from typing import Final

from meta_client.admin.families import Family, MetricKind, Sample, SampleCollector
from meta_client.client import Client
from meta_client.consumer.consumer import Consumer

_TOPIC: Final = ("consumergroup", "topic")
_GROUP: Final = ("consumergroup",)

CONSUMERS: Final = Family("metaq_consumergroup_consumers", MetricKind.GAUGE, "Consumers of this client.", _GROUP)
PARTITIONS: Final = Family("metaq_consumergroup_partitions", MetricKind.GAUGE, "Partitions that they own.", _TOPIC)
LAG_BYTES: Final = Family(
    "metaq_consumergroup_lag_bytes", MetricKind.GAUGE, "Not delivered of these; absent while one is unknown.", _TOPIC
)
REBALANCES: Final = Family(
    "metaq_consumergroup_rebalances_total", MetricKind.COUNTER, "Rebalances of the consumers that are open.", _GROUP
)
FINDINGS: Final = Family(
    "metaq_consumergroup_findings",
    MetricKind.GAUGE,
    "What their watchdogs find now, as Consumer.findings() says.",
    _GROUP,
)
FAMILIES: Final = (CONSUMERS, PARTITIONS, LAG_BYTES, REBALANCES, FINDINGS)


class ClientCollector(SampleCollector):
    """Collects the metrics of all consumers of *client*, until that is closed."""

    def __init__(self, client: Client) -> None:
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
        by_topic: dict[str, list[int | None]] = {}
        for member in members:
            for (topic, _), lag in member.lag_bytes().items():
                by_topic.setdefault(topic, []).append(lag)
        for topic, lags in by_topic.items():
            known = [lag for lag in lags if lag is not None]
            yield Sample(PARTITIONS, len(lags), (group, topic))
            yield Sample(LAG_BYTES, sum(known) if len(known) == len(lags) else None, (group, topic))


def _rebalances(consumer: Consumer) -> int:
    recent = consumer.rebalances()
    return recent[-1].number if recent else 0
