"""Makes a checkpoint of the state at one LSN in steps, while records continue to be applied.

A broker with a hundred thousand live branches, or the batches of twenty thousand producers, must not block while all of
them are captured. A branch that is about to change is captured before (`JournalState.before_change`), so the snapshot
is consistent. Remembered batches are replaced, never changed.
"""

from itertools import islice

import msgspec

from journal.records.header import Lsn
from journal.state.checkpoint import BranchEntry, Checkpoint, ProducerEntry, branch_entry, checkpoint_of, producer_entry
from journal.state.journal_state import Branch, JournalState

ITEMS_AT_ONCE = 1_000  # when no request waits


class Snapshot:
    """A snapshot in progress. Owner thread only. One at a time: a second one ends the first, which must not be used any
    more."""

    def __init__(self, state: JournalState) -> None:
        self._state = state
        self._head = checkpoint_of(state, {}, branches=[], batches=[])
        self._producer_iterator = iter(state.producers)
        self._producers: list[ProducerEntry] = []
        self._branches = list(state.branches.values())
        self._token = object()  # marks captured branches: a set of a hundred thousand would take megabytes
        self._entries: list[BranchEntry] = []  # of the captured branches
        self._early: dict[Lsn, BranchEntry] = {}
        state.before_change = self._about_to_change

    @property
    def lsn(self) -> int:
        """LSN below which it holds every record, and none above."""
        return self._head.lsn

    def step(self, items_max: int) -> bool:
        """Capture more branches, or the batches of more producers. Returns True while any are left."""
        start = len(self._entries)
        for branch in self._branches[start : start + items_max]:
            early = self._early.pop(branch.first_lsn, None)
            branch.captured_by = self._token
            self._entries.append(early if early is not None else branch_entry(branch))
        if len(self._entries) < len(self._branches):
            return True
        noted = [producer_entry(*window) for window in islice(self._producer_iterator, items_max)]
        self._producers += noted
        return len(noted) == items_max

    def checkpoint(self) -> Checkpoint:
        """Capture the rest and return the checkpoint, without index entries."""
        while self.step(ITEMS_AT_ONCE):
            pass
        self._state.before_change = None
        return msgspec.structs.replace(self._head, branches=self._entries, batches=self._producers)

    def _about_to_change(self, branch: Branch) -> None:
        if branch.captured_by is not self._token and branch.first_lsn < self.lsn:
            branch.captured_by = self._token
            self._early[branch.first_lsn] = branch_entry(branch)
