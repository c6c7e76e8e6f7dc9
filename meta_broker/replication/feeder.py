"""The master's end of one link: what the slave is sent, as fast as it takes it, out of the journal's files."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from journal.checksum import crc32
from journal.errors import JournalError, UnreadableRange
from journal.frame import Lsn
from journal.journal import Journal
from journal.segments import SEGMENT_HEADER_BYTES
from journal.storage import Buffer
from meta_broker.replication.errors import LinkRefused
from meta_broker.replication.frames import (
    BULK_BYTES_MAX,
    Anew,
    Data,
    Fetch,
    FrameDecoder,
    Hello,
    Position,
    Refused,
    Report,
    Welcome,
    data_head,
    encode,
    part_head,
)
from meta_broker.replication.master_side import PROOF_BYTES_MAX, FromAnew, Lacking, MasterSide, Share
from meta_broker.replication.section import ReplicationSection
from meta_broker.store.far_read import FarRead
from meta_broker.store.far_reads import FarReads
from meta_broker.store.message_store import MessageStore
from meta_broker.store.partition_index import Place
from meta_client.protocol.errors import RemoteProtocolError

log = logging.getLogger(__name__)

READ_AGAIN_S = 5.0  # between two tries to read what the disk does not give back
PIECES_PER_TURN = 4  # of one slave that catches up, before clients have their turn


class FeederOwner(Protocol):
    """The master, as a feeder sees it."""

    section: ReplicationSection
    store: MessageStore
    journal: Journal
    reads: FarReads
    url: str

    def judged(self, hello: Hello) -> Share | Lacking | FromAnew:
        """What to begin with. Raises LinkRefused."""

    def checkpoint(self) -> "asyncio.Future[bytes]":
        """The newest one's file; blank: the journal is whole. The future may have a JournalError."""

    def linked(self, feeder: "Feeder", side: MasterSide) -> None:
        """The slave was let in. Raises LinkRefused: there are too many."""

    def fetch(self, feeder: "Feeder", hello: Hello, parting: Lsn) -> None:
        """The slave is to send what it has from *parting* on. Raises LinkRefused: another one does."""

    def fetched(self, feeder: "Feeder", lsn: Lsn, data: bytes | memoryview) -> None:
        """It sent some of that. Raises LinkRefused."""

    def reported(self, feeder: "Feeder", side: MasterSide) -> None: ...
    def position(self, slave_id: int) -> Position: ...
    def gone(self, feeder: "Feeder") -> None: ...


class Feeder(asyncio.Protocol):
    """Loop thread only.

    One piece at most is with the transport, and the next is read once that one has gone: a slave that takes nothing
    costs a piece. What may not be in memory is read by a thread.
    """

    def __init__(
        self, owner: FeederOwner, loop: asyncio.AbstractEventLoop, transport: asyncio.Transport, name: str
    ) -> None:
        self.name = name
        self.hello: Hello | None = None
        self.side: MasterSide | None = None
        self.heard = loop.time()
        self._owner = owner
        self._loop = loop
        self._transport = transport
        self._decoder = FrameDecoder(Hello, Report, Data)
        self._can_write = True
        self._waits: asyncio.Future[bytes] | None = None  # for what is read beside the loop
        self._checkpoint = memoryview(b"")  # of it, what is not sent yet
        self._checkpoint_at = 0
        self._segment_end = Lsn(0)  # of the segment that is being sent
        self._is_over = False
        self._rests = False  # after a read that failed
        self.trouble = ""  # why the slave is sent nothing
        transport.set_write_buffer_limits(high=0)  # told as soon as anything is not taken at once

    # -- asyncio.Protocol -------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self.heard = self._loop.time()
        if self._is_over:
            return
        try:
            for frame in self._decoder.receive_data(data):
                match frame:
                    case Hello():
                        self._greet(frame)
                    case Report(flushed):
                        self._reported(flushed)
                    case Data(lsn, piece):
                        self._owner.fetched(self, lsn, piece)
        except (LinkRefused, RemoteProtocolError) as error:
            self.refuse(str(error))

    def pause_writing(self) -> None:
        self._can_write = False

    def resume_writing(self) -> None:
        self._can_write = True
        self.pump()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc  # whatever it was, the slave comes again
        self._is_over = True
        if self._waits is not None:
            self._waits.cancel()
        self._owner.gone(self)

    # -- the owner's calls ------------------------------------------------------------------------------------

    def has_all_below(self, lsn: Lsn) -> bool:
        """Whether the slave has said that it has everything below *lsn*."""
        return self.side is not None and self.side.reported is not None and self.side.reported >= lsn

    def pump(self) -> None:
        """Send what there is, as far as the slave takes it."""
        for _ in range(PIECES_PER_TURN):
            if self.side is None or self._is_over or not self._can_write or self._waits is not None or self._rests:
                return
            try:
                if not (self._send_part() if self._checkpoint else self._send_piece(self.side)):
                    return
            except KeyError:
                self.refuse(f"LSN {self.side.sent} is no longer stored here: retention has passed this slave")
                return
        self._loop.call_soon(self.pump)

    def tell(self) -> None:
        """Say how far the master is; the heart-beat, too. Not while the slave takes nothing: it will hear it then."""
        if self.side is not None and not self._is_over and self._can_write:
            self._transport.write(encode(self._owner.position(self.side.slave_id)))

    def refuse(self, reason: str) -> None:
        """Say why, and close."""
        if not self._is_over:
            self._is_over = True
            log.warning("link refused peer=%s slave=%s reason=%s", self.name, self._slave, reason)
            self._transport.write(encode(Refused(text=reason[:4096])))
            self._transport.close()

    def drop(self, reason: str) -> None:
        """Close at once, whatever waits to be sent."""
        log.warning("link closed peer=%s slave=%s reason=%s", self.name, self._slave, reason)
        self._is_over = True
        self._transport.abort()

    @property
    def _slave(self) -> str:
        return "?" if self.hello is None else str(self.hello.slave_id)

    # -- the greeting -----------------------------------------------------------------------------------------

    def _greet(self, hello: Hello) -> None:
        if self.hello is not None:
            raise LinkRefused("a second HELLO")
        self.hello = hello
        match self._owner.judged(hello):
            case Share(parting):
                self._prove(parting, hello.start, self._welcome)
            case Lacking(parting):
                self._owner.fetch(self, hello, parting)
                self._prove(parting, hello.start, self._ask)
            case FromAnew(reason, is_empty):
                log.log(
                    logging.INFO if is_empty else logging.WARNING,
                    "slave begins anew slave=%s why=%s",
                    self._slave,
                    reason,
                )
                self._after(self._owner.checkpoint(), lambda checkpoint: self._begin_anew(reason, checkpoint))

    def _prove(self, parting: Lsn, slave_start: int, then: Callable[[Lsn, bytes], None]) -> None:
        """Go on with *then* once the proof of *parting* is read."""
        if (place := self._proof_place(parting, slave_start)) is None:
            then(parting, b"")
        else:
            read = self._owner.reads.read(FarRead(self._owner.journal, [place]))
            self._after(read, lambda proof: then(parting, proof))

    def _proof_place(self, parting: Lsn, slave_start: int) -> Place | None:
        """What both have just before *parting*, in one segment; None: nothing."""
        journal = self._owner.journal
        if parting <= max(slave_start, journal.start_lsn):
            return None
        base, _ = journal.reader(parting - 1)
        size = min(PROOF_BYTES_MAX, parting - max(base, slave_start))
        return Place(parting - size, size)

    def _welcome(self, parting: Lsn, proof: bytes) -> None:
        owner = self._owner
        frame = Welcome(
            epoch=owner.journal.epoch,
            parting=parting,
            proof_bytes=len(proof),
            proof=crc32(proof),
            beat_ms=owner.section.heartbeat_ms,
            silence_ms=owner.section.silence_ms,
            master=owner.url,
        )
        self._let_in(parting, encode(frame), is_shared=True)

    def _ask(self, parting: Lsn, proof: bytes) -> None:
        owner = self._owner
        frame = Fetch(
            epoch=owner.journal.epoch,
            parting=parting,
            proof_bytes=len(proof),
            proof=crc32(proof),
            master=owner.url,
        )
        self._transport.write(encode(frame))

    def _begin_anew(self, reason: str, checkpoint: bytes) -> None:
        owner = self._owner
        start = Lsn(owner.journal.start_lsn - SEGMENT_HEADER_BYTES)
        frame = Anew(
            epoch=owner.journal.epoch,
            start=start,
            checkpoint_bytes=len(checkpoint),
            reason=reason,
            beat_ms=owner.section.heartbeat_ms,
            silence_ms=owner.section.silence_ms,
            master=owner.url,
        )
        self._checkpoint = memoryview(checkpoint)
        self._let_in(start, encode(frame), is_shared=False)

    def _let_in(self, begin: Lsn, frame: bytes, *, is_shared: bool) -> None:
        assert self.hello is not None
        side = MasterSide(self.hello.slave_id, begin, is_shared=is_shared)
        self._owner.linked(self, side)
        self.side = side
        self._transport.write(frame)
        log.info("slave linked slave=%s peer=%s from=%d", self._slave, self.name, begin)
        self.tell()
        self.pump()

    # -- the stream -------------------------------------------------------------------------------------------

    def _reported(self, flushed: Lsn) -> None:
        if self.side is None:
            raise LinkRefused("a REPORT before it was let in")
        self.side.report(flushed)
        self._owner.reported(self, self.side)

    def _send_part(self) -> bool:
        size = min(len(self._checkpoint), BULK_BYTES_MAX)
        self._transport.writelines([part_head(self._checkpoint_at, size), self._checkpoint[:size]])
        self._checkpoint_at += size
        self._checkpoint = self._checkpoint[size:]
        return True

    def _send_piece(self, side: MasterSide) -> bool:
        owner = self._owner
        written = owner.journal.written
        if written <= side.sent:
            return False
        if side.sent >= self._segment_end:
            base, file = owner.journal.segments.locate(side.sent)
            self._segment_end = Lsn(base + file.size)
        place = Place(side.sent, side.next_bytes(written, self._segment_end))
        read = FarRead(owner.journal, [place])
        if owner.store.horizon.is_near([place]) and (data := read.cached()) is not None:
            self._send(data, place.bytes)
            return True
        self._after(owner.reads.read(read), self._send_read, self._read_failed)
        return False

    def _send_read(self, data: bytes) -> None:
        self._send([data], len(data))
        self.pump()

    def _send(self, buffers: Sequence[Buffer], size: int) -> None:
        assert self.side is not None
        self.trouble = ""
        self._transport.writelines([data_head(self.side.sent, size), *buffers])
        self.side.went(size)

    def _read_failed(self, error: UnreadableRange) -> None:
        """The disk does not give back what comes next: keep the link, which the slave would dial anew at once, say why
        it is sent nothing, and try again later."""
        if self.trouble != str(error):
            self.trouble = str(error)
            log.error(
                "slave gets nothing more slave=%s lsn=%d error=%s: look after the disk, then run `metaq journal check` "
                "and `repair` on this master",
                *(self._slave, self.side.sent if self.side is not None else 0, error),
            )
        self._rests = True
        self._loop.call_later(READ_AGAIN_S, self._rested)

    def _rested(self) -> None:
        self._rests = False
        self.pump()

    def _after(
        self,
        future: "asyncio.Future[bytes]",
        then: Callable[[bytes], None],
        unreadable: Callable[[UnreadableRange], None] | None = None,
    ) -> None:
        """Go on with *then* once *future* is there; nothing is sent meanwhile. What can't be read is for *unreadable*;
        without, the link ends."""

        def done(future: "asyncio.Future[bytes]") -> None:
            self._waits = None
            if future.cancelled() or self._is_over:
                return
            try:
                then(future.result())
            except UnreadableRange as error:
                if unreadable is None:
                    self.refuse(str(error))
                else:
                    unreadable(error)
            except (LinkRefused, JournalError) as error:
                self.refuse(str(error))

        self._waits = future
        future.add_done_callback(done)
