"""Which topics the broker accepts, and with how many partitions (spec 4.2, 4.3). Pure.

Two voices: the configuration file, and what was decided while the broker ran (journal/topic_changes.py). A run-time
decision holds until the file's own section of that topic is added, changed or removed; then the file holds again.
"""

import re
import zlib
from collections.abc import Container, Iterable, Mapping
from types import MappingProxyType

import msgspec

from journal.fold import JournalState
from journal.topic_changes import TopicChange, TopicState
from meta_broker.config import TopicConfig
from meta_broker.topic_names import why_not_a_topic

_REMEMBERED_MAX = 10_000  # names that a stranger made up must not fill memory


class Topics:
    """Run-time decisions, then configured names, where `*` stands for any characters: an exact name wins, then the
    longest pattern. Loop thread only.

    *decided* is the journal's own mapping: whoever changes it calls `changed`.
    """

    def __init__(
        self, file: Mapping[str, TopicConfig], decided: Mapping[str, TopicChange] = MappingProxyType({})
    ) -> None:
        self.decided = decided
        self.used: set[str] = set()  # topics that were put to since the start, or since they were deleted
        self._closed: dict[str, frozenset[int]] = {}
        self._found: dict[str, TopicConfig | None] = {}
        self.replace_file(file)

    def replace_file(self, file: Mapping[str, TopicConfig]) -> None:
        """The configuration file says this from here on. Decisions that it overrules are the caller's to end."""
        self.file = dict(file)
        patterns = sorted((name for name in file if "*" in name), key=len, reverse=True)
        self._patterns = [(_regex(name), file[name]) for name in patterns]
        self.changed()

    def changed(self) -> None:
        """Something else was decided."""
        self._found.clear()
        self._closed = {topic: frozenset(change.closed) for topic, change in self.decided.items() if change.closed}

    def find(self, topic: str) -> TopicConfig | None:
        """The settings that govern *topic*; None: the broker does not accept it."""
        try:
            return self._found[topic]
        except KeyError:
            if why_not_a_topic(topic):
                return None
            if len(self._found) >= _REMEMBERED_MAX:
                self._found.clear()
            found = self._found[topic] = self._look_up(topic)
            return found

    def is_closed(self, topic: str, partition: int) -> bool:
        """Whether an operator closed the partition: nobody puts to it or gets from it."""
        closed = self._closed.get(topic)
        return closed is not None and partition in closed

    def open_partitions(self, topic: str) -> list[int] | range:
        """Where a put that leaves the choice to the broker may go; all partitions, should all be closed."""
        section = self.find(topic)
        every = range(section.partitions if section is not None else 0)
        if (closed := self._closed.get(topic)) is None:
            return every
        return [number for number in every if number not in closed] or every

    def offers(self, topic: str, partition: int) -> bool:
        """Whether somebody may put to the partition, now or once it is opened."""
        section = self.find(topic)
        return section is not None and 0 <= partition < section.partitions

    @property
    def have_index(self) -> bool:
        """Whether any topic may have an index."""
        sections = self.file.values()
        return any(s.index is not None for s in sections) or any(c.index is not None for c in self.decided.values())

    @property
    def named(self) -> set[str]:
        """Every topic that the file or a decision names and the broker accepts, patterns included."""
        return {name for name in self.file.keys() | self.decided.keys() if self.find(name) is not None}

    def _look_up(self, topic: str) -> TopicConfig | None:
        change = self.decided.get(topic)
        if change is not None and change.state is TopicState.SET:
            return TopicConfig(
                partitions=change.partitions,
                accept_publish=change.accept_publish,
                accept_subscribe=change.accept_subscribe,
                stat=change.stat,
                compression=change.compression,
                index="attribute" if change.index is not None else None,
            )
        if change is not None and change.state is TopicState.DELETED:
            return None
        if (exact := self.file.get(topic)) is not None:
            return exact
        return next((section for pattern, section in self._patterns if pattern.fullmatch(topic)), None)


def overruled(decided: Iterable[TopicChange], file: Mapping[str, TopicConfig]) -> list[TopicChange]:
    """For every decision that the file has changed its mind about: what ends it. Closed partitions stay closed."""
    return [
        TopicChange(topic=change.topic, state=TopicState.FILE, section=now, closed=change.closed)
        for change in decided
        if change.state is not TopicState.FILE and change.section != (now := section_crc(file.get(change.topic)))
    ]


def section_crc(section: TopicConfig | None) -> int:
    """By what a section of the file is known again; 0: there is none. Keys that a later metaq adds do not count
    while they are not used."""
    return 0 if section is None else zlib.crc32(msgspec.json.encode(section)) or 1


def stored_partitions(state: JournalState, topics: Container[str]) -> dict[str, int]:
    """Of those *topics* that hold messages: one more than the highest partition that does. Looks at every partition."""
    stored: dict[str, int] = {}
    for (topic, partition), span in state.spans.items():
        if span.start < span.end and partition >= stored.get(topic, 0) and topic in topics:
            stored[topic] = partition + 1
    return stored


def _regex(name: str) -> re.Pattern[str]:
    """Everything but `*` is literal: in the ancestor a `.` would match any character, which surprises."""
    return re.compile(".*".join(map(re.escape, name.split("*"))))
