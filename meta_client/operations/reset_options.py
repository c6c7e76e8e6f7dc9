"""Words of `metaq groups reset`: which partitions, where to, and what to do about members that are alive."""

import datetime
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import click

from meta_client.operations.option_types import NotAPoint, PartitionParam, Seconds, offset_or_time
from zk.tree.nodes import Partition

SHIFT_MAX: Final = 1_000_000  # messages; their offsets are in memory while shifting back


@dataclass(frozen=True, slots=True)
class Shift:
    """So many messages on; negative: back."""

    messages: int


@dataclass(frozen=True, slots=True)
class OtherGroup:
    """Positions of another group."""

    name: str


@dataclass(frozen=True, slots=True)
class SavedIn:
    """Positions in a file."""

    path: Path


Target = Literal["earliest", "latest"] | int | datetime.datetime | Shift | OtherGroup | SavedIn  # an int is an offset


class ResetTarget(click.ParamType[Target]):
    """Target of a reset."""

    name = "target"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Target:
        match (text := str(value)).partition(":"):
            case ("earliest" | "latest") as end, "", "":
                return end
            case "group", ":", name:
                return OtherGroup(name)
            case "file", ":", path:
                if not Path(path).is_file():
                    self.fail(
                        f"there is no file {path}: name what a reset, or describe, printed with --json", param, ctx
                    )
                return SavedIn(Path(path))
        if re.fullmatch("[+-][0-9]{1,20}", text):
            if abs(int(text)) > SHIFT_MAX:
                self.fail(f"{text} are too many messages at once: at most {SHIFT_MAX}", param, ctx)
            return Shift(int(text))
        try:
            return offset_or_time(text)
        except NotAPoint as error:
            forms = "earliest, latest, +N or -N messages, group:NAME nor file:FILE"
            self.fail(f"{text} is neither {forms}, nor {error}", param, ctx)


class PlaceName(click.ParamType[tuple[str | None, Partition | None]]):
    """Topic, or one of its partitions; without the topic, that partition of each."""

    name = "place"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str | None, Partition | None]:
        topic, slash, partition = str(value).partition("/")
        return topic or None, PartitionParam().convert(partition, param, ctx) if slash else None


class MemberRule(click.ParamType[float | Literal["force"]]):
    """Seconds to wait for members to leave, or force."""

    name = "rule"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | Literal["force"]:
        match text := str(value):
            case "refuse":
                return 0.0
            case "force":
                return "force"
        if text.startswith("wait:"):
            return Seconds().convert(text.removeprefix("wait:"), param, ctx)
        return self.fail(f"{text} is neither refuse, force nor wait:SECONDS, such as wait:30", param, ctx)
