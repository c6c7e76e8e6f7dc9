"""The writer epochs of a journal, and the LSN at which two copies diverge. Pure.

A writer epoch is one open by a writer: one process, one epoch and incarnation. Only that process wrote records of it,
each after the last record it found. So two copies that share a writer epoch are identical up to its end in the copy
that has less of it.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from journal.records.header import Lsn

EPOCH_HISTORY_MAX: Final = 1_000  # newest kept: a copy that diverges further back needs an initial sync


class WriterEpoch(NamedTuple):
    """One open of a journal. *lsn*: the end of the last record before it, hence the first that it may have written. A
    restart raises the incarnation, a promotion the epoch."""

    epoch: int
    incarnation: int
    lsn: Lsn


def add_epoch(epochs: list[WriterEpoch], writer_epoch: WriterEpoch) -> None:
    """Add the newest writer epoch, and drop the oldest beyond EPOCH_HISTORY_MAX."""
    epochs.append(writer_epoch)
    if len(epochs) > EPOCH_HISTORY_MAX:
        del epochs[0]


def divergence_lsn(
    ours: Sequence[WriterEpoch], our_end: int, theirs: Sequence[WriterEpoch], their_end: int
) -> Lsn | None:
    """Return the first LSN at which two copies of a journal may differ; below it they are identical.

    Each side is its epoch history, oldest first, and its end. None: they share no writer epoch, so nothing is known to
    be equal.
    """
    shared = set(ours) & set(theirs)
    if not shared:
        return None
    last = max(shared)
    return Lsn(min(_end_of(last, ours, our_end), _end_of(last, theirs, their_end)))


def _end_of(writer_epoch: WriterEpoch, epochs: Sequence[WriterEpoch], end: int) -> int:
    """Return the end of *writer_epoch* in a copy: the start of the next one."""
    after = epochs[epochs.index(writer_epoch) + 1 :]
    return min(after[0].lsn, end) if after else end
