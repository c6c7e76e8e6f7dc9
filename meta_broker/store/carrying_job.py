"""Carrying live branches forward beside everything else: a worker reads, the loop appends, one round at a time.

A round is about a mebibyte, and the next one waits until it is acknowledged: puts find no more than that in front of
them, whatever a branch holds.
"""

import asyncio
import logging
from concurrent.futures import Executor

from journal.carrying import Carrying, Piece, copies
from journal.errors import JournalError, RecordTooLarge, RottenJournal
from journal.fence import Fence
from journal.transaction_store import JournalTransactionStore

log = logging.getLogger(__name__)


class CarryingJob:
    """One broker's. Loop thread only."""

    def __init__(self, transactions: JournalTransactionStore, fence: Fence, after_segments: int) -> None:
        self._transactions = transactions
        self._journal = transactions.journal
        self._fence = fence
        self._carrying = Carrying(self._journal, transactions.state, after_segments)
        self._task: asyncio.Task[None] | None = None
        self._acknowledged: asyncio.Future[None] | None = None  # what the round in flight waits for
        self._is_ending = False

    @property
    def is_busy(self) -> bool:
        return self._task is not None

    def maybe_begin(self, loop: asyncio.AbstractEventLoop, worker: Executor) -> None:
        """Begin to carry if something is due and nothing is under way."""
        if self._task is None and not self._is_ending and self._carrying.is_due:
            self._task = loop.create_task(self._carry(loop, worker))
            self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        error = None if task.cancelled() else task.exception()
        if isinstance(error, JournalError):
            log.error("carrying failed error=%s", error)  # the journal has stopped, and says so itself
        elif error is not None:
            raise error

    async def _carry(self, loop: asyncio.AbstractEventLoop, worker: Executor) -> None:
        while not self._is_ending and (round_ := self._carrying.next_pieces()):
            read = await loop.run_in_executor(worker, self._read, round_)
            for piece, frames in zip(round_, read, strict=True):
                self._append(piece, frames)
            if self._is_ending:
                return
            reached = self._acknowledged = loop.create_future()
            self._fence.after(self._journal.end, _pass, reached)
            await reached

    def _read(self, round_: list[Piece]) -> list[list[memoryview] | RottenJournal]:
        """The frames of each piece, on the worker thread."""
        read: list[list[memoryview] | RottenJournal] = []
        for piece in round_:
            try:
                read.append(copies(self._journal, piece))
            except RottenJournal as error:
                read.append(error)
        return read

    def _append(self, piece: Piece, frames: list[memoryview] | RottenJournal) -> None:
        branch = piece.branch
        if branch.first_lsn not in self._transactions.state.branches:
            return  # it was decided meanwhile
        try:
            if isinstance(frames, RottenJournal):
                raise frames
            self._transactions.carry(piece, frames)
        except (RottenJournal, RecordTooLarge) as error:
            log.error("branch not carried, retention stops at it key=%s error=%s", branch.key, error)
            self._carrying.give_up(branch)
            return
        if piece.is_last:
            log.info(
                "branch carried key=%s begun=%d messages=%d bytes=%d start=%d",
                *(branch.key, branch.first_lsn, branch.messages, branch.bytes, branch.oldest_lsn),
            )

    async def finish(self) -> None:
        """End after the round that is under way; nothing is begun any more."""
        self._is_ending = True
        if self._task is not None:
            if self._acknowledged is not None and not self._acknowledged.done():
                self._task.cancel()  # the journal may have stopped: the fence would never pass
            await asyncio.wait([self._task])


def _pass(reached: "asyncio.Future[None]") -> None:
    if not reached.done():
        reached.set_result(None)
