"""Reads what a slave is started with: the proof that both journals agree, or the checkpoint its copy begins with."""

import asyncio
from concurrent.futures import Executor

from journal.records.header import Lsn
from journal.state.checkpoint import encode_checkpoint, read_newest
from journal.wal.open_journal import OpenJournal
from journal.wal.segments import SEGMENT_HEADER_BYTES
from journal.wal.storage import Storage
from meta_broker.replication.link_protocol import LinkRefused
from meta_broker.replication.master.handshake import PROOF_BYTES_MAX
from meta_broker.store.partition_index import JournalSlice


def proof_place(journal: OpenJournal, divergence_lsn: Lsn, slave_start: int) -> JournalSlice | None:
    """Return the bytes both sides have just before *divergence_lsn*, in one segment; None: there are none."""
    if divergence_lsn <= max(slave_start, journal.start_lsn):
        return None
    base, _ = journal.reader(divergence_lsn - 1)
    size = min(PROOF_BYTES_MAX, divergence_lsn - max(base, slave_start))
    return JournalSlice(divergence_lsn - size, size)


def read_snapshot(journal: OpenJournal, loop: asyncio.AbstractEventLoop, worker: Executor) -> "asyncio.Future[bytes]":
    """Return the newest checkpoint's file, read on *worker*; blank: the journal is complete. The future may fail with
    LinkRefused, StorageFailed.
    """
    if journal.start_lsn == SEGMENT_HEADER_BYTES:
        whole: asyncio.Future[bytes] = loop.create_future()
        whole.set_result(b"")
        return whole
    return loop.run_in_executor(worker, _newest_checkpoint, journal.storage)


def _newest_checkpoint(storage: Storage) -> bytes:
    """Read the newest valid checkpoint. On the worker thread. Raises LinkRefused, StorageFailed."""
    newest = read_newest(storage)
    if newest.content is None:
        raise LinkRefused(f"{storage.path} has no checkpoint that reads back: run `metaq checkpoint` on the master")
    return bytes(encode_checkpoint(newest.content[0]))
