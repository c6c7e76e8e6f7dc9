"""The state as of one LSN, turned into a checkpoint piece by piece while records go on being applied.

A broker with a hundred thousand live branches must not stand still while all of them are written down. A branch that is
about to change before its turn is written down first (`JournalState.before_change`): so every one is as it was.
"""

import msgspec

from journal.checkpoint import BranchMark, Checkpoint, branch_mark, checkpoint_of
from journal.fold import Branch, JournalState
from journal.frame import Lsn


class Snapshot:
    """Owner thread only. One at a time: a second one ends the first, which must not be gone on with."""

    def __init__(self, state: JournalState) -> None:
        self._state = state
        self._head = checkpoint_of(state, {}, branches=[])
        self._branches = list(state.branches.values())
        self._token = object()  # of those that are written down: a set of a hundred thousand would take megabytes
        self._marks: list[BranchMark] = []  # of the branches that had it
        self._early: dict[Lsn, BranchMark] = {}
        state.before_change = self._about_to_change

    @property
    def lsn(self) -> int:
        """Every record below is in it, and none above."""
        return self._head.lsn

    def go_on(self, branches_max: int) -> bool:
        """Write down some more branches; True while there are others."""
        start = len(self._marks)
        for branch in self._branches[start : start + branches_max]:
            early = self._early.pop(branch.first_lsn, None)
            branch.noted_by = self._token
            self._marks.append(early if early is not None else branch_mark(branch))
        return len(self._marks) < len(self._branches)

    def checkpoint(self) -> Checkpoint:
        """Write down what is left; then all of it, without index marks."""
        self.go_on(len(self._branches))
        self._state.before_change = None
        return msgspec.structs.replace(self._head, branches=self._marks)

    def _about_to_change(self, branch: Branch) -> None:
        if branch.noted_by is not self._token and branch.first_lsn < self.lsn:
            branch.noted_by = self._token
            self._early[branch.first_lsn] = branch_mark(branch)
