"""Option types: points in a topic (an end, an offset, a time), partitions, and seconds."""

import datetime
import re
from collections.abc import Callable
from functools import partial
from typing import Final, Generic, Literal, TypeVar, cast

import click

from meta_client.consumer.position import Position
from zk.tree.nodes import INT64_MAX, Partition

STORED: Final = "stored"
SECONDS_MAX: Final = 1_000_000.0  # some eleven days; sockets and locks take twice that

_TIME = "a time like 2010-12-05T10:00, or 2010-12-05T10:00+00:00"
_COUNTS: Final = re.compile(r"(0|[1-9][0-9]{0,9}):([1-9][0-9]{0,4})", re.ASCII)
T = TypeVar("T")


class Parsed(click.ParamType, Generic[T]):  # type: ignore[type-arg]  # a subscript fails before click 8.4
    """Option type *name*: a text as *parse* reads it, which raises ValueError with what to tell of any other."""

    def __init__(self, name: str, parse: Callable[[str], T]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> T:
        try:
            return self._parse(value) if isinstance(value, str) else cast(T, value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class NotAPoint(ValueError):
    """A text is neither an offset nor a time. The message ends a sentence: `neither ..., nor ...`."""


def parse_moment(text: str) -> datetime.datetime:
    """Parse a point in time, in ISO 8601; local time by default."""
    try:
        return datetime.datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise ValueError(f"{text} is no time: write it {_TIME[7:]}") from None


def parse_start(text: str) -> Position | Literal["stored"]:
    """Parse a start position: earliest, latest, stored, an offset, or a time."""
    match text:
        case "earliest" | "latest" | "stored":
            return text
    try:
        return offset_or_time(text)
    except NotAPoint as error:
        raise ValueError(f"{text} is neither earliest, latest nor stored, nor {error}") from None


def parse_end(text: str) -> int | datetime.datetime:
    """Parse an end position, exclusive: an offset or a time."""
    try:
        return offset_or_time(text)
    except NotAPoint as error:
        raise ValueError(f"{text} is neither {error}") from None


def parse_partition(text: str) -> Partition:
    if (partition := Partition.maybe_parse(text)) is None:
        raise ValueError(f"{text} is no partition: write it as listings show it, like 0-3")
    return partition


def parse_expected(text: str) -> tuple[str, dict[int, int]]:
    """Parse the partitions of a topic by broker: TOPIC=BROKER:COUNT, with commas between."""
    topic, _, counts = text.partition("=")
    found = [_COUNTS.fullmatch(each) for each in counts.split(",")]
    by_broker = {int(each[1]): int(each[2]) for each in found if each is not None}
    if not topic or len(by_broker) != len(found):
        raise ValueError(f"{text} names no partitions: write topic, brokers and counts like orders=0:4,1:4")
    return topic, by_broker


def parse_seconds(text: str, low: float = 0.0, high: float = SECONDS_MAX) -> float:
    """Parse a number of seconds from *low* to *high*."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = float("nan")
    if not low <= seconds <= high:  # NaN is in no range
        raise ValueError(f"{text} is not a number of seconds from {low:.15g} to {high:.15g}")
    return seconds


class Seconds(Parsed[float]):
    """Number of seconds from *low* to *high*."""

    def __init__(self, low: float = 0.0, high: float = SECONDS_MAX) -> None:
        super().__init__("seconds", partial(parse_seconds, low=low, high=high))


MOMENT: Final = Parsed("time", parse_moment)
PARTITION: Final = Parsed("partition", parse_partition)


def offset_or_time(text: str) -> int | datetime.datetime:
    """Parse an offset (digits only) or a time. Raises NotAPoint."""
    if text.isascii() and text.isdigit():
        if len(text) >= 20 or int(text) > INT64_MAX:
            raise NotAPoint(f"an offset (63 bits), nor {_TIME}")
        return int(text)
    try:
        return datetime.datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError) as error:
        raise NotAPoint(f"an offset, nor {_TIME}") from error
