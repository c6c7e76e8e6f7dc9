"""Option types: points in a topic (an end, an offset, a time), partitions, and seconds."""

import datetime
import re
from typing import Final, Literal

import click

from meta_client.consumer.position import Position
from zk.tree.nodes import INT64_MAX, Partition

STORED: Final = "stored"
SECONDS_MAX: Final = 1_000_000.0  # some eleven days; sockets and locks take twice that

_TIME = "a time like 2010-12-05T10:00, or 2010-12-05T10:00+00:00"


class NotAPoint(ValueError):
    """A text is neither an offset nor a time. The message ends a sentence: `neither ..., nor ...`."""


class Moment(click.ParamType[datetime.datetime]):
    """Point in time, in ISO 8601; local time by default."""

    name = "time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> datetime.datetime:
        try:
            return datetime.datetime.fromisoformat(str(value)).astimezone()
        except (ValueError, OverflowError):
            self.fail(f"{value} is no time: write it {_TIME[7:]}", param, ctx)


class StartParam(click.ParamType[Position | Literal["stored"]]):
    """Start position: earliest, latest, stored, an offset, or a time."""

    name = "start"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Position | Literal["stored"]:
        match text := str(value):
            case "earliest" | "latest" | "stored":
                return text
        try:
            return offset_or_time(text)
        except NotAPoint as error:
            self.fail(f"{text} is neither earliest, latest nor stored, nor {error}", param, ctx)


class EndParam(click.ParamType[int | datetime.datetime]):
    """End position, exclusive: an offset or a time."""

    name = "end"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | datetime.datetime:
        try:
            return offset_or_time(str(value))
        except NotAPoint as error:
            self.fail(f"{value} is neither {error}", param, ctx)


class PartitionParam(click.ParamType[Partition]):
    """Partition, as in listings."""

    name = "partition"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Partition:
        if (partition := Partition.maybe_parse(str(value))) is None:
            self.fail(f"{value} is no partition: write it as listings show it, like 0-3", param, ctx)
        return partition


class ExpectedParam(click.ParamType[tuple[str, dict[int, int]]]):
    """Partitions of a topic by broker: TOPIC=BROKER:COUNT, with commas between."""

    name = "partitions"
    _COUNTS = re.compile(r"(0|[1-9][0-9]{0,9}):([1-9][0-9]{0,4})", re.ASCII)

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, dict[int, int]]:
        if isinstance(value, tuple):
            return value
        topic, _, counts = str(value).partition("=")
        found = [self._COUNTS.fullmatch(each) for each in counts.split(",")]
        by_broker = {int(each[1]): int(each[2]) for each in found if each is not None}
        if not topic or len(by_broker) != len(found):
            self.fail(f"{value} names no partitions: write topic, brokers and counts like orders=0:4,1:4", param, ctx)
        return topic, by_broker


class Seconds(click.ParamType[float]):
    """Number of seconds from *low* to *high*."""

    name = "seconds"

    def __init__(self, low: float = 0.0, high: float = SECONDS_MAX) -> None:
        self._low = low
        self._high = high

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = float(str(value))
        except ValueError:
            seconds = float("nan")
        if not self._low <= seconds <= self._high:  # NaN is in no range
            self.fail(f"{value} is not a number of seconds from {self._low:.15g} to {self._high:.15g}", param, ctx)
        return seconds


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
