"""Replies of filtered gets, such that genuine clients never end up inside a message (spec 4.8). Pure.

The ancestor packs the accepted messages of a slice together; its clients then advance by what they received, which is
less than what was filtered. So only one contiguous run is returned, and rejected messages are skipped by a 301.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple


class FrameVerdict(NamedTuple):
    """One whole message of a slice: its end in the slice, and whether the filter accepts it."""

    end: int
    is_accepted: bool


@dataclass(frozen=True, slots=True)  # and Skip: as tuples they would be equal to one another
class Deliver:
    """Answer with the first *size* bytes of the slice."""

    size: int


@dataclass(frozen=True, slots=True)
class Skip:
    """Answer with a 301 to *size* bytes after the requested offset."""

    size: int


def choose_reply(verdicts: Sequence[FrameVerdict], size: int) -> Deliver | Skip:
    """Return the reply to a get whose slice has *size* bytes: a run of accepted messages, or a 301 past rejected
    ones.

    A slice without a whole message is returned unchanged: its reader must request more.
    """
    if not verdicts:
        return Deliver(size)
    wanted = verdicts[0].is_accepted
    end = 0
    for verdict in verdicts:
        if verdict.is_accepted is not wanted:
            break
        end = verdict.end
    return Deliver(end) if wanted else Skip(end)
