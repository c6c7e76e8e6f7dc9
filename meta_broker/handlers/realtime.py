"""Statistics of topics configured with stat = true, for `stats realtime` (spec 12.1). Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

RESET_S: Final = 1800.0  # the ancestor's period
TOPICS_MAX: Final = 1_000  # a pattern matches any name a client makes up; beyond, only the totals count


class Statistic(StrEnum):
    """Statistics, in display order."""

    PUT = "put"
    GET = "get"
    OFFSET = "offset"
    GET_MISS = "get_miss"
    PUT_FAILED = "put_failed"
    MESSAGE_SIZE = "message_size"


@dataclass(slots=True)
class _Sum:
    count: int = 0
    value: int = 0


class Realtime:
    """Counts since the last reset, which is automatic every half hour. Loop thread only."""

    def __init__(self, clock_s: Callable[[], float]) -> None:
        self._clock_s = clock_s
        self.reset()

    def reset(self) -> None:
        self._since = self._clock_s()
        self._totals: dict[Statistic, _Sum] = {}
        self._by_topic: dict[str, dict[Statistic, _Sum]] = {}

    def add(self, statistic: Statistic, topic: str, count: int = 1, value: int | None = None) -> None:
        """Count *count* events whose values add up to *value*; None: the count itself."""
        self._maybe_reset()
        sums = [self._totals.setdefault(statistic, _Sum())]
        of_topic = self._by_topic.get(topic)
        if of_topic is None and len(self._by_topic) < TOPICS_MAX:
            of_topic = self._by_topic[topic] = {}
        if of_topic is not None:
            sums.append(of_topic.setdefault(statistic, _Sum()))
        for total in sums:
            total.count += count
            total.value += count if value is None else value

    def total(self, statistic: Statistic) -> str:
        """Return one line's text; `null`: nothing was counted."""
        self._maybe_reset()
        return self._text(self._totals.get(statistic))

    def of_topic(self, statistic: Statistic, topic: str) -> str:
        self._maybe_reset()
        return self._text(self._by_topic.get(topic, {}).get(statistic))

    def _maybe_reset(self) -> None:
        if self._clock_s() - self._since >= RESET_S:
            self.reset()

    def _text(self, total: _Sum | None) -> str:
        if total is None:
            return "null"
        duration = self._clock_s() - self._since
        return (
            f"Count={total.count},Value={total.value},Value/Count={_ratio(total.value, total.count)},"
            f"Count/Duration={_ratio(total.count, duration)},Duration={_decimal(duration)}"
        )


def _ratio(value: float, by: float) -> str:
    return _decimal(value / by) if by else "invalid"


def _decimal(number: float) -> str:
    """Format with at most two decimals, without trailing zeros."""
    return f"{number:.2f}".rstrip("0").rstrip(".")
