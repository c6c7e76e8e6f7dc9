"""The lives of a journal, and where two copies of one part. Pure.

A life is one open by a writer: one process, one epoch and incarnation. Only it ever wrote records of that life, each
behind the last one that it found. So two copies that share a life agree byte by byte up to where it ends in the one
that has less of it.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from journal.frame import Lsn

LIVES_MAX: Final = 1_000  # newest kept: a copy that parts from the journal further back is made anew


class Life(NamedTuple):
    """One open of a journal. *lsn*: the end of the last record before it, which is where it may have begun to write.

    A restart raises the incarnation, a promotion the epoch.
    """

    epoch: int
    incarnation: int
    lsn: Lsn


def note_life(lives: list[Life], life: Life) -> None:
    """Add the newest life, and forget the oldest beyond LIVES_MAX."""
    lives.append(life)
    if len(lives) > LIVES_MAX:
        del lives[0]


def parting(ours: Sequence[Life], our_end: int, theirs: Sequence[Life], their_end: int) -> Lsn | None:
    """The first LSN that two copies of a journal do not share; everything below it, both have, byte by byte.

    Each side is its lives, oldest first, and its end. None: they share no life, so nothing is known to be the same.
    """
    shared = set(ours) & set(theirs)
    if not shared:
        return None
    last = max(shared)
    return Lsn(min(_end_of(last, ours, our_end), _end_of(last, theirs, their_end)))


def _end_of(life: Life, lives: Sequence[Life], end: int) -> int:
    """Where *life* ends in a copy: where the next one begins."""
    after = lives[lives.index(life) + 1 :]
    return min(after[0].lsn, end) if after else end
