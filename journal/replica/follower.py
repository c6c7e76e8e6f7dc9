"""JournalFollower: a slave's copy of its master's journal, byte for byte, and its fold.

One owner thread. Received bytes are checked and folded into the state at once; a thread writes and fsyncs them. Nothing
is ever added: no record of an open, no presumed rollback, so active branches stay active until a record of a master
ends them. As in a master, memory runs ahead of the disk: updates are published only below the high watermark.
"""

import logging
from collections.abc import Callable
from functools import partial

import msgspec

from journal.errors import ContradictoryRecord, ForeignStream, InvalidRecord
from journal.records.epoch_history import WriterEpoch
from journal.records.header import HEADER_BYTES, Lsn
from journal.replica.replica_appender import ReplicaAppender
from journal.state.checkpoint import Checkpoint
from journal.state.checkpointed import CheckpointedState
from journal.state.initial_sync import CatchingUp, InitialSync, finish_initial_sync, read_initial_sync
from journal.state.recovery import IndexSink, NullSink, Recovered, clear_torn_tail, replay_into, restore, trim
from journal.state.replay import PendingUpdates, RecordFold, replay
from journal.state.snapshot import Snapshot
from journal.state.truncation import finish_truncation
from journal.state.wall_clock import wall_clock_ms
from journal.wal.high_watermark import LSN_MAX
from journal.wal.marks import remove_recovery_point, write_recovery_point
from journal.wal.open_journal import JournalConfig, OpenJournal
from journal.wal.record_stream import RecordChunk, RecordStream
from journal.wal.scan import Scanner
from journal.wal.segments import SEGMENT_HEADER_BYTES, JournalIdentity, Segments
from journal.wal.storage import Storage
from journal.wal.storage_file import Buffer

log = logging.getLogger(__name__)


class JournalFollower(CheckpointedState):
    """An open copy. Open it with `JournalFollower.open`; owner thread only, except `write_checkpoint`."""

    def __init__(
        self,
        journal: OpenJournal,
        recovered: Recovered,
        fold: RecordFold,
        stream: RecordStream,
        writer: ReplicaAppender,
        waiting: list[PendingUpdates],
        clock_ms: Callable[[], int],
    ) -> None:
        super().__init__(journal, recovered, clock_ms)
        self.waiting = waiting  # found at open above *publish_below*, in order: not given to the sink
        self.left: list[PendingUpdates] = []  # of a `receive` that raised: the next one returns them first
        self._fold = fold
        self._stream = stream
        self._writer = writer
        self._contradiction: ForeignStream | None = None

    @classmethod
    def open(
        cls,
        storage: Storage,
        identity: JournalIdentity,
        config: JournalConfig,
        *,
        sink: IndexSink | None = None,
        on_progress: Callable[[], None] = lambda: None,
        publish_below: Lsn = LSN_MAX,
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> "JournalFollower":
        """Recover the directory, which may be empty, and prepare to receive. Truncates a torn tail.

        *on_progress* runs on another thread, as a Journal's. Updates of records above *publish_below* go to `waiting`
        instead of *sink*, unless a checkpoint holds them: the master may not have acknowledged them. Leaves nothing
        open if it raises ForeignJournal, CorruptJournal, InvalidRecord, UnfinishedSync, StorageFailed.
        """
        segments = Segments.open(storage, identity, config.segment_bytes, writable=True)
        try:
            segments.remove_unfinished()
            return cls._recovered(segments, config, sink or NullSink(), on_progress, publish_below, clock_ms)
        except BaseException:
            segments.close()
            raise

    @classmethod
    def _recovered(
        cls,
        segments: Segments,
        config: JournalConfig,
        sink: IndexSink,
        on_progress: Callable[[], None],
        publish_below: Lsn,
        clock_ms: Callable[[], int],
    ) -> "JournalFollower":
        storage = segments.storage
        finish_truncation(segments)
        begun = read_initial_sync(storage)
        if begun is None:
            number, state, damaged = restore(segments, sink)
            fold, start = RecordFold(state), state.lsn
        else:
            number, damaged, start = 0, [], Lsn(begun.first + SEGMENT_HEADER_BYTES)
            # Its records are read from the first one on, and rebuild the indexes.
            sink.restore([msgspec.structs.replace(entry, end=entry.start) for entry in begun.checkpoint.partitions])
            catching_up = CatchingUp(begun)
            fold = RecordFold(catching_up.state, catching_up if catching_up.lsn > start else None)
            trim(sink, fold.state)
            publish_below = max(publish_below, catching_up.lsn)  # a checkpoint holds only acknowledged records
        scanner = Scanner(segments, start)
        end, count, waiting = replay_into(sink, scanner, fold, start, publish_below)
        scan = clear_torn_tail(segments, scanner)
        end, segment_end = _resume_point(segments, end, scan.end, begun.first if begun is not None else Lsn(0))
        recovered = Recovered(fold.state, end, scan, number, max(end - start, 0), count, damaged)
        finish: tuple[Lsn, Callable[[], None]] | None = None
        if begun is not None and fold.catching_up is None:
            finish_initial_sync(storage, begun)
        elif begun is not None:
            finish = fold.state.lsn, partial(_complete_initial_sync, storage, begun)
        writer = ReplicaAppender(segments, end, config.flush, on_progress, finish)
        writer_epoch = max(
            scan.writer_epoch, (0, 0) if fold.catching_up else (fold.state.epoch, fold.state.incarnation)
        )
        stream = RecordStream(segments.identity, end, segment_end, writer_epoch)
        write_recovery_point(storage, end)
        writer.start()
        follower = cls(OpenJournal(segments, writer), recovered, fold, stream, writer, waiting, clock_ms)
        follower.checkpoint_lsn = fold.state.lsn if fold.catching_up else start
        follower.wants_checkpoint = begun is not None and fold.catching_up is None
        return follower

    # -- how far it is ------------------------------------------------------------------------------------------

    @property
    def end(self) -> Lsn:
        """LSN after the last record, where the stream continues. Without a segment: that of the first one to come, or
        0."""
        return self._stream.end

    @property
    def received_lsn(self) -> Lsn:
        """LSN of the next byte of the stream, which may also restart at `end`."""
        return self._stream.received

    @property
    def epoch_history(self) -> list[WriterEpoch]:
        """Writer epochs of the copy, oldest first."""
        epochs = self.state.epoch_history
        return (
            epochs
            if self._fold.catching_up is None
            else [writer_epoch for writer_epoch in epochs if writer_epoch.lsn < self.end]
        )

    @property
    def is_unfinished(self) -> bool:
        """True during the initial sync, while the directory is no journal yet. See `journal.state.initial_sync`."""
        return self._fold.catching_up is not None

    @property
    def is_complete(self) -> bool:
        """True if the state equals the fold of the records, so that it may be served, and checkpoints taken.

        False during the initial sync: the state, from the checkpoint, is ahead of the records. Also between the records
        of a repair that dropped some, until the later ones resolve the loss.
        """
        return not self.is_unfinished and self.state.unresolved_loss is None

    def begin_snapshot(self) -> Snapshot:
        assert self.is_complete, "no checkpoint can say that"
        return super().begin_snapshot()

    # -- the stream -------------------------------------------------------------------------------------------

    def receive(self, lsn: int, data: Buffer) -> list[PendingUpdates]:
        """Accept bytes [lsn, lsn + len(data)) of the master's journal; returns the updates of its whole records, in
        order.

        They may end anywhere: the beginning of a record or segment is kept until the rest arrives. *data* must not
        change any more. Nothing is durable on return: see `journal.flushed`. Raises ForeignStream and keeps the records
        before the bad one (the next call returns their updates first); its subclass SyncSuperseded if an initial sync
        must restart; StorageFailed, JournalClosed.
        """
        if self._contradiction is not None:
            raise self._contradiction
        stream, fold = self._stream, self._fold
        found, self.left = self.left, []
        is_copying = fold.catching_up is not None
        chunks: list[RecordChunk] = []
        try:
            for view in stream.add(lsn, data):
                try:
                    for _, said in replay(stream.records(view), fold):
                        if said is not None:
                            found.append(said)
                finally:
                    chunks += stream.drain()
        except (ForeignStream, InvalidRecord) as error:
            stream.discard_partial()
            self.left = found
            foreign = _foreign(error, stream.end)
            if foreign.is_final:
                self._contradiction = foreign  # it may have been folded in part
            raise foreign from error.__cause__ if foreign is error else error
        finally:
            if chunks:
                self._writer.enqueue(chunks)
        self.wants_checkpoint |= is_copying and fold.catching_up is None  # the master's has no local index entries
        return found

    def close(self) -> None:
        """Write and fsync what is queued; drops an incomplete record. Idempotent. Raises StorageFailed."""
        super().close()
        remove_recovery_point(self.journal.storage)

    def on_checkpoint(self, number: int, checkpoint: Checkpoint) -> None:
        """Do nothing: a copy has only its master's records."""


def _foreign(error: ForeignStream | InvalidRecord, end: Lsn) -> ForeignStream:
    if isinstance(error, ForeignStream):
        return error
    return ForeignStream(end, str(error), is_final=isinstance(error, ContradictoryRecord))


def _complete_initial_sync(storage: Storage, begun: InitialSync) -> None:
    finish_initial_sync(storage, begun)
    log.info("copy whole lsn=%d", begun.checkpoint.lsn)


def _resume_point(segments: Segments, record_end: Lsn, scan_end: Lsn, first: Lsn) -> tuple[Lsn, Lsn]:
    """Return the LSN where the stream continues, and the end of its segment. Deletes a segment without a record: the
    stream brings it with its first one. *first*: LSN of the first segment, if there is none."""
    if len(segments):
        base, _ = segments.locate(segments.end - 1)
        if scan_end == base + SEGMENT_HEADER_BYTES:
            segments.drop_from(base)
            scan_end = base
    if not len(segments):
        return first, first
    # A PAD takes a header at least; fewer bytes are the unused rest of a segment, which the master skips, too.
    end = record_end if scan_end - record_end < HEADER_BYTES else scan_end
    base, file = segments.locate(end - 1)
    return end, Lsn(base + file.size)
