"""JournalFollower: the copy that a slave keeps of its master's journal, byte for byte, and what it adds up to.

One owner thread. Bytes are received, checked and folded into the state at once; a thread writes and fsyncs them as they
came. Nothing is ever added: no record of an open, no presumed rollback, so that what is active stays so until a record
of a master's says otherwise. As in a master, memory runs ahead of the disk and knowledge does not: what is published
waits for the fence.
"""

import logging
from collections.abc import Callable

import msgspec

from journal.bootstrap import Bootstrap, Copying, finish_copy, read_bootstrap
from journal.checkpoint import Checkpoint
from journal.checkpointed import Checkpointed
from journal.copy_mark import remove_mark, write_mark
from journal.cutting import finish_cut
from journal.errors import ForeignStream, InvalidRecord
from journal.fence import LSN_MAX
from journal.frame import HEADER_BYTES, Lsn
from journal.lives import Life
from journal.open_journal import JournalConfig, OpenJournal
from journal.record_codec import decode
from journal.recovery import NoSink, PublicationSink, Recovered, cut_tail, replay_to, restore, trim
from journal.replaying import Fold, Received
from journal.scan import Scanner
from journal.segments import SEGMENT_HEADER_BYTES, Identity, Segments
from journal.snapshot import Snapshot
from journal.storage import Buffer, Storage
from journal.stream import Piece, RecordStream
from journal.stream_writer import StreamWriter
from journal.transaction_store import wall_clock_ms

log = logging.getLogger(__name__)


class JournalFollower(Checkpointed):
    """A copy that is open. Open it with `JournalFollower.open`; owner thread only, but for `write_checkpoint`."""

    def __init__(
        self,
        journal: OpenJournal,
        recovered: Recovered,
        fold: Fold,
        stream: RecordStream,
        writer: StreamWriter,
        waiting: list[Received],
        clock_ms: Callable[[], int],
    ) -> None:
        super().__init__(journal, recovered, clock_ms)
        self.waiting = waiting  # found at open above *publish_below*, in order: the sink was not told
        self.left: list[Received] = []  # of a `receive` that raised: the next one begins with them
        self._fold = fold
        self._stream = stream
        self._writer = writer
        self._contradiction: ForeignStream | None = None

    @classmethod
    def open(
        cls,
        storage: Storage,
        identity: Identity,
        config: JournalConfig,
        *,
        sink: PublicationSink | None = None,
        on_progress: Callable[[], None] = lambda: None,
        publish_below: Lsn = LSN_MAX,
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> "JournalFollower":
        """Recover what the directory holds, which may be nothing, and take what follows. A torn tail is cut.

        *on_progress* is called on another thread, as a Journal's. What records above *publish_below* say is kept in
        `waiting` and not told to *sink*, unless a checkpoint holds it: the master may not have acknowledged it. Leaves
        nothing open when it raises ForeignJournal, RottenJournal, InvalidRecord, UnfinishedCopy, StorageFailed.
        """
        segments = Segments.open(storage, identity, config.segment_bytes, writable=True)
        try:
            segments.remove_unfinished()
            return cls._recovered(segments, config, sink or NoSink(), on_progress, publish_below, clock_ms)
        except BaseException:
            segments.close()
            raise

    @classmethod
    def _recovered(
        cls,
        segments: Segments,
        config: JournalConfig,
        sink: PublicationSink,
        on_progress: Callable[[], None],
        publish_below: Lsn,
        clock_ms: Callable[[], int],
    ) -> "JournalFollower":
        storage = segments.storage
        finish_cut(segments)
        begun = read_bootstrap(storage)
        if begun is None:
            number, state, damaged = restore(segments, sink)
            fold, start = Fold(state, None), state.lsn
        else:
            number, damaged, start = 0, [], Lsn(begun.first + SEGMENT_HEADER_BYTES)
            # Its records are read from the first one on, and say what the indexes hold.
            sink.restore([msgspec.structs.replace(mark, end=mark.start) for mark in begun.checkpoint.partitions])
            copying = Copying(begun)
            fold = Fold(copying.state, copying if copying.lsn > start else None)
            publish_below = max(publish_below, copying.lsn)  # a checkpoint holds nothing that was not acknowledged
        scanner = Scanner(segments, start)
        end, count, waiting, is_trimmed = replay_to(scanner, fold, sink, publish_below)
        scan = cut_tail(segments, scanner)
        if not is_trimmed:
            trim(sink, fold.state)
        end, segment_end = _settle(segments, end, scan.end, begun.first if begun is not None else Lsn(0))
        recovered = Recovered(fold.state, end, scan, number, max(end - start, 0), count, damaged)
        writer = StreamWriter(segments, end, config.flush, on_progress)
        if begun is not None and fold.copying is None:
            finish_copy(storage, begun)
        elif begun is not None:
            writer.once_durable(fold.state.lsn, lambda: _finish(storage, begun))
        life = max(scan.life, (0, 0) if fold.copying else (fold.state.epoch, fold.state.incarnation))
        stream = RecordStream(segments.identity, end, segment_end, life)
        write_mark(storage, end)
        writer.start()
        follower = cls(OpenJournal(segments, writer), recovered, fold, stream, writer, waiting, clock_ms)
        follower.checkpoint_lsn = fold.state.lsn if fold.copying else start
        follower.wants_checkpoint = begun is not None and fold.copying is None
        return follower

    # -- how far it is ------------------------------------------------------------------------------------------

    @property
    def end(self) -> Lsn:
        """Behind the last record: where the stream goes on. 0, or where the first segment is to begin, if there is
        none."""
        return self._stream.end

    @property
    def received(self) -> Lsn:
        """The LSN of the next byte of the stream, which may begin anew at `end`, too."""
        return self._stream.received

    @property
    def lives(self) -> list[Life]:
        """Who wrote what is here, oldest first."""
        lives = self.state.lives
        return lives if self._fold.copying is None else [life for life in lives if life.lsn < self.end]

    @property
    def is_unfinished(self) -> bool:
        """Is it the beginning of a copy, which is no journal yet? See `journal.bootstrap`."""
        return self._fold.copying is not None

    @property
    def is_complete(self) -> bool:
        """Is the state what the records say, so that it may be served, and checkpoints taken of it?

        False while it copies what its first checkpoint holds already: the state is further on than the records. And
        between the records of a repair that dropped some: the next ones say what is open until then.
        """
        return not self.is_unfinished and self.state.doubt is None

    def begin_snapshot(self) -> Snapshot:
        assert self.is_complete, "no checkpoint can say that"
        return super().begin_snapshot()

    # -- the stream -------------------------------------------------------------------------------------------

    def receive(self, lsn: int, data: Buffer) -> list[Received]:
        """Take bytes [lsn, lsn + len(data)) of the master's journal; returns what its whole records say, in order.

        They may end anywhere: what begins a record, or a segment, is held until the rest is there. *data* must not
        change any more. Nothing is durable on return: see `journal.flushed`. Raises ForeignStream and keeps the records
        before the bad one (what they say, the next call returns first), of its kinds CopySuperseded where a copy that
        is unfinished must begin anew; StorageFailed, JournalClosed.
        """
        if self._contradiction is not None:
            raise self._contradiction
        stream, fold = self._stream, self._fold
        found, self.left = self.left, []
        is_copying = fold.copying is not None
        pieces: list[Piece] = []
        is_folding = False
        try:
            for view in stream.add(lsn, data):
                try:
                    for header, raw, at in stream.records(view):
                        record = decode(header, raw[at + HEADER_BYTES : at + HEADER_BYTES + header.meta_bytes])
                        is_folding = True
                        said = fold.add(header, record)
                        is_folding = False
                        if said is not None:
                            found.append(said)
                finally:
                    pieces += stream.take()
        except (ForeignStream, InvalidRecord) as error:
            stream.forget_rest()
            self.left = found
            if isinstance(error, ForeignStream):
                self._contradiction = error if error.is_final else None
                raise
            foreign = ForeignStream(stream.end, str(error), is_final=is_folding)
            if is_folding:
                self._contradiction = foreign  # it may have been folded in part
            raise foreign from error
        finally:
            if pieces:
                self._writer.write_soon(pieces)
        self.wants_checkpoint |= is_copying and fold.copying is None  # the master's says nothing of indexes here
        return found

    def close(self) -> None:
        """Write and fsync what is queued; what is held of a record that is not whole is dropped. Idempotent.

        Raises StorageFailed.
        """
        super().close()
        remove_mark(self.journal.storage)

    def note_checkpoint(self, number: int, checkpoint: Checkpoint) -> None:
        """Nothing: a copy has no record that its master does not have."""


def _finish(storage: Storage, begun: Bootstrap) -> None:
    finish_copy(storage, begun)
    log.info("copy whole lsn=%d", begun.checkpoint.lsn)


def _settle(segments: Segments, record_end: Lsn, scan_end: Lsn, first: Lsn) -> tuple[Lsn, Lsn]:
    """Where the stream goes on, and where the segment of that ends. A segment without a record is deleted: the stream
    brings it with its first one. *first*: where the first one begins, if there is none."""
    if len(segments):
        base, _ = segments.locate(segments.end - 1)
        if scan_end == base + SEGMENT_HEADER_BYTES:
            segments.drop_from(base)
            scan_end = base
    if not len(segments):
        return first, first
    # A PAD takes a header at least; fewer bytes are the rest of a segment, which the master does not count either.
    end = record_end if scan_end - record_end < HEADER_BYTES else scan_end
    base, file = segments.locate(end - 1)
    return end, Lsn(base + file.size)
