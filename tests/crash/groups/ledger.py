"""Records that members wrote, and the invariants they must satisfy. Pure except for reading files."""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

COMMIT_SLACK_S = 2.0  # what was consumed so long before an incident may not have been stored when it came


class Delivery(NamedTuple):
    """One batch in one member's hands."""

    began: float
    member: str
    partition: str
    offset: int
    next_offset: int
    epoch: int
    numbers: tuple[int, ...]  # none: a filter refused these, or retention had deleted them, as the member was told
    ended: float | None = None  # None: the listener did not return


class Failure(NamedTuple):
    """The listener raised at what begins at an offset, or a user rolled it back."""

    at: float
    partition: str
    offset: int
    reason: str


class Seek(NamedTuple):
    """A member sought."""

    at: float
    partition: str
    offset: int


class Lag(NamedTuple):
    """Lag in one partition, as a member told it."""

    at: float
    partition: str
    bytes: int | None
    seconds: float | None


@dataclass(slots=True)
class MemberLog:
    """All that one member wrote down."""

    member: str
    deliveries: list[Delivery] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    redelivered: list[tuple[float, str, int]] = field(default_factory=list)  # dead letters: when, partition, offset
    seeks: list[Seek] = field(default_factory=list)
    moves: list[Delivery] = field(default_factory=list)  # by retention
    filtered: list[Delivery] = field(default_factory=list)  # single messages
    lags: list[Lag] = field(default_factory=list)
    sessions_lost: list[float] = field(default_factory=list)


class Incident(NamedTuple):
    """Something was done to a member, or (None) to all of them, in [began, ended]."""

    began: float
    ended: float
    member: str | None
    kind: str
    partition: str | None = None  # None: all of them


@dataclass(slots=True)
class Findings:
    """Result of reading the ledgers."""

    problems: list[str] = field(default_factory=list)
    messages: int = 0
    duplicates: Counter[str] = field(default_factory=Counter)  # messages, by what explains them

    def text(self) -> str:
        return f"{self.messages} messages, delivered again because of: {self.again()}"

    def again(self) -> str:
        return ", ".join(f"{kind} {count}" for kind, count in sorted(self.duplicates.items())) or "none"


def read_log(member: str, log: Path) -> MemberLog:
    """Read what a member wrote; a last line cut short by a kill counts as far as it goes."""
    found = MemberLog(member)
    open_at: dict[str, int] = {}  # by partition: the delivery that its listener has
    for line in log.read_text().splitlines(keepends=True) if log.exists() else ():
        if not line.endswith("\n"):
            break
        kind, time, *words = line.split()
        at = float(time)
        match kind, words:
            case "B", [partition, offset, next_offset, epoch, numbers]:
                open_at[partition] = len(found.deliveries)
                listed = tuple(int(number) for number in numbers.split(","))
                found.deliveries.append(
                    Delivery(at, member, partition, int(offset), int(next_offset), int(epoch), listed)
                )
            case "E", [partition, next_offset]:
                begun = found.deliveries[open_at[partition]]
                assert begun.next_offset == int(next_offset), line
                found.deliveries[open_at[partition]] = begun._replace(ended=at)
            case "X", [partition, offset, reason]:
                found.failures.append(Failure(at, partition, int(offset), reason))
            case "R", [partition, offset]:
                found.redelivered.append((at, partition, int(offset)))
            case "K", [partition, offset]:
                found.seeks.append(Seek(at, partition, int(offset)))
            case "F", [partition, offset, next_offset]:
                found.filtered.append(Delivery(at, member, partition, int(offset), int(next_offset), -1, ()))
            case "M", [partition, before, offset]:
                name = partition.rpartition("/")[2]
                found.moves.append(Delivery(at, member, name, int(before), int(offset), -1, ()))
            case "S", _:
                found.sessions_lost.append(at)
            case "L", [asked_at, *told]:
                for it in told:
                    partition, size, seconds = it.split(":")
                    found.lags.append(
                        Lag(
                            float(asked_at),
                            partition,
                            None if size == "None" else int(size),
                            None if seconds == "None" else float(seconds),
                        )
                    )
            case _:
                raise AssertionError(f"{log}: {line}")
    return found


def check(
    deliveries: Iterable[Delivery], acknowledged: Mapping[str, set[int]], incidents: Sequence[Incident]
) -> Findings:
    """Every acknowledged message was handed over; per partition in order, each time from an offset at which a batch
    had ended (what a commit can have stored); nobody went on after a later owner had begun; whatever came twice has an
    incident that explains it."""
    findings = Findings()
    by_partition: defaultdict[str, list[Delivery]] = defaultdict(list)
    for delivery in deliveries:
        by_partition[delivery.partition].append(delivery)
    for partition, numbers in sorted(acknowledged.items()):
        seen = {number for delivery in by_partition[partition] for number in delivery.numbers}
        if missing := numbers - seen:
            findings.problems.append(f"{partition}: {len(missing)} messages never delivered, {sorted(missing)[:5]}")
        findings.messages += len(numbers)
    for partition, found in sorted(by_partition.items()):
        _check_partition(partition, sorted(found), incidents, findings)
    return findings


def _check_partition(partition: str, found: list[Delivery], incidents: Sequence[Incident], findings: Findings) -> None:
    ends, highest, epoch = {0}, 0, 0
    moves: list[Delivery] = []
    excuses = Excuses(incidents)
    earlier: deque[Delivery] = deque(maxlen=2000)  # the newest first
    for delivery in found:
        if not delivery.numbers:
            ends.add(delivery.next_offset)
            moves.append(delivery)
            earlier.appendleft(delivery)
            continue
        while move := next((it for it in moves if it.offset <= highest < it.next_offset <= delivery.offset), None):
            highest = move.next_offset  # only now: what was fetched ahead was delivered meanwhile
        what = f"{partition} at {delivery.began:.3f} by {delivery.member}"
        if delivery.offset > highest:
            findings.problems.append(f"{what}: begins at {delivery.offset}, nothing was delivered after {highest}")
        if delivery.offset not in ends:
            findings.problems.append(f"{what}: begins at {delivery.offset}, where no batch had ended")
        if 0 <= delivery.epoch < epoch and not excuses.allow(delivery):
            findings.problems.append(f"{what}: delivered with epoch {delivery.epoch} after {epoch} had delivered")
        if delivery.offset < highest:
            covering = [it for it in earlier if it.offset <= delivery.offset < it.next_offset]
            # A first message that is filtered is so each time, just before what follows is handed over.
            before = next((it for it in covering if it.numbers), covering[-1] if covering else None)
            if before is None:
                findings.problems.append(f"{what}: begins at {delivery.offset}, after {highest} was passed")
                continue
            kind = _explanation(before, delivery, incidents)
            again = len(delivery.numbers) if delivery.next_offset <= highest else 1
            findings.duplicates[kind or "?"] += again
            if kind is None:
                findings.problems.append(
                    f"{what}: delivered again from {delivery.offset} to {highest}, and nothing happened"
                )
        epoch = max(epoch, delivery.epoch)
        ends.add(delivery.next_offset)
        highest = max(highest, delivery.next_offset)
        earlier.appendleft(delivery)


class Excuses:
    """Deliveries that were allowed before their member was suspended, or its session ended: one of a partition each
    time, as nothing can lie between being allowed and the listener's first step."""

    def __init__(self, incidents: Sequence[Incident]) -> None:
        self._incidents = [it for it in incidents if it.kind in ("stopped", "session ended")]
        self._allowed: dict[tuple[Incident, str], Delivery] = {}

    def allow(self, delivery: Delivery) -> bool:
        """Return True if this one is excused; the same answer each time."""
        for it in self._incidents:
            if it.member == delivery.member and it.began <= delivery.began <= it.ended:
                return self._allowed.setdefault((it, delivery.partition), delivery) is delivery
        return False


def _explanation(before: Delivery, again: Delivery, incidents: Sequence[Incident]) -> str | None:
    """Return the latest incident of either owner, a member's own before a general one."""
    possible = [
        incident
        for incident in incidents
        if incident.member in (None, before.member, again.member)
        and incident.partition in (None, again.partition)
        and before.began - COMMIT_SLACK_S <= incident.ended
        and incident.began <= again.began
    ]
    latest = max(possible, key=lambda it: (it.member is not None, it.began), default=None)
    return None if latest is None else latest.kind
