"""Lag of consumer groups: what is stored, against what the brokers hold. Pure.

A number stands only where it is known. Everything else has a name: `LagState`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from meta_client.operations.positions import Range
from zk.groups.listing import GroupListing, PartitionProgress
from zk.tree.nodes import TopicPartition


class LagState(StrEnum):
    STORED = "stored"  # from the group's offset to the end
    NO_OFFSET = "no-offset"  # the group has stored none: all that the partition holds
    BELOW_START = "below-start"  # retention deleted messages that the group has not consumed: all that is left
    NO_PARTITION = "no-partition"  # the broker has no such partition, as after its topic was deleted
    BEYOND_END = "beyond-end"  # a fault: the offset is beyond the end of the partition
    MALFORMED = "malformed"  # a fault: the offset node can't be read
    UNKNOWN = "unknown"  # no answer of the broker


FAULTS = frozenset({LagState.BEYOND_END, LagState.MALFORMED, LagState.UNKNOWN})
"""States of partitions whose lag nobody can tell: exit status 1."""


class Lag(NamedTuple):
    """Lag of a group in a partition. *bytes* None: unknown. *first*: offset of the first message that is not consumed;
    None without one."""

    state: LagState
    bytes: int | None = None
    first: int | None = None


@dataclass(frozen=True, slots=True)
class Ends:
    """Brokers' answers. *put_ms*: put times of first unconsumed messages, in Unix milliseconds. *messages*: how many
    are not consumed."""

    ranges: Mapping[TopicPartition, Range]
    missing: frozenset[TopicPartition]  # of `ranges`, as empty: partitions that their broker does not have
    from_slaves: frozenset[TopicPartition]  # of `ranges`: a slave's, which may end before its master's
    put_ms: Mapping[tuple[str, TopicPartition], int]
    messages: Mapping[tuple[str, TopicPartition], int]
    now_ms: int


def lag_of(progress: PartitionProgress, ends: Ends) -> Lag:
    key = progress.topic, progress.partition
    if progress.is_malformed:
        return Lag(LagState.MALFORMED)
    if key in ends.missing and progress.stored is not None and progress.stored.offset:
        return Lag(LagState.NO_PARTITION)
    if (held := ends.ranges.get(key)) is None:
        return Lag(LagState.UNKNOWN)
    if progress.stored is None:
        return _behind(LagState.NO_OFFSET, held.start, held.end)
    offset = progress.stored.offset
    if offset > held.end:
        return Lag(LagState.UNKNOWN if key in ends.from_slaves else LagState.BEYOND_END)
    if offset < held.start:
        return _behind(LagState.BELOW_START, held.start, held.end)
    return _behind(LagState.STORED, offset, held.end)


def _behind(state: LagState, first: int, end: int) -> Lag:
    return Lag(state, end - first, first if first < end else None)


def partition_row(listing: GroupListing, progress: PartitionProgress, ends: Ends) -> dict[str, object]:
    key = progress.topic, progress.partition
    lag, held = lag_of(progress, ends), ends.ranges.get(key)
    return {
        "group": listing.group,
        "topic": progress.topic,
        "partition": str(progress.partition),
        "offset": None if progress.stored is None else progress.stored.offset,
        "end": None if held is None else held.end,
        "lag": lag.bytes,
        "messages": _messages(listing.group, key, lag, ends),
        "seconds": _seconds(listing.group, key, lag, ends),
        "state": lag.state.value,
        "owner": progress.owner,
    }


def group_row(listing: GroupListing, ends: Ends) -> dict[str, object]:
    lags = [((it.topic, it.partition), lag_of(it, ends)) for it in listing.progress]
    unknown = sum(lag.state in FAULTS for _, lag in lags)
    known = sum(lag.bytes for _, lag in lags if lag.bytes is not None)
    messages = [_messages(listing.group, key, lag, ends) for key, lag in lags]
    ages = [_seconds(listing.group, key, lag, ends) for key, lag in lags]
    oldest = max((age for age in ages if age is not None), default=None)
    return {
        "group": listing.group,
        "members": len(listing.members),
        "topics": ",".join(sorted({progress.topic for progress in listing.progress})),
        "partitions": len(listing.progress),
        "unowned": sum(progress.owner is None for progress in listing.progress),
        "no_offset": sum(lag.state is LagState.NO_OFFSET for _, lag in lags),
        "unknown": unknown,
        "lag": known if known or (lags and not unknown) else None,  # 0 only if it is known of every partition
        "messages": sum(filter(None, messages)) if lags and None not in messages else None,
        "seconds": oldest if oldest or None not in ages else None,
    }


def _messages(group: str, key: TopicPartition, lag: Lag, ends: Ends) -> int | None:
    """Return how many messages are not consumed; None: unknown."""
    return 0 if lag.bytes == 0 else ends.messages.get((group, key))


def _seconds(group: str, key: TopicPartition, lag: Lag, ends: Ends) -> float | None:
    """Return the age of the first unconsumed message; 0 without one, None if it is unknown."""
    if lag.first is None:
        return 0.0 if lag.bytes == 0 else None
    put_ms = ends.put_ms.get((group, key))
    return None if put_ms is None else max(0.0, round((ends.now_ms - put_ms) / 1000, 1))


def faults(listings: Sequence[GroupListing], ends: Ends) -> list[str]:
    """Return a line for each partition whose lag nobody can tell though its broker answered."""
    found = []
    for listing in listings:
        for it in listing.progress:
            where = f"group {listing.group}, {it.topic}/{it.partition}"
            match lag_of(it, ends).state:
                case LagState.BEYOND_END:
                    assert it.stored is not None
                    end = ends.ranges[it.topic, it.partition].end
                    found.append(
                        f"{where}: offset {it.stored.offset} is beyond the end, {end}: messages were lost, or the "
                        "offset is another cluster's; see `metaq groups reset`"
                    )
                case LagState.MALFORMED:
                    found.append(f"{where}: its offset node can't be read; see `metaq doctor zookeeper`")
    return found
