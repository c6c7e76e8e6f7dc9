"""Relocates live branches in the background: a worker reads, the loop appends, one round at a time.

A round is about a mebibyte, and the next one waits until it is acknowledged: no more than that is ever queued before
puts, however large a branch is.
"""

import asyncio
import logging
from concurrent.futures import Executor

from journal.errors import CorruptJournal, JournalError, RecordTooLarge
from journal.state.relocation import RelocationChunk, Relocator, read_chunk
from journal.state.transaction_store import JournalTransactionStore
from journal.wal.high_watermark import HighWatermark

log = logging.getLogger(__name__)


class RelocationJob:
    """Relocation of one broker's branches. Loop thread only."""

    def __init__(
        self, transactions: JournalTransactionStore, high_watermark: HighWatermark, after_segments: int
    ) -> None:
        self._transactions = transactions
        self._journal = transactions.journal
        self._high_watermark = high_watermark
        self._relocation = Relocator(self._journal, transactions.state, after_segments)
        self._task: asyncio.Task[None] | None = None
        self._acknowledged: asyncio.Future[None] | None = None  # set once the round in flight is acknowledged
        self._is_stopping = False

    def maybe_begin(self, worker: Executor) -> None:
        if self._task is None and not self._is_stopping and self._relocation.is_due:
            self._task = asyncio.create_task(self._relocate(worker))
            self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        error = None if task.cancelled() else task.exception()
        if isinstance(error, JournalError):
            log.error("relocation failed error=%s", error)  # the journal has stopped, and reports that itself
        elif error is not None:
            raise error

    async def _relocate(self, worker: Executor) -> None:
        loop = asyncio.get_running_loop()
        while not self._is_stopping and (round_ := self._relocation.next_chunks()):
            read = await loop.run_in_executor(worker, self._read, round_)
            for chunk, frames in zip(round_, read, strict=True):
                self._append(chunk, frames)
            if self._is_stopping:
                return
            reached = self._acknowledged = loop.create_future()
            self._high_watermark.run_after(self._journal.end, _resolve, reached)
            await reached

    def _read(self, round_: list[RelocationChunk]) -> list[list[memoryview] | CorruptJournal]:
        """Read the frames of each chunk, on the worker thread."""
        read: list[list[memoryview] | CorruptJournal] = []
        for chunk in round_:
            try:
                read.append(read_chunk(self._journal, chunk))
            except CorruptJournal as error:
                read.append(error)
        return read

    def _append(self, chunk: RelocationChunk, frames: list[memoryview] | CorruptJournal) -> None:
        branch = chunk.branch
        if branch.first_lsn not in self._transactions.state.branches:
            return  # decided meanwhile
        try:
            if isinstance(frames, CorruptJournal):
                raise frames
            self._transactions.relocate(chunk, frames)
        except (CorruptJournal, RecordTooLarge) as error:
            log.error("branch not relocated, retention stops at it xid=%s error=%s", branch.key, error)
            self._relocation.give_up(branch)
            return
        if chunk.is_last:
            log.info(
                "branch relocated xid=%s begun=%d messages=%d bytes=%d start=%d",
                *(branch.key, branch.first_lsn, branch.messages, branch.bytes, branch.oldest_lsn),
            )

    async def stop(self) -> None:
        """Stop after the running round; no new one begins."""
        self._is_stopping = True
        if self._task is not None:
            if self._acknowledged is not None and not self._acknowledged.done():
                self._task.cancel()  # if the journal has stopped, the high watermark never passes
            await asyncio.wait([self._task])


def _resolve(reached: "asyncio.Future[None]") -> None:
    if not reached.done():
        reached.set_result(None)
