"""What a get through a filter answers, so that genuine clients never end up inside a message (spec 4.8). Pure.

The ancestor packs the accepted messages of a slice together; its clients then advance by what they received, which is
less than what was looked at. So only one contiguous run is returned, and what is skipped is skipped by a 301.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Verdict(NamedTuple):
    """One whole message of a slice: where it ends in it, and whether the filter accepts it."""

    end: int
    is_accepted: bool


class Run(NamedTuple):
    """Answer with the first *size* bytes of the slice."""

    size: int


class Skip(NamedTuple):
    """Answer with a 301 to so many bytes after the offset that was asked for."""

    size: int


def decide(verdicts: Sequence[Verdict], size: int) -> Run | Skip:
    """The answer to a get whose slice has *size* bytes: a run of accepted messages, or a way past rejected ones.

    A slice without a whole message is returned as it is: its reader must learn that it asks for too little.
    """
    if not verdicts:
        return Run(size)
    wanted = verdicts[0].is_accepted
    end = 0
    for verdict in verdicts:
        if verdict.is_accepted is not wanted:
            break
        end = verdict.end
    return Run(end) if wanted else Skip(end)
