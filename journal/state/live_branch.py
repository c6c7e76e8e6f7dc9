"""Results of a store's methods: a live branch, and what an append did."""

from collections.abc import Callable, Sequence

import msgspec

from journal.records.header import Lsn
from journal.records.index_updates import IndexUpdate
from journal.records.states import BranchState
from journal.records.xid import BranchKey
from journal.state.journal_state import Branch


def _nothing() -> None:
    pass


class LiveBranch(msgspec.Struct, eq=False):
    """One live branch as the store's callers hold it. *branch* is None until something was put.

    *timeout_ms*: it is rolled back if still active that long after *began_ms*; 0: never.
    """

    key: BranchKey
    began_ms: int
    timeout_ms: int = 0
    branch: Branch | None = None
    is_over: bool = False
    origin: str = ""  # client that began it, for people; unknown for a branch from before the start
    owner: str | None = None  # principal that began it; unknown likewise, and without access rules
    on_over: Callable[[], None] = _nothing  # called once when it is over

    @property
    def state(self) -> BranchState:
        if self.is_over:
            return BranchState.FINISHED
        return self.branch.state if self.branch is not None else BranchState.START


class AppendResult(msgspec.Struct, frozen=True):
    """Result of an append: the index updates, and the LSN to wait for before replying."""

    lsn: Lsn
    updates: Sequence[IndexUpdate]
