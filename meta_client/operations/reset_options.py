"""Words of `metaq groups reset`: which partitions, where to, and what to do about members that are alive."""

import datetime
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from meta_client.operations.option_types import NotAPoint, offset_or_time, parse_partition, parse_seconds
from zk.tree.nodes import Partition

SHIFT_MAX: Final = 1_000_000  # messages; their offsets are in memory while shifting back


@dataclass(frozen=True, slots=True)
class Shift:
    """So many messages on; negative: back."""

    messages: int


@dataclass(frozen=True, slots=True)
class OtherGroup:
    name: str


@dataclass(frozen=True, slots=True)
class SavedIn:
    path: Path


Target = Literal["earliest", "latest"] | int | datetime.datetime | Shift | OtherGroup | SavedIn  # an int is an offset


def parse_target(text: str) -> Target:
    """Parse a target of a reset. Raises ValueError."""
    match text.partition(":"):
        case ("earliest" | "latest") as end, "", "":
            return end
        case "group", ":", name:
            return OtherGroup(name)
        case "file", ":", path:
            if not Path(path).is_file():
                raise ValueError(f"there is no file {path}: name what a reset, or describe, printed with --json")
            return SavedIn(Path(path))
    if re.fullmatch("[+-][0-9]{1,20}", text):
        if abs(int(text)) > SHIFT_MAX:
            raise ValueError(f"{text} are too many messages at once: at most {SHIFT_MAX}")
        return Shift(int(text))
    try:
        return offset_or_time(text)
    except NotAPoint as error:
        forms = "earliest, latest, +N or -N messages, group:NAME nor file:FILE"
        raise ValueError(f"{text} is neither {forms}, nor {error}") from None


def parse_place(text: str) -> tuple[str | None, Partition | None]:
    """Parse a topic, or one of its partitions; without the topic, that partition of each. Raises ValueError."""
    topic, slash, partition = text.partition("/")
    return topic or None, parse_partition(partition) if slash else None


def parse_member_rule(text: str) -> float | Literal["force"]:
    """Parse the seconds to wait for members to leave, or force. Raises ValueError."""
    match text:
        case "refuse":
            return 0.0
        case "force":
            return "force"
    if text.startswith("wait:"):
        return parse_seconds(text.removeprefix("wait:"))
    raise ValueError(f"{text} is neither refuse, force nor wait:SECONDS, such as wait:30")
