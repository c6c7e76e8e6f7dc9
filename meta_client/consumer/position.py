"""Where in a partition to begin, or to go on: an offset, one of its ends, or a time. Pure."""

from datetime import datetime
from typing import Literal, NamedTuple

from meta_client.protocol.requests import OFFSET_END

EARLIEST: Literal["earliest"] = "earliest"
LATEST: Literal["latest"] = "latest"

# An offset in bytes, as a message, a commit or `metaq offsets` gave it; the first message that is left; what is put
# from now on; or what was put at that time and later (a time without a zone is local time).
Position = int | datetime | Literal["earliest", "latest"]


class Jump(NamedTuple):
    """An order to go on elsewhere in a partition. *is_progress*: the group's progress is there from then on."""

    to: Position
    is_progress: bool


def check_position(position: Position) -> Position:
    """Return *position* if it is one. Raises ValueError."""
    match position:
        case datetime() | "earliest" | "latest":
            return position
        case int() if position >= 0 and not isinstance(position, bool):
            return position
    raise ValueError(f"start {position!r}: give an offset, 'earliest', 'latest' or a datetime")


def offset_of(position: Position) -> int | None:
    """The offset to ask for; None for a time, which only a broker can turn into one."""
    match position:
        case int():
            return position
        case "earliest":
            return 0  # a broker that has deleted it names the first one it has
        case "latest":
            return OFFSET_END  # every broker answers this with the end
        case _:
            return None


def milliseconds(time: datetime) -> int:
    """*time* as brokers count it: milliseconds since 1970, never before."""
    return max(0, int(time.timestamp() * 1000))
