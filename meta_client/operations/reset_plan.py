"""Plan of `metaq groups reset`: each partition's new offset."""

import itertools
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import assert_never

from meta_client.consumer.position import milliseconds
from meta_client.errors import NotSupported
from meta_client.operations.positions import Positions, Range
from meta_client.operations.progress import Progress
from meta_client.operations.reading import message_start, read_partition
from meta_client.operations.reset_options import OtherGroup, SavedIn, Shift, Target
from meta_client.protocol.errors import InvalidMessage, MetaError
from zk.tree.nodes import TopicPartition


class ResetRefused(MetaError):
    """The reset is not possible as requested, for the reason it gives. Nothing was changed: correct the request."""


@dataclass(frozen=True, slots=True)
class Move:
    """Planned move of one partition; *before* is None if nothing was stored, *after* if that remains so."""

    key: TopicPartition
    before: int | None
    after: int | None


def plan_reset(
    positions: Positions,
    target: Target,
    before: Mapping[TopicPartition, int | None],
    listed: Mapping[TopicPartition, int | None],
) -> list[Move]:
    """Return the move of each partition in *before*, the stored offsets; *listed*: offsets of another group or of a
    file.

    Raises ResetRefused unless the plan covers every partition, and the errors of broker requests.
    """
    ranges = positions.ranges(before, milliseconds(target) if isinstance(target, datetime) else None)
    if missing := sorted(before.keys() - ranges.keys()):
        raise ResetRefused(f"the brokers of {_names(missing)} do not answer: start them, or name other partitions")
    return [
        Move(key, stored, _after(positions, target, key, stored, ranges[key], listed.get(key)))
        for key, stored in sorted(before.items())
    ]


def _after(
    positions: Positions,
    target: Target,
    key: TopicPartition,
    stored: int | None,
    found: Range,
    wanted: int | None,
) -> int | None:
    match target:
        case "earliest":
            return found.start
        case "latest":
            return found.end
        case OtherGroup() | SavedIn():
            if wanted is None:
                return stored
            return _checked(positions, key, min(max(wanted, found.start), found.end), found)
        case datetime():
            if found.at is None:
                raise NotSupported(f"the broker of {_names([key])} knows nothing of times: it is no metaq broker")
            return found.at
        case Shift(messages):
            if stored is None:
                raise ResetRefused(f"nothing is stored of {_names([key])} that could be shifted: name another target")
            return _shifted(positions, key, min(max(stored, found.start), found.end), found, messages)
        case int():
            if not found.start <= target <= found.end:
                raise ResetRefused(f"{_names([key])} holds [{found.start}, {found.end}): {target} is outside")
            return _checked(positions, key, target, found)
    assert_never(target)


def _checked(positions: Positions, key: TopicPartition, offset: int, found: Range) -> int:
    """Return *offset* if a message begins there. Raises ResetRefused with the nearest one before it."""
    if (begin := message_start(positions, key, offset, found)) != offset:
        raise ResetRefused(f"{offset} is inside of a message of {_names([key])}: {begin} is where that begins")
    return offset


def _shifted(positions: Positions, key: TopicPartition, offset: int, found: Range, messages: int) -> int:
    """Return *offset* shifted by a number of messages, within the partition."""
    topic, partition = key
    with Progress(f"reading {topic}/{partition}", "messages") as progress:
        if messages >= 0:
            for message in itertools.islice(read_partition(positions, key, offset), messages, messages + 1):
                return min(message.offset, found.end)
            return found.end
        left = -messages
        while left and offset > found.start:
            # Brokers name only the nearest boundary of an extent or a file further back; from there read forward.
            begin = max(min(positions.run_start(topic, partition, offset - 1), offset - 1), found.start)
            passed: deque[int] = deque(maxlen=left)
            count = 0
            try:
                for message in read_partition(positions, key, begin):
                    if message.offset >= offset:
                        break
                    passed.append(message.offset)
                    count += 1
                    progress.advance()
            except InvalidMessage as error:
                raise ResetRefused(f"{topic}/{partition} can't be read from {begin} on: {error}") from error
            if not passed:
                raise ResetRefused(f"{topic}/{partition}: no message before {offset} could be found")
            left -= len(passed)
            offset = passed[0]
    return offset


def _names(keys: list[TopicPartition]) -> str:
    return ", ".join(f"{topic}/{partition}" for topic, partition in keys)
