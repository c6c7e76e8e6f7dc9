"""A group's promise, checked against the journal: the model of tests/crash/test_group_promise.py. Pure.

A message is *settled* once a listener has completed it, once it is rejected and kept as a dead letter, or once
retention has deleted it and the group was told so. The stored offset passes no message before that; no message that a
stored offset has passed is delivered again, unless somebody sought; no lag tells that there is nothing while there is.
"""

import bisect
import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from tests.crash.groups.feed import Acknowledged
from tests.crash.groups.journal_copy import Stored
from tests.crash.groups.ledger import Delivery, Excuses, Incident, MemberLog, Seek

SEEK_S = 5.0  # a seek may be stored so long after the call: stores fail, too
LAG_S = 5.0  # a member that runs notices a lag in so long: the time of a long poll and of its answer, and some more


class Sample(NamedTuple):
    """Stored offsets of a group, read some time in [began, ended]."""

    began: float
    ended: float
    offsets: Mapping[str, int]


class ToldLag(NamedTuple):
    """Bytes that an operator's command said, some time in [began, ended], that the group is behind; None: unknown."""

    began: float
    ended: float
    bytes: Mapping[str, int | None]


@dataclass(slots=True)
class Evidence:
    """All that is known of a run."""

    stored: Mapping[str, Sequence[Stored]]
    starts: Mapping[str, int]  # of partitions, in the end
    acknowledged: Mapping[str, Sequence[Acknowledged]]
    logs: Sequence[MemberLog]
    dead: Set[tuple[str, int]]  # partition and offset of each dead letter in the end
    samples: Sequence[Sample]
    told: Sequence[ToldLag]
    incidents: Sequence[Incident]
    buffering: Set[str]  # members that fetch ahead of their users


class Promise:
    """Checks *evidence*; `problems` has what contradicts the promise."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self.problems: list[str] = []
        self._stored = {partition: list(stored) for partition, stored in evidence.stored.items()}
        self._offsets = {partition: [it.offset for it in stored] for partition, stored in self._stored.items()}
        self._begun = {partition: [inf] * len(stored) for partition, stored in self._stored.items()}
        self._settled = {partition: [inf] * len(stored) for partition, stored in self._stored.items()}
        self._seeks: defaultdict[str, list[Seek]] = defaultdict(list)
        for log in evidence.logs:
            self._read(log)

    def check(self) -> list[str]:
        self._check_journal()
        self._check_settled()
        for partition in self._stored:
            self._check_samples(partition)
            self._check_redeliveries(partition)
        self._check_lags()
        self._check_told()
        return self.problems

    def _read(self, log: MemberLog) -> None:
        redelivered = {(partition, offset) for _, partition, offset in log.redelivered}
        for delivery in log.deliveries:
            for index in self._covered(delivery):
                self._at_most(self._begun, delivery.partition, index, delivery.began)
                if delivery.ended is not None:
                    self._at_most(self._settled, delivery.partition, index, delivery.ended)
        for failure in log.failures:
            place = failure.partition, failure.offset
            if failure.reason == "rejected" and (place in self._evidence.dead or place in redelivered):
                index = bisect.bisect_left(self._offsets[failure.partition], failure.offset)
                self._at_most(self._settled, failure.partition, index, failure.at)
        for move in log.moves:
            for index in self._covered(move):
                if self._stored[move.partition][index].offset < self._evidence.starts[move.partition]:
                    self._at_most(self._settled, move.partition, index, move.began)
                    self._at_most(self._begun, move.partition, index, move.began)
        for unwanted in log.filtered:
            for index in self._covered(unwanted):
                self._at_most(self._settled, unwanted.partition, index, unwanted.began)
                self._at_most(self._begun, unwanted.partition, index, unwanted.began)
        for seek in log.seeks:
            self._seeks[seek.partition].append(seek)

    def _covered(self, delivery: Delivery) -> range:
        offsets = self._offsets.get(delivery.partition, [])
        return range(bisect.bisect_left(offsets, delivery.offset), bisect.bisect_left(offsets, delivery.next_offset))

    @staticmethod
    def _at_most(times: Mapping[str, list[float]], partition: str, index: int, at: float) -> None:
        times[partition][index] = min(times[partition][index], at)

    def _check_journal(self) -> None:
        """Check that what was acknowledged is stored where it was said to be, and what was delivered is what is stored,
        perhaps without what is filtered, or known to be a duplicate."""
        for partition, acknowledged in self._evidence.acknowledged.items():
            stored = {it.offset: it.number for it in self._stored.get(partition, ())}
            wrong = [it for it in acknowledged if stored.get(it.offset) != it.number]
            if wrong:
                self.problems.append(f"{partition}: acknowledged, and not in the journal: {wrong[:3]}")
        for log in self._evidence.logs:
            for delivery in log.deliveries:
                held = [(self._stored[delivery.partition][it].number, it) for it in self._covered(delivery)]
                settled = self._settled[delivery.partition]
                needed = [number for number, index in held if settled[index] >= delivery.began]
                handed = [number for number in delivery.numbers if number in set(needed)]
                if handed != needed or not set(delivery.numbers) <= {number for number, _ in held}:
                    self.problems.append(f"{_named(delivery)}: {delivery.numbers[:5]}, the journal has {held[:5]}")

    def _check_settled(self) -> None:
        for partition, times in self._settled.items():
            if left := [it for it, at in zip(self._stored[partition], times, strict=True) if at == inf]:
                self.problems.append(f"{partition}: {len(left)} messages never settled, {left[:3]}")

    def _check_samples(self, partition: str) -> None:
        """The stored offset passes only what is settled, stands where a message ends, and goes back by a seek alone."""
        ends = [it.next_offset for it in self._stored[partition]]
        settled = list(itertools.accumulate(self._settled[partition], max))
        before = 0
        for sample in self._evidence.samples:
            if (offset := sample.offsets.get(partition)) is None or offset == before:
                continue
            what = f"{partition}: {offset} stored at {sample.ended:.3f}, {before} before"
            passed = bisect.bisect_right(ends, offset)
            if offset and (not passed or ends[passed - 1] != offset):
                self.problems.append(f"{what}: where no message ends")
            if passed and settled[passed - 1] > sample.ended:
                first = next(i for i, at in enumerate(self._settled[partition]) if at > sample.ended)
                self.problems.append(
                    f"{what}: {self._stored[partition][first]} is settled at {self._settled[partition][first]:.3f}"
                )
            if offset < before and not any(
                seek.offset <= offset and seek.at <= sample.ended for seek in self._seeks[partition]
            ):
                self.problems.append(f"{what}: nobody sought")
            before = offset

    def _check_redeliveries(self, partition: str) -> None:
        """Nothing below the stored offset is delivered, unless somebody sought, or its member was suspended just
        between being allowed to deliver and writing that down."""
        samples = [it for it in self._evidence.samples if partition in it.offsets]
        ended = [it.ended for it in samples]
        excuses = Excuses(self._evidence.incidents)
        deliveries = [it for log in self._evidence.logs for it in log.deliveries if it.partition == partition]
        for delivery in deliveries:
            index = bisect.bisect_left(ended, delivery.began) - 1
            if index < 0 or samples[index].offsets[partition] <= delivery.offset:
                continue
            value = samples[index].offsets[partition]
            first = index
            while first and samples[first - 1].offsets[partition] > delivery.offset:
                first -= 1
            if any(
                seek.offset <= delivery.offset and samples[first].began - SEEK_S < seek.at <= delivery.began
                for seek in self._seeks[partition]
            ):
                continue
            if excuses.allow(delivery):
                continue
            self.problems.append(
                f"{_named(delivery)}: {value} was stored since {samples[first].ended:.3f}, and nobody sought"
            )

    def _check_lags(self) -> None:
        """No member tells for long that it has everything of a partition of which a message waits."""
        waits = {partition: self._waits(partition) for partition in self._stored}
        for log in self._evidence.logs:
            if log.member in self._evidence.buffering:
                continue
            held = [it for it in self._evidence.incidents if it.member == log.member and it.kind == "stopped"]
            since: dict[str, float] = {}
            last: dict[str, float] = {}
            for lag in log.lags:
                if lag.at - last.get(lag.partition, 0.0) > 2.0 or lag.bytes or lag.seconds is None or lag.seconds > 0:
                    since[lag.partition] = lag.at
                last[lag.partition] = lag.at
                if since[lag.partition] > lag.at - LAG_S or any(
                    it.began < lag.at and lag.at - LAG_S < it.ended for it in held
                ):
                    continue
                if waiting := [
                    it for it in waits.get(lag.partition, ()) if it[0] < lag.at - LAG_S and it[1] > lag.at + 1.0
                ]:
                    self.problems.append(f"{log.member} told {lag}, though {waiting[0]} waited")

    def _waits(self, partition: str) -> list[tuple[float, float, Stored]]:
        """Return of each message that was acknowledged: when, until when it was in no listener's hands, and itself."""
        found = []
        for it in self._evidence.acknowledged.get(partition, ()):
            index = bisect.bisect_left(self._offsets[partition], it.offset)
            if index < len(self._offsets[partition]) and it.offset >= self._evidence.starts.get(partition, 0):
                found.append((it.at, self._begun[partition][index], self._stored[partition][index]))
        return found

    def _check_told(self) -> None:
        """Check that an operator is told of no less than is acknowledged and not settled."""
        for told in self._evidence.told:
            for partition, size in told.bytes.items():
                if size is None or partition not in self._stored:
                    continue
                ends = [it.offset for it in self._evidence.acknowledged.get(partition, ()) if it.at < told.began]
                stored, times = self._stored[partition], self._settled[partition]
                start = self._evidence.starts.get(partition, 0)
                left = [it for it, at in zip(stored, times, strict=True) if at > told.ended and it.offset >= start]
                if ends and left and left[0].offset <= max(ends) and size <= max(ends) - left[0].offset:
                    self.problems.append(f"{partition}: told {size} bytes at {told.began:.3f}, though {left[0]} waited")


def _named(delivery: Delivery) -> str:
    return f"{delivery.partition} at {delivery.began:.3f} by {delivery.member} from {delivery.offset}"
