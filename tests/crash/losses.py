"""Expected loss when a slave that lacks records takes its master's place, from the two journals and from the report."""

import re
from pathlib import Path
from typing import Any, NamedTuple, Self

from journal.records.xid import parse_key
from tests.crash.kept import Kept, Kind, Raw, Told, bytes_between, padded, walk
from tests.crash.ledger import BranchFacts
from tests.crash.shown import Shown
from tests.crash.workload import PARTITIONS
from tests.fixtures.replicas import ReplicaProcess

CUT_HEADER_BYTES = 128
NAMED_MAX = 1_000  # keys that `metaq promote --former-dir` names of each kind; beyond, it counts them


class Loss(NamedTuple):
    """LSNs [start, end) that a dead or paused master has and the slave that replaces it lacks. PADs, which fill
    segments, or the rest of one that is too short for a record, may precede or follow."""

    copy: list[Raw]
    tail: list[Raw]
    start: int
    start_padded: int
    end: int
    end_padded: int
    missing: bytes

    @classmethod
    def between(cls, master: ReplicaProcess, slave: ReplicaProcess) -> Self:
        return cls.beyond(walk(slave.data), master)

    @classmethod
    def beyond(cls, ours: list[Raw], master: ReplicaProcess) -> Self:
        """Like `between`, from the records the slave had before its promotion."""
        theirs = walk(master.data)
        assert ours == theirs[: len(ours)], "the copy is another journal"
        copy, former = ([record for record in records if record.kind != Kind.PAD] for records in (ours, theirs))
        start, end = copy[-1].end, former[-1].end
        missing = bytes_between(master.data, start, end)
        start_padded, end_padded = (padded(master.data, records[-1].end) for records in (ours, theirs))
        return cls(copy, former[len(copy) :], start, start_padded, end, end_padded, missing)

    @property
    def former(self) -> list[Raw]:
        return self.copy + self.tail

    def is_kept(self, directory: Path, *, is_more: bool) -> bool:
        """Does a file that a cut left hold all of it, and, unless *is_more*, nothing else?"""
        for path in directory.glob("cut.*-*.*"):
            start = int(re.split(r"[.-]", path.name)[1])
            kept = path.read_bytes()[CUT_HEADER_BYTES:]
            if (
                self.start <= start <= self.start_padded
                and kept[: self.end - start] == self.missing[start - self.start :]
                and (is_more or start + len(kept) <= self.end_padded)
            ):
                return True
        return False


def shown_by(kept: Kept) -> Shown:
    """Return what a broker must show."""
    decided = {parse_key(key): (one.decision, one.who, one.why) for key, one in kept.decided.items()}
    return Shown({name: [] for name in PARTITIONS} | kept.log, kept.in_doubt, decided)


def first_of(branch: BranchFacts, full: Kept) -> int | None:
    """The LSN of its first record; None: nothing of it came into the journal."""
    return next((full.firsts[body] for _, body in branch.puts if body in full.firsts), None)


def check_lost(told: dict[str, Any], expected: Told, loss: Loss) -> None:
    """`metaq promote --former-dir` tells what is lost, and nothing else."""
    extent = told["start"], told["end"], told["records"]
    lost = loss.start, loss.end, len(loss.tail)
    assert extent == lost, f"{extent} told, {lost} lost"
    assert told["ranges"] == expected.ranges, f"{told['ranges']} told, {expected.ranges} lost"
    assert told["others"] == {}
    named: dict[str, tuple[dict[str, Any], list[Any]]] = {
        kind: (told[kind], getattr(expected, kind))
        for kind in ("prepared", "committed", "rolled_back", "forgotten", "redone", "decided")
    }
    assert told["again"].keys() == expected.again.keys()
    named |= {f"again {became}": (told["again"][became], keys) for became, keys in expected.again.items()}
    for what, (branches, keys) in named.items():
        listed = branches["first" if what == "decided" else "keys"]
        assert branches["count"] == len(keys), f"{what}: {branches['count']} told, {len(keys)} lost"
        assert listed == keys[:NAMED_MAX], f"{what}: {listed} told, {keys} lost"
