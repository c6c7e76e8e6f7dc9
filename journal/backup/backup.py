"""Takes a back-up of a directory, whether its broker runs or not: a checkpoint, and the segments up to one LSN.

The segments are opened first, so that retention can't take them away; then the newest checkpoint is read, which needs
nothing before them; then the end of the records is found. Below that end no byte changes any more, and everything that
was acknowledged when the back-up began is there. The copy is fsynced, read back from the disk record by record, and
named in the manifest, which is written last.
"""

import contextlib
import errno
import hashlib
import time
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from journal.backup.manifest import FORMAT, BackupFile, Manifest, encode_manifest, text_of
from journal.errors import CorruptJournal, DirectoryIsBackup, InvalidContent, NoJournal, StorageFailed
from journal.records.header import Lsn
from journal.repair.check import CheckReport, check
from journal.state.checkpoint import Checkpoint, encode_checkpoint, read_newest
from journal.state.copy_marks import MANIFEST, UNFINISHED_BACKUP, refuse_backup
from journal.state.initial_sync import refuse_unfinished_sync
from journal.state.inspection import read_checkpoints
from journal.state.journal_state import JournalState
from journal.state.recovery import check_reaches
from journal.state.replay import RecordFold, replay
from journal.wal.open_journal import JournalConfig
from journal.wal.scan import EndVerdict, Scanner
from journal.wal.segments import Segments, segment_name
from journal.wal.storage import TMP_SUFFIX, Storage
from journal.wal.storage_file import StorageFile

CHUNK_BYTES: Final = 1 << 20
OPEN_ATTEMPTS: Final = 5  # a live broker may delete or add a segment between listing and opening
SAME_END_MAX: Final = 5  # looks at the same bad bytes of a live journal before they count as damage
LOOK_AGAIN_S: Final = 0.2
_ZEROS: Final = bytes(CHUNK_BYTES)

OnBytes = Callable[[int], None]  # bytes done


class SourceView(NamedTuple):
    """An open directory: its segments, its newest checkpoint (number 0: none), the end of what is copied, and the fold
    of all records below it."""

    segments: Segments
    number: int
    checkpoint: Checkpoint | None
    end: Lsn
    state: JournalState


def take_backup(
    source: Storage,
    target: Storage,
    version: str,
    time_ms: int,
    expect: OnBytes = lambda total: None,
    on_progress: OnBytes = lambda done: None,
) -> Manifest:
    """Copy *source*, a master's or a slave's directory, to *target*, an empty one that is locked. Durable and verified
    on return; until then *target* is refused by everything but another back-up. Changes nothing in *source*.

    *expect* is called with the bytes to copy, *on_progress* with those done. Raises NoJournal, UnfinishedSync,
    DirectoryIsBackup, CorruptJournal, InvalidRecord, StorageFailed.
    """
    refuse_backup(source)
    refuse_unfinished_sync(source)
    _begin(target)
    view = _opened(source)
    with contextlib.closing(view.segments):
        chosen = [(base, file) for base, file in view.segments if base < view.end]
        expect(sum(file.size for _, file in chosen))
        files, done = list[BackupFile](), 0
        for base, file in chosen:
            files.append(_copy_segment(file, base, min(file.size, view.end - base), target))
            done += file.size
            on_progress(done)
        if view.checkpoint is not None:
            files.append(_copy_checkpoint(view.number, view.checkpoint, target))
    report = _verified(target, view.end)
    manifest = Manifest(
        format=FORMAT,
        version=version,
        cluster=report.identity.cluster,
        broker_id=report.identity.broker_id,
        source=text_of(source.path),
        time_ms=time_ms,
        last_ms=view.state.time_ms,
        start=report.start,
        end=view.end,
        epoch=view.state.epoch,
        incarnation=view.state.incarnation,
        records=report.records,
        in_doubt=len(report.prepared),
        files=tuple(files),
    )
    target.replace(MANIFEST, encode_manifest(manifest))
    target.remove(UNFINISHED_BACKUP)
    return manifest


def _begin(target: Storage) -> None:
    names = target.names()
    if UNFINISHED_BACKUP not in names:
        if [name for name in names if name != UNFINISHED_BACKUP + TMP_SUFFIX]:
            raise DirectoryIsBackup(f"{target.path} is not empty: name a new directory for each back-up")
        target.replace(UNFINISHED_BACKUP, b"\n")
    for name in target.names():
        if name != UNFINISHED_BACKUP:
            target.remove(name)


def _opened(source: Storage) -> SourceView:
    """Open *source*; try again while a live broker adds and deletes files."""
    attempts_left = OPEN_ATTEMPTS
    while True:
        attempts_left -= 1
        try:
            return _open(source)
        except (StorageFailed, CorruptJournal) as error:
            is_changing = isinstance(error, CorruptJournal) or error.errno == errno.ENOENT
            if not attempts_left or not is_changing:
                raise
            time.sleep(LOOK_AGAIN_S)


def _open(source: Storage) -> SourceView:
    segments = Segments.open(source, None, JournalConfig().segment_bytes, writable=False)
    try:
        if not len(segments):
            raise NoJournal(source.path)
        number, content, _ = read_newest(source)
        checkpoint, state = content or (None, JournalState(segments.start))
        check_reaches(segments, checkpoint)
        return SourceView(segments, number, checkpoint, _fold(segments, state), state)
    except BaseException:
        segments.close()
        raise


def _fold(segments: Segments, state: JournalState) -> Lsn:
    """Add the records from *state* on to it, and return their end. Raises CorruptJournal, InvalidRecord."""
    scanner, fold = Scanner(segments, state.lsn), RecordFold(state)
    same = 0
    while True:
        before = scanner.end
        deque(replay(scanner, fold), maxlen=0)
        end = scanner.judge_end()
        if end.verdict is not EndVerdict.CORRUPT:
            return scanner.end
        # A live writer may have written more between the two looks.
        same = same + 1 if scanner.end == before else 0
        if same >= SAME_END_MAX:
            raise CorruptJournal(end.end, end.next_valid_lsn, end.reason, segments.storage.path)
        time.sleep(LOOK_AGAIN_S)


def _copy_segment(file: StorageFile, base: Lsn, used: int, target: Storage) -> BackupFile:
    """Copy the first *used* bytes of a segment; the rest is zeros, as in one that is not full."""
    name, digest, reader = segment_name(base), hashlib.sha256(), file.reader()
    copy = target.preallocate(name, file.size, b"", lambda: True)
    try:
        for position in range(0, used, CHUNK_BYTES):
            data = reader.read(position, min(CHUNK_BYTES, used - position))
            copy.write(position, [data])
            digest.update(data)
        for position in range(used, file.size, CHUNK_BYTES):
            digest.update(_ZEROS[: file.size - position])
        copy.sync()
    finally:
        copy.close()
    target.rename_into_place(name)
    return BackupFile(name=name, bytes=file.size, sha256=digest.hexdigest())


def _copy_checkpoint(number: int, checkpoint: Checkpoint, target: Storage) -> BackupFile:
    """Write *checkpoint* without the entries of index files, which are derived and not copied."""
    bare = [msgspec.structs.replace(entry, index=None) for entry in checkpoint.partitions]
    raw = bytes(encode_checkpoint(msgspec.structs.replace(checkpoint, partitions=bare)))
    name = f"checkpoint.{number}"
    target.replace(name, raw)
    return BackupFile(name=name, bytes=len(raw), sha256=hashlib.sha256(raw).hexdigest())


def _verified(target: Storage, end: Lsn) -> CheckReport:
    """Read the copy back, all of it. Raises CorruptJournal, InvalidContent if it is not sound up to *end*."""
    checkpoints = read_checkpoints(target)
    segments = Segments.open(target, None, JournalConfig().segment_bytes, writable=False)
    try:
        segments.drop_cache(0)  # the disk's content, not the page cache's
        report = check(segments, checkpoints)
    finally:
        segments.close()
    if report.verdict is EndVerdict.CORRUPT or report.end != end:
        raise CorruptJournal(report.end, report.next_valid_lsn, report.reason, target.path)
    problems = [problem for file in report.checkpoints for problem in file.problems]
    if report.contradiction is not None or problems:
        raise InvalidContent(
            f"{target.path}: what was copied contradicts itself: {report.contradiction or problems[0]}: run "
            f"`metaq journal check` on the source, and try again: a slave may have truncated its copy meanwhile"
        )
    return report
