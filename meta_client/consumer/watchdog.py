"""What does not move though it should: partitions of ours that stand still, and partitions that nobody reads. Pure.

It finds what no error says: a listener that never returns, a consumer that holds what it was to let go, an owner node
that somebody deleted. Each finding is told once, with what can be done about it.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from meta_client.consumer.plan import TopicPartition


class Where(Enum):
    """What becomes of a partition's messages just now."""

    FETCHING = "fetching"  # or waiting at a broker
    DELIVERING = "delivering"  # a listener is at work
    STARVED = "starved"  # every runner is at work on a listener: it can't be fetched
    UNTAKEN = "untaken"  # as many as may be were fetched ahead, and nobody takes them
    HELD = "held"  # by the user's pause(), or at a message that was refused, which was said then


class Standing(NamedTuple):
    """How one partition of ours stands."""

    key: TopicPartition
    offset: int
    rounds: int  # that ended well: messages delivered, or none there; those of a new ownership count anew
    epoch: int | None  # of our ownership
    where: Where
    trouble: str | None  # what the last round ran into


class Cure(Enum):
    """What the member does about a finding by itself."""

    NONE = "nothing"  # it is not ours to cure
    REBALANCE = "rebalance"  # looks at brokers and members anew
    CALL = "call the others"  # has every member look at the group anew: a genuine one gives up after seven tries
    RECLAIM = "reclaim"  # gives the partition up and claims it anew


class Finding(NamedTuple):
    """Something that does not move. *text* says for how long, why as far as is known, and what to do."""

    key: TopicPartition
    text: str
    cure: Cure = Cure.NONE


@dataclass(slots=True)
class _Since:
    mark: object  # what would have changed had it moved
    at: float
    is_told: bool = False


class Watchdog:
    """What one member has found. One owner thread, but for `current`; the caller has the clock, in seconds."""

    def __init__(self, still_s: float, unowned_s: float) -> None:
        """*still_s*: how long a partition may stand still; *unowned_s*: how long one may be without an owner."""
        self._still_s = still_s
        self._unowned_s = unowned_s
        self._still: dict[TopicPartition, _Since] = {}
        self._unowned: dict[TopicPartition, _Since] = {}
        self._current: dict[TopicPartition, Finding] = {}  # swapped whole

    def current(self) -> tuple[Finding, ...]:
        """What was found and is so still. Any thread."""
        return tuple(self._current.values())

    def look(
        self,
        now: float,
        standings: Iterable[Standing],
        unowned: Mapping[TopicPartition, tuple[str, Cure]],
        ownerless: Collection[TopicPartition],
    ) -> list[Finding]:
        """What is found now for the first time. *unowned*: partitions that no member reads who should, with what is to
        be said of each; *ownerless*: partitions of ours whose owner node is gone."""
        found: dict[TopicPartition, tuple[_Since, Finding | None]] = {}
        self._still = {standing.key: self._since(self._still, now, standing) for standing in standings}
        for key, since in self._still.items():
            if now - since.at >= self._still_s:
                assert isinstance(since.mark, Standing)
                found[key] = since, _why_still(since.mark, now - since.at)
        # What was forgotten is said again should it come again.
        self._unowned = {key: self._unowned.get(key) or _Since(None, now) for key in {*unowned, *ownerless}}
        for key, since in self._unowned.items():
            lasted_s = now - since.at
            if key in ownerless:
                text = "its owner node is gone, so that others may read it too: claiming it anew"
                found[key] = since, Finding(key, text, Cure.RECLAIM)
            elif lasted_s >= self._unowned_s:
                text, cure = unowned[key]
                found[key] = since, Finding(key, f"for {lasted_s:.0f} s {text}", cure)
        self._current = {key: finding for key, (_, finding) in found.items() if finding is not None}
        new = []
        for since, finding in found.values():
            if finding is not None and not since.is_told:
                since.is_told = True
                new.append(finding)
        return new

    def _since(self, known: Mapping[TopicPartition, _Since], now: float, standing: Standing) -> _Since:
        former = known.get(standing.key)
        if former is None or standing.where is Where.HELD:
            return _Since(standing, now)
        assert isinstance(former.mark, Standing)
        if (former.mark.rounds, former.mark.epoch) != (standing.rounds, standing.epoch):
            return _Since(standing, now)
        former.mark = standing  # it has not moved, but the reason may be another by now
        return former


def _why_still(standing: Standing, lasted_s: float) -> Finding | None:
    stands = f"stands at offset {standing.offset} for {lasted_s:.0f} s"
    match standing.where:
        case Where.DELIVERING:
            return Finding(standing.key, f"{stands}: its listener has not returned: see what it waits for")
        case Where.UNTAKEN:
            return Finding(standing.key, f"{stands}: nobody takes what was fetched: call fetch(), or iterate")
        case Where.HELD:
            return None
        case Where.STARVED:
            return Finding(standing.key, f"{stands}: all runners are inside listeners: configure more runners")
        case Where.FETCHING if standing.trouble is not None:
            return Finding(standing.key, f"{stands}: {standing.trouble}", Cure.REBALANCE)
        case Where.FETCHING:
            return Finding(standing.key, f"{stands}: nothing is heard of its fetch: claiming it anew", Cure.RECLAIM)
