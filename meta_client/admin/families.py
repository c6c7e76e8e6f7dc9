"""Metric families: tables that are exported and documented alike, and their form for prometheus_client."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from itertools import accumulate
from typing import Final, NamedTuple

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from journal.wal.histogram import HistogramSnapshot

# Between two pieces of a scrape: other threads take the interpreter, which a thread at work would keep for 5 ms.
PAUSE_S: Final = 0.0002


class MetricKind(StrEnum):
    """Prometheus' type of a metric."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    INFO = "info"


class Family(NamedTuple):
    """One metric. *name* as it is exported: with `_total` if it is a counter."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()


class Sample(NamedTuple):
    """One value of a family. None: unknown, and not exported."""

    family: Family
    value: float | HistogramSnapshot | Mapping[str, str] | None
    labels: tuple[str, ...] = ()


class SampleCollector(Collector):
    """Exports what *read* yields. Any thread; lets others have the interpreter meanwhile."""

    def __init__(self, read: Callable[[], Iterable[Sample]]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        by_family: dict[Family, list[Sample]] = {}
        for sample in self._read():
            if sample.value is not None:
                by_family.setdefault(sample.family, []).append(sample)
        for family, samples in by_family.items():
            yield _metric(family, samples)
            time.sleep(PAUSE_S)


def _metric(family: Family, samples: Iterable[Sample]) -> Metric:
    name, text, labels = family.name.removesuffix("_total").removesuffix("_info"), family.help, family.labels
    match family.kind:
        case MetricKind.COUNTER | MetricKind.GAUGE as kind:
            numbers = (CounterMetricFamily if kind is MetricKind.COUNTER else GaugeMetricFamily)(
                name, text, labels=labels
            )
            for sample in samples:
                assert isinstance(sample.value, int | float)
                numbers.add_metric(sample.labels, sample.value)
            return numbers
        case MetricKind.HISTOGRAM:
            histogram = HistogramMetricFamily(name, text, labels=labels)
            for sample in samples:
                assert isinstance(sample.value, HistogramSnapshot)
                bounds = [*map(floatToGoString, sample.value.bounds), "+Inf"]
                totals = accumulate(sample.value.counts)
                histogram.add_metric(sample.labels, list(zip(bounds, totals, strict=True)), sample.value.sum)
            return histogram
        case MetricKind.INFO:
            info = InfoMetricFamily(name, text)
            for sample in samples:
                assert isinstance(sample.value, Mapping)
                info.add_metric((), dict(sample.value))
            return info
