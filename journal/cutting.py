"""Cutting off what a master never had: the tail of a former master's journal, or of a copy that was ahead.

First the tail is kept in a file (cut_file), then a file `cutting` says how far to go, then checkpoints, segments and
bytes beyond it go. Whoever opens the journal to write finishes a cut that a crash has interrupted, so that it is done
whole or was never begun.
"""

from journal.bootstrap import bootstrap_names
from journal.checkpoint import checkpoint_numbers, decode_checkpoint
from journal.copy_mark import read_mark, remove_mark, write_mark
from journal.cut_file import Cut, save
from journal.errors import CutTooDeep, RottenJournal, StorageFailed
from journal.frame import Lsn
from journal.inspection import read_checkpoints
from journal.lsn_file import read_lsn, remove_file, write_lsn
from journal.open_journal import make_end_durable
from journal.scan import Scanner, Verdict
from journal.segments import SEGMENT_BYTES_MIN, SEGMENT_HEADER_BYTES, Identity, Segments
from journal.storage import Storage
from journal.watermark import lower_watermark

NAME = "cutting"


def cut(storage: Storage, identity: Identity, lsn: int, time_ms: int) -> Cut | None:
    """End the journal in a directory that is not open at *lsn*, where a record ends; durable on return.

    Returns what was cut; None if no record was. Raises CutTooDeep, before anything is changed, when what is left could
    not be opened; RottenJournal, ForeignJournal, StorageFailed.
    """
    segments = Segments.open(storage, identity, SEGMENT_BYTES_MIN, writable=True)
    try:
        finish_cut(segments)
        if not len(segments) or lsn >= segments.end:
            return None
        _check_depth(segments, lsn)
        saved = _save_from(segments, lsn, time_ms)
        write_lsn(storage, NAME, lsn)
        finish_cut(segments)
        return saved
    finally:
        segments.close()


def empty(storage: Storage, identity: Identity, save_from: int | None, time_ms: int) -> Cut | None:
    """Delete the journal in a directory that is not open, for a copy to begin anew; durable on return.

    What stands from LSN *save_from* on is kept in a file first, and returned if that held a record. Raises as `cut`.
    """
    segments = Segments.open(storage, identity, SEGMENT_BYTES_MIN, writable=True)
    try:
        finish_cut(segments)
        saved = None
        if save_from is not None and len(segments) and save_from < segments.end:
            saved = _save_from(segments, max(save_from, segments.start), time_ms)
        write_lsn(storage, NAME, 0)
        finish_cut(segments)
        return saved
    finally:
        segments.close()


def finish_cut(segments: Segments) -> None:
    """Go on with a cut that was begun, if one was. Before anything is read. Raises StorageFailed, RottenJournal."""
    storage = segments.storage
    lsn = read_lsn(storage, NAME)
    if lsn is None:
        return
    if isinstance(lsn, str):
        raise RottenJournal(segments.start, None, lsn, storage.path)
    for number in reversed(checkpoint_numbers(storage)):
        try:
            checkpoint = decode_checkpoint(storage.read(f"checkpoint.{number}"))
        except StorageFailed as error:
            checkpoint = str(error)
        if isinstance(checkpoint, str) or checkpoint.lsn > lsn:
            storage.remove(f"checkpoint.{number}")
    lower_watermark(storage, lsn)
    if lsn:
        if (mark := read_mark(storage)) is not None:
            write_mark(storage, min(mark, lsn))
        make_end_durable(segments, lsn, lsn)  # below it, the open that follows sees to that
    else:
        for name in list(bootstrap_names(storage)):
            storage.remove(name)
        remove_mark(storage)
        segments.drop_from(0)
    remove_file(storage, NAME)


def _check_depth(segments: Segments, lsn: int) -> None:
    """Raises CutTooDeep unless a start finds its way to *lsn*: from the birth, or from a checkpoint."""
    if segments.start == SEGMENT_HEADER_BYTES and lsn >= segments.start:
        return
    found = read_checkpoints(segments.storage).values()
    if not any(not isinstance(one, str) and segments.start <= one.lsn <= lsn for one in found):
        raise CutTooDeep(
            f"{segments.storage.path}: nothing that is left at LSN {lsn} could be opened: no checkpoint of it or before"
        )


def _save_from(segments: Segments, lsn: int, time_ms: int) -> Cut | None:
    """Keep the records from *lsn* on, if there are any.

    Raises RottenJournal unless they read back, and one ends there; StorageFailed.
    """
    base, file = segments.locate(lsn - 1)
    if lsn < base + file.size:
        before = Scanner(segments, base + SEGMENT_HEADER_BYTES)
        reached = base + SEGMENT_HEADER_BYTES
        for entry in before:
            if reached >= lsn:
                break
            reached = entry.header.end
        if reached != lsn:
            raise RottenJournal(lsn, None, "no record ends there", segments.storage.path)
    scanner = Scanner(segments, lsn)
    count = sum(1 for _ in scanner)
    scan = scanner.finish()
    if scan.verdict is Verdict.ROTTEN:
        raise RottenJournal(scan.end, scan.resumes, scan.reason, segments.storage.path)
    return save(segments, Lsn(lsn), scan, time_ms) if count else None
