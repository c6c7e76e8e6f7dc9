"""Truncates records that a master never had: the tail of a former master's journal, or of a copy that was ahead.

First saves the tail in a file (saved_tail), then the file `cutting` records the target, then checkpoints, segments and
bytes beyond it are removed. The next open for writing completes an interrupted truncation, so that it happens whole or
not at all.
"""

from journal.errors import CorruptJournal, InvalidContent, StorageFailed, TruncationTooDeep
from journal.records.header import Lsn
from journal.state.checkpoint import Checkpoint, checkpoint_numbers, decode_checkpoint
from journal.state.initial_sync import initial_sync_names
from journal.state.inspection import read_checkpoints
from journal.state.saved_tail import DivergentTail, save_tail
from journal.wal.marks import (
    lower_watermark,
    read_lsn,
    read_recovery_point,
    remove_file,
    remove_recovery_point,
    write_lsn,
    write_recovery_point,
)
from journal.wal.open_journal import make_end_durable
from journal.wal.scan import EndVerdict, Scanner
from journal.wal.segments import SEGMENT_BYTES_MIN, SEGMENT_HEADER_BYTES, JournalIdentity, Segments
from journal.wal.storage import Storage

NAME = "cutting"


def truncate(storage: Storage, identity: JournalIdentity, lsn: int, time_ms: int) -> DivergentTail | None:
    """Truncate the journal in a directory that is not open at *lsn*, the end of a record; durable on return.

    Returns the saved tail; None if it held no record. Raises TruncationTooDeep, before any change, if the rest could
    not be opened; CorruptJournal, ForeignJournal, StorageFailed.
    """
    segments = Segments.open(storage, identity, SEGMENT_BYTES_MIN, writable=True)
    try:
        finish_truncation(segments)
        if not len(segments) or lsn >= segments.end:
            return None
        _check_depth(segments, lsn)
        saved = _save_from(segments, lsn, time_ms)
        write_lsn(storage, NAME, lsn)
        finish_truncation(segments)
        return saved
    finally:
        segments.close()


def clear(storage: Storage, identity: JournalIdentity, save_from: int | None, time_ms: int) -> DivergentTail | None:
    """Delete the journal in a directory that is not open, before an initial sync; durable on return.

    Saves the bytes from LSN *save_from* on first, and returns them if they held a record. Raises the errors of
    `truncate`.
    """
    segments = Segments.open(storage, identity, SEGMENT_BYTES_MIN, writable=True)
    try:
        finish_truncation(segments)
        saved = None
        if save_from is not None and len(segments) and save_from < segments.end:
            saved = _save_from(segments, max(save_from, segments.start), time_ms)
        write_lsn(storage, NAME, 0)
        finish_truncation(segments)
        return saved
    finally:
        segments.close()


def finish_truncation(segments: Segments) -> None:
    """Complete a truncation that was begun, if any. Call it before anything is read. Raises StorageFailed,
    CorruptJournal."""
    storage = segments.storage
    try:
        lsn = read_lsn(storage, NAME)
    except InvalidContent as error:
        raise CorruptJournal(segments.start, None, str(error), storage.path) from error
    if lsn is None:
        return
    for number in reversed(checkpoint_numbers(storage)):
        try:
            is_kept = decode_checkpoint(storage.read(f"checkpoint.{number}")).lsn <= lsn
        except (InvalidContent, StorageFailed):
            is_kept = False
        if not is_kept:
            storage.remove(f"checkpoint.{number}")
    lower_watermark(storage, lsn)
    if lsn:
        if (recovery_point := read_recovery_point(storage)) is not None:
            write_recovery_point(storage, min(recovery_point, lsn))
        make_end_durable(segments, lsn, lsn)  # below it, the next open does that
    else:
        for name in list(initial_sync_names(storage)):
            storage.remove(name)
        remove_recovery_point(storage)
        segments.drop_from(0)
    remove_file(storage, NAME)


def _check_depth(segments: Segments, lsn: int) -> None:
    """Check that a start can reach *lsn*: from the birth, or from a checkpoint. Raises TruncationTooDeep."""
    if segments.start == SEGMENT_HEADER_BYTES and lsn >= segments.start:
        return
    found = read_checkpoints(segments.storage).values()
    if not any(isinstance(one, Checkpoint) and segments.start <= one.lsn <= lsn for one in found):
        raise TruncationTooDeep(
            f"{segments.storage.path}: nothing that is left at LSN {lsn} could be opened: no checkpoint of it or before"
        )


def _save_from(segments: Segments, lsn: int, time_ms: int) -> DivergentTail | None:
    """Save the records from *lsn* on, if any. Raises CorruptJournal unless they read back and a record ends there;
    StorageFailed."""
    base, file = segments.locate(lsn - 1)
    if lsn < base + file.size:
        before = Scanner(segments, base + SEGMENT_HEADER_BYTES)
        reached = base + SEGMENT_HEADER_BYTES
        for entry in before:
            if reached >= lsn:
                break
            reached = entry.header.end
        if reached != lsn:
            raise CorruptJournal(lsn, None, "no record ends there", segments.storage.path)
    scanner = Scanner(segments, lsn)
    count = sum(1 for _ in scanner)
    scan = scanner.judge_end()
    if scan.verdict is EndVerdict.CORRUPT:
        raise CorruptJournal(scan.end, scan.next_valid_lsn, scan.reason, segments.storage.path)
    return save_tail(segments, Lsn(lsn), scan, time_ms) if count else None
