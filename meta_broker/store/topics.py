"""Which topics the broker accepts, and with how many partitions (spec 4.2, 4.3). Pure."""

import re
from collections.abc import Mapping

from meta_broker.config import TopicConfig
from meta_broker.topic_names import why_not_a_topic

_REMEMBERED_MAX = 10_000  # names that a stranger made up must not fill memory


class Topics:
    """Configured names, where `*` stands for any characters. An exact name wins, then the longest pattern."""

    def __init__(self, configured: Mapping[str, TopicConfig]) -> None:
        self.configured = dict(configured)
        patterns = sorted((name for name in configured if "*" in name), key=len, reverse=True)
        self._patterns = [(_regex(name), configured[name]) for name in patterns]
        self._found: dict[str, TopicConfig | None] = {}

    def find(self, topic: str) -> TopicConfig | None:
        """The section that governs *topic*; None: the broker does not accept it."""
        try:
            return self._found[topic]
        except KeyError:
            if why_not_a_topic(topic):
                return None
            if len(self._found) >= _REMEMBERED_MAX:
                self._found.clear()
            found = self._found[topic] = self._look_up(topic)
            return found

    def _look_up(self, topic: str) -> TopicConfig | None:
        if (exact := self.configured.get(topic)) is not None:
            return exact
        return next((section for pattern, section in self._patterns if pattern.fullmatch(topic)), None)


def _regex(name: str) -> re.Pattern[str]:
    """Everything but `*` is literal: in the ancestor a `.` would match any character, which surprises."""
    return re.compile(".*".join(map(re.escape, name.split("*"))))
