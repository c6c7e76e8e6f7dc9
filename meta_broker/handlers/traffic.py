"""Messages and bytes of each topic, for metrics. Pure."""

from dataclasses import dataclass
from typing import Final

TOPICS_MAX: Final = 200  # with numbers of their own: a pattern matches any name a client makes up
OTHER: Final = "*other*"  # all further ones; no topic's name, which holds no `*`


class TopicLabels:
    """Names the topics in metrics: the first TOPICS_MAX by themselves, all others together. Any thread."""

    def __init__(self) -> None:
        self._known: dict[str, None] = {}

    def of(self, topic: str) -> str:
        """Return the label of *topic*. It stays."""
        if topic in self._known:
            return topic
        if len(self._known) >= TOPICS_MAX:  # threads may add one at a time here: a few more do no harm
            return OTHER
        self._known[topic] = None
        return topic


@dataclass(slots=True)
class TopicTraffic:
    """Totals since the start."""

    messages_in: int = 0
    bytes_in: int = 0
    messages_out: int = 0
    bytes_out: int = 0


class Traffic:
    """Traffic of a broker's topics. Loop thread only, except `totals`."""

    def __init__(self) -> None:
        self.labels = TopicLabels()
        self._by_label: dict[str, TopicTraffic] = {}

    def received(self, topic: str, messages: int, size: int) -> None:
        """Count *messages* messages put, in frames of *size* bytes."""
        totals = self._by_label.get(topic) or self._totals(topic)
        totals.messages_in += messages
        totals.bytes_in += size

    def sent(self, topic: str, messages: int, size: int) -> None:
        """Count message frames of *size* bytes in an answer, which has the ends of runs of *messages* in all."""
        totals = self._by_label.get(topic) or self._totals(topic)
        totals.messages_out += messages
        totals.bytes_out += size

    def totals(self) -> list[tuple[str, TopicTraffic]]:
        """Return each label with its totals. Any thread."""
        return list(self._by_label.items())

    def _totals(self, topic: str) -> TopicTraffic:
        return self._by_label.setdefault(self.labels.of(topic), TopicTraffic())
