"""Positions in a partition: an offset, one of its ends, or a time. Pure."""

from collections.abc import Sequence
from datetime import MAXYEAR, datetime
from typing import Literal, NamedTuple

from meta_client.errors import ConsumerMisuse
from meta_client.producer.outgoing import parse_partition
from meta_client.protocol.requests import OFFSET_END
from zk.tree.nodes import INT64_MAX, Partition, TopicPartition

EARLIEST: Literal["earliest"] = "earliest"
LATEST: Literal["latest"] = "latest"

# An offset in bytes, of a message, a commit or `metaq offsets`; messages put since a time (local without a zone); the
# first message that is left; messages put from now on.
Position = int | datetime | Literal["earliest", "latest"]


class Seek(NamedTuple):
    """Request to continue elsewhere in a partition. *is_progress*: it sets the group's progress."""

    to: Position
    is_progress: bool


def check_position(position: Position) -> Position:
    """Return *position* if it is valid. Raises ValueError."""
    match position:
        case datetime() | "earliest" | "latest":
            return position
        case int() if 0 <= position <= INT64_MAX and not isinstance(position, bool):
            return position
    raise ValueError(f"start {position!r}: give an offset, 'earliest', 'latest' or a datetime")


def offset_of(position: Position) -> int | None:
    """Return the offset to ask for; None for a time, which only a broker can resolve."""
    match position:
        case int():
            return position
        case "earliest":
            return 0  # a broker that has deleted it returns its first offset
        case "latest":
            return OFFSET_END  # every broker answers this with its end
        case _:
            return None


def milliseconds(time: datetime) -> int:
    """Return *time* in milliseconds since 1970, not negative, as brokers count."""
    if time.year < 1969:
        return 0
    # In the first and the last year timestamp() may raise.
    return max(0, int(time.replace(year=min(time.year, MAXYEAR - 1)).timestamp() * 1000))


def parse_partitions(pairs: Sequence[tuple[str, Partition | str]]) -> list[TopicPartition]:
    """Parse (topic, partition) pairs. Raises ConsumerMisuse."""
    try:
        return [(topic, parse_partition(partition)) for topic, partition in pairs]
    except (TypeError, ValueError) as error:
        raise ConsumerMisuse(f"partitions are given as pairs, (topic, partition): {error}") from error
