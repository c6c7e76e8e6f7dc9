"""Records that members wrote, and the invariants they must satisfy. Pure except for reading files."""

from collections import Counter, defaultdict
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
    numbers: tuple[int, ...]


class Incident(NamedTuple):
    """Something was done to a member, or (None) to all of them, in [began, ended]."""

    began: float
    ended: float
    member: str | None
    kind: str


@dataclass(slots=True)
class Findings:
    """Result of reading the ledgers."""

    problems: list[str] = field(default_factory=list)
    messages: int = 0
    duplicates: Counter[str] = field(default_factory=Counter)  # messages, by what explains them

    def text(self) -> str:
        again = ", ".join(f"{kind} {count}" for kind, count in sorted(self.duplicates.items())) or "none"
        return f"{self.messages} messages, delivered again because of: {again}"


def read_deliveries(member: str, log: Path) -> list[Delivery]:
    """Read all deliveries of a member; a last line cut short by a kill counts as far as it goes."""
    found = []
    for line in log.read_text().splitlines() if log.exists() else ():
        words = line.split()
        if words[0] == "B" and len(words) == 7:
            numbers = tuple(int(number) for number in words[6].split(","))
            found.append(
                Delivery(float(words[1]), member, words[2], int(words[3]), int(words[4]), int(words[5]), numbers)
            )
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
    last_by_offset: dict[int, Delivery] = {}  # by where its batch began: who had it last
    for delivery in found:
        what = f"{partition} at {delivery.began:.3f} by {delivery.member}"
        if delivery.offset > highest:
            findings.problems.append(f"{what}: begins at {delivery.offset}, nothing was delivered after {highest}")
        if delivery.offset not in ends:
            findings.problems.append(f"{what}: begins at {delivery.offset}, where no batch had ended")
        if 0 <= delivery.epoch < epoch:
            findings.problems.append(f"{what}: delivered with epoch {delivery.epoch} after {epoch} had delivered")
        if delivery.offset < highest:
            before = [it for it in last_by_offset.values() if it.next_offset > delivery.offset]
            kind = _explanation(min(before, key=lambda it: it.began), delivery, incidents)
            again = len(delivery.numbers) if delivery.next_offset <= highest else 1
            findings.duplicates[kind or "?"] += again
            if kind is None:
                findings.problems.append(
                    f"{what}: delivered again from {delivery.offset} to {highest}, and nothing happened"
                )
        epoch = max(epoch, delivery.epoch)
        ends.add(delivery.next_offset)
        highest = max(highest, delivery.next_offset)
        last_by_offset[delivery.offset] = delivery
        if len(last_by_offset) > 500:
            last_by_offset = dict(sorted(last_by_offset.items())[-250:])


def _explanation(before: Delivery, again: Delivery, incidents: Sequence[Incident]) -> str | None:
    """Return the latest incident of either owner, a member's own before a general one."""
    possible = [
        incident
        for incident in incidents
        if incident.member in (None, before.member, again.member)
        and before.began - COMMIT_SLACK_S <= incident.ended
        and incident.began <= again.began
    ]
    latest = max(possible, key=lambda it: (it.member is not None, it.began), default=None)
    return None if latest is None else latest.kind
