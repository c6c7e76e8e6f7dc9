"""Topics the broker accepts, and their numbers of partitions (spec 4.2, 4.3). Pure.

Two sources: the configuration file, and decisions made while the broker ran (journal/records/topic_changes.py). A
run-time decision holds until the file's own section of that topic is added, changed or removed; then the file applies
again.
"""

import re
import zlib
from collections.abc import Container, Iterable, Iterator, Mapping
from types import MappingProxyType

import msgspec

from journal.records.record import PartitionName
from journal.records.topic_changes import TopicChange, TopicState
from journal.state.journal_state import JournalState
from meta_broker.config.broker_config import TopicConfig, why_not_a_topic

_REMEMBERED_MAX = 10_000  # clients can make up any number of names


class Topics:
    """Run-time decisions, then configured names, where `*` matches any characters: an exact name wins, then the
    longest pattern.

    Loop thread only. *decided* is the journal's own mapping: call `changed` after changing it.
    """

    def __init__(
        self, file: Mapping[str, TopicConfig], decided: Mapping[str, TopicChange] = MappingProxyType({})
    ) -> None:
        self.decided = decided
        self.used: set[str] = set()  # topics put to since the start, or since they were deleted
        self._closed: dict[str, frozenset[int]] = {}
        self._found: dict[str, TopicConfig | None] = {}
        self.replace_file(file)

    def replace_file(self, file: Mapping[str, TopicConfig]) -> None:
        """Use *file* from now on. The caller ends the decisions it overrules."""
        self.file = dict(file)
        patterns = sorted((name for name in file if "*" in name), key=len, reverse=True)
        self._patterns = [(_regex(name), file[name]) for name in patterns]
        self.changed()

    def changed(self) -> None:
        """Drop cached results after a decision."""
        self._found.clear()
        self._closed = {topic: frozenset(change.closed) for topic, change in self.decided.items() if change.closed}

    def find(self, topic: str) -> TopicConfig | None:
        """Return the settings of *topic*; None: the broker does not accept it."""
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
        """Return whether an operator closed the partition to puts and gets."""
        closed = self._closed.get(topic)
        return closed is not None and partition in closed

    def open_partitions(self, topic: str) -> list[int] | range:
        """Return the partitions for a put that leaves the choice to the broker; all of them if all are closed."""
        section = self.find(topic)
        every = range(section.partitions if section is not None else 0)
        if (closed := self._closed.get(topic)) is None:
            return every
        return [number for number in every if number not in closed] or every

    def offers(self, topic: str, partition: int) -> bool:
        """Return whether the partition accepts puts, now or once it is opened."""
        section = self.find(topic)
        return section is not None and 0 <= partition < section.partitions

    @property
    def have_index(self) -> bool:
        """True if any topic may have an index."""
        sections = self.file.values()
        return any(s.index is not None for s in sections) or any(c.index is not None for c in self.decided.values())

    @property
    def named(self) -> set[str]:
        """Every accepted topic that the file or a decision names, patterns included."""
        return {name for name in self.file.keys() | self.decided.keys() if self.find(name) is not None}

    def _look_up(self, topic: str) -> TopicConfig | None:
        change = self.decided.get(topic)
        if change is not None and change.state is TopicState.SET:
            return TopicConfig(**{name: getattr(change, name) for name in TopicConfig.__struct_fields__})
        if change is not None and change.state is TopicState.DELETED:
            return None
        if (exact := self.file.get(topic)) is not None:
            return exact
        return next((section for pattern, section in self._patterns if pattern.fullmatch(topic)), None)


def overruled(decided: Iterable[TopicChange], file: Mapping[str, TopicConfig]) -> list[TopicChange]:
    """Return the changes that end decisions the file has overruled. Closed partitions stay closed."""
    return [
        TopicChange(topic=change.topic, state=TopicState.FILE, section=now, closed=change.closed)
        for change in decided
        if change.state is not TopicState.FILE and change.section != (now := section_crc(file.get(change.topic)))
    ]


def section_crc(section: TopicConfig | None) -> int:
    """Return a checksum that identifies a section of the file; 0: there is none. Unused keys of later versions do
    not count.
    """
    return 0 if section is None else zlib.crc32(msgspec.json.encode(section)) or 1


def used_partitions(state: JournalState) -> Iterator[PartitionName]:
    """Yield every partition that holds messages, or may: those of a live branch come without another put."""
    for name, offset_range in state.offset_ranges.items():
        if offset_range.start < offset_range.end:
            yield name
    for branch in state.branches.values():
        yield from branch.extents


def stored_partitions(state: JournalState, topics: Container[str]) -> dict[str, int]:
    """Return, for those *topics* that hold messages, or may, one more than the highest partition used. Scans every
    partition.
    """
    stored: dict[str, int] = {}
    for topic, partition in used_partitions(state):
        if partition >= stored.get(topic, 0) and topic in topics:
            stored[topic] = partition + 1
    return stored


def _regex(name: str) -> re.Pattern[str]:
    """Compile a pattern in which only `*` is special. (In the ancestor a `.` matches any character.)"""
    return re.compile(".*".join(map(re.escape, name.split("*"))))
