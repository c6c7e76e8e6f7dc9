"""The state as of one LSN, turned into a checkpoint piece by piece while records go on being applied.

A broker with a hundred thousand live branches, or the batches of twenty thousand producers, must not stand still while
all of them are written down. A branch that is about to change before its turn is written down first
(`JournalState.before_change`): so every one is as it was. What is remembered of batches is replaced, never changed.
"""

from itertools import islice

import msgspec

from journal.checkpoint import BatchesMark, BranchMark, Checkpoint, batches_mark, branch_mark, checkpoint_of
from journal.fold import Branch, JournalState
from journal.frame import Lsn

ITEMS_AT_ONCE = 1_000  # when nobody waits


class Snapshot:
    """Owner thread only. One at a time: a second one ends the first, which must not be gone on with."""

    def __init__(self, state: JournalState) -> None:
        self._state = state
        self._head = checkpoint_of(state, {}, branches=[], batches=[])
        self._windows = iter(state.batches)
        self._batches: list[BatchesMark] = []
        self._branches = list(state.branches.values())
        self._token = object()  # of those that are written down: a set of a hundred thousand would take megabytes
        self._marks: list[BranchMark] = []  # of the branches that had it
        self._early: dict[Lsn, BranchMark] = {}
        state.before_change = self._about_to_change

    @property
    def lsn(self) -> int:
        """Every record below is in it, and none above."""
        return self._head.lsn

    def go_on(self, items_max: int) -> bool:
        """Write down some more branches, or the batches of some more producers; True while there are others."""
        start = len(self._marks)
        for branch in self._branches[start : start + items_max]:
            early = self._early.pop(branch.first_lsn, None)
            branch.noted_by = self._token
            self._marks.append(early if early is not None else branch_mark(branch))
        if len(self._marks) < len(self._branches):
            return True
        noted = [batches_mark(*window) for window in islice(self._windows, items_max)]
        self._batches += noted
        return len(noted) == items_max

    def checkpoint(self) -> Checkpoint:
        """Write down what is left; then all of it, without index marks."""
        while self.go_on(ITEMS_AT_ONCE):
            pass
        self._state.before_change = None
        return msgspec.structs.replace(self._head, branches=self._marks, batches=self._batches)

    def _about_to_change(self, branch: Branch) -> None:
        if branch.noted_by is not self._token and branch.first_lsn < self.lsn:
            branch.noted_by = self._token
            self._early[branch.first_lsn] = branch_mark(branch)
