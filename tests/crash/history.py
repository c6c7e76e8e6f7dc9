"""Requests and answers as clients wrote them down, and the states they allow a broker to be in.

One line a fact, appended in one write: a killed process leaves whole lines. From the lines follows, of every branch,
whether it was acknowledged (told committed), refused (told rolled back, or never to be committed) or is unknown.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from journal.records.record import PartitionName
from meta_client.protocol.messages import HEADER_BYTES

Read = Mapping[PartitionName, list[tuple[int, bytes]]]  # what a consumer got, with offsets, in its order


class Did(StrEnum):
    """One step of a client. Those in the past tense were told; the others are written before they are asked for."""

    PUT = "put"
    PREPARE = "prepare"
    PREPARED = "prepared"
    COMMIT = "commit"
    COMMITTED = "committed"
    ROLLBACK = "rollback"
    ROLLED_BACK = "rolled back"
    PLAIN = "plain"  # a message outside any branch
    STORED = "stored"


@dataclass
class Facts:
    """Known facts about one branch, or about one plain message."""

    puts: list[PartitionName] = field(default_factory=list)
    did: set[Did] = field(default_factory=set)

    @property
    def is_over(self) -> bool:
        return bool(self.did & {Did.COMMITTED, Did.ROLLED_BACK, Did.STORED})

    @property
    def is_decided(self) -> bool:
        return bool(self.did & {Did.COMMIT, Did.ROLLBACK})

    def must_be_in_doubt(self) -> bool:
        return Did.PREPARED in self.did and not self.is_decided

    def may_be_in_doubt(self) -> bool:
        return Did.PREPARE in self.did and not self.is_over

    def may_be_read(self) -> bool:
        return bool(self.did & {Did.COMMIT, Did.PLAIN}) and Did.ROLLED_BACK not in self.did

    def must_be_read(self, *, is_in_doubt: bool) -> bool:
        """Told so; or it had promised, was asked to commit, and is in doubt no more."""
        promised = {Did.PREPARED, Did.COMMIT} <= self.did
        return bool(self.did & {Did.COMMITTED, Did.STORED}) or (promised and not is_in_doubt)


class History:
    """The file, as its writers see it. Any thread."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, name: str, did: Did, at: PartitionName | None = None) -> None:
        os.write(self._file, json.dumps([name, did, at]).encode() + b"\n")


def read_history(path: Path) -> dict[str, Facts]:
    """All that is known, by name, in the order of the first line of each."""
    found: dict[str, Facts] = {}
    for line in path.read_bytes().splitlines() if path.exists() else ():
        name, did, at = json.loads(line)
        facts = found.setdefault(name, Facts())
        facts.did.add(Did(did))
        if at is not None:
            facts.puts.append(PartitionName(*at))
    return found


def body_of(name: str, number: int, padding: int = 0) -> bytes:
    return f"{name} {number} ".encode() + bytes(padding)


def check_in_doubt(history: Mapping[str, Facts], listed: set[str]) -> None:
    """Check that exactly the prepared, undecided branches are in doubt; an unanswered request may have had either
    outcome."""
    must = {name for name, facts in history.items() if facts.must_be_in_doubt()}
    may = {name for name, facts in history.items() if facts.may_be_in_doubt()}
    assert must <= listed, f"prepared, undecided and not in doubt: {sorted(must - listed)}"
    assert listed <= may, f"in doubt, and nobody can have left it so: {sorted(listed - may)}"


def check_read(history: Mapping[str, Facts], read: Read) -> tuple[int, int, int]:
    """Compare what a consumer got with what is known, nothing being in doubt any more.

    Returns how many of the names were acknowledged, unknown and refused.
    """
    places: dict[tuple[str, int], tuple[PartitionName, int, int]] = {}
    for at, messages in read.items():
        for offset, payload in messages:
            words = payload.split(b" ")
            key = words[0].decode(), int(words[1])
            assert key not in places, f"{key} is read twice, at {places[key]} and in {at} at {offset}"
            places[key] = at, offset, offset + HEADER_BYTES + len(payload)
    unexplained = {name for name, _ in places} - history.keys()
    assert not unexplained, f"read, and nobody put it: {sorted(unexplained)[:3]}"
    counts = [0, 0, 0]
    for name, facts in history.items():
        found = [number for number in range(len(facts.puts)) if (name, number) in places]
        what = f"{name} ({', '.join(sorted(facts.did))}): {len(found)} of {len(facts.puts)} messages are read"
        assert len(found) in (0, len(facts.puts)), what
        assert not found or facts.may_be_read(), what
        assert found or not facts.must_be_read(is_in_doubt=False), what
        check_places(facts.puts, [places[name, number] for number in found], what)
        counts[0 if Did.COMMITTED in facts.did or Did.STORED in facts.did else 1 if facts.may_be_read() else 2] += 1
    return counts[0], counts[1], counts[2]


def check_places(puts: list[PartitionName], places: list[tuple[PartitionName, int, int]], what: str) -> None:
    """A branch's messages of one partition follow one another in put order, and are where they were put."""
    ends: dict[PartitionName, int] = {}
    for wanted, (at, offset, end) in zip(puts, places, strict=False):
        assert at == wanted, f"{what}; put to {wanted}, read in {at}"
        assert ends.get(at, offset) == offset, f"{what}; scattered in {at}: {offset} does not follow {ends[at]}"
        ends[at] = end
