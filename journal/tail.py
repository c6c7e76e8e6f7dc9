"""What the end of a journal holds, for people: what is lost where another copy goes on without it. Pure."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from journal.frame import Kind
from journal.inspection import Line, describe
from journal.scan import Entry

KEYS_MAX = 1_000  # named of each kind; beyond, they are counted

_ENDS = {Kind.COMMIT.name: "committed", Kind.ROLLBACK.name: "rolled_back", Kind.PREPARE.name: "prepared"}


class Stretch(NamedTuple):
    """Offsets [start, end) of one partition, and the messages there."""

    start: int
    end: int
    messages: int


class Branches(msgspec.Struct):
    """Branches of which that was the last thing said: how many, and the keys of the first KEYS_MAX."""

    count: int = 0
    keys: list[str] = []

    def add(self, key: str) -> None:
        self.count += 1
        if len(self.keys) < KEYS_MAX:
            self.keys.append(key)


class Tail(msgspec.Struct):
    """The records of LSNs [start, end). *ranges* by partition, written ``topic-partition``."""

    start: int
    end: int
    records: int = 0
    ranges: dict[str, Stretch] = {}
    prepared: Branches = msgspec.field(default_factory=Branches)  # and not ended there: in doubt when it ended
    committed: Branches = msgspec.field(default_factory=Branches)
    rolled_back: Branches = msgspec.field(default_factory=Branches)
    others: dict[str, int] = {}  # records of other kinds that somebody decided, by kind

    @property
    def messages(self) -> int:
        """How many messages could be read there, and nowhere else."""
        return sum(stretch.messages for stretch in self.ranges.values())

    @property
    def is_silent(self) -> bool:
        """Nobody was told of anything that is in it: records of opens and checkpoints alone, or none."""
        return not (self.ranges or self.others or self.prepared.count or self.committed.count or self.rolled_back.count)


def tail_of(entries: Iterable[Entry], start: int) -> Tail:
    """What *entries*, in LSN order from *start* on, hold. Never raises for what they say: see `describe`."""
    tail = Tail(start, start)
    last: dict[str, str] = {}  # of each branch, the last kind that is in _ENDS
    for entry in entries:
        line = describe(entry)
        tail.end = entry.header.end
        tail.records += 1
        _add_places(tail, line)
        if line.kind in _ENDS and line.key is not None:
            last.pop(str(line.key), None)
            last[str(line.key)] = line.kind
        elif line.kind in (Kind.HEURISTIC.name, Kind.FORGET.name, Kind.TOPIC.name):
            tail.others[line.kind] = tail.others.get(line.kind, 0) + 1
    for key, kind in last.items():
        branches: Branches = getattr(tail, _ENDS[kind])
        branches.add(key)
    return tail


def _add_places(tail: Tail, line: Line) -> None:
    for place in line.places:
        if place.base is None:
            continue
        name, end = str(place.name), place.base + place.bytes
        before = tail.ranges.get(name, Stretch(place.base, place.base, 0))
        tail.ranges[name] = Stretch(before.start, max(before.end, end), before.messages + place.messages)


def tail_lines(tail: Tail) -> Iterator[str]:
    """*tail* for people: each range of offsets, each branch that is named."""
    for name, (start, end, messages) in sorted(tail.ranges.items()):
        yield f"{name}: offsets {start} to {end}, {messages} messages"
    for what, branches in (
        ("in doubt", tail.prepared),
        ("committed", tail.committed),
        ("rolled back", tail.rolled_back),
    ):
        for key in branches.keys:
            yield f"{what} there: {key}"
        if branches.count > len(branches.keys):
            yield f"{what} there: {branches.count - len(branches.keys)} more"
    for kind, count in sorted(tail.others.items()):
        yield f"{count} {kind} records"
