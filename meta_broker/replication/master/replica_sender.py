"""The master's end of one link: sends the journal's files as fast as the slave reads them."""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any

from journal.checksum import crc32
from journal.errors import JournalError, UnreadableRange
from journal.records.header import Lsn
from journal.wal.segments import SEGMENT_HEADER_BYTES
from journal.wal.storage_file import Buffer
from meta_broker.replication.link_protocol import (
    BULK_BYTES_MAX,
    Accept,
    FetchTail,
    FlushAck,
    FullResync,
    Handshake,
    JournalChunk,
    LinkDecoder,
    LinkRefused,
    Rejected,
    encode,
    journal_chunk_head,
    snapshot_chunk_head,
)
from meta_broker.replication.master.handshake import SendProgress, StartFetch, StartResync, StartStream
from meta_broker.replication.master.handshake_reads import proof_place
from meta_broker.replication.master.sender_owner import SenderOwner
from meta_broker.replication.master.sender_state import SENDS, SendBlock, SenderEvent, SenderState, next_state
from meta_broker.store.cold_read import ColdRead
from meta_broker.store.partition_index import JournalSlice
from meta_client.protocol.errors import RemoteProtocolError

log = logging.getLogger(__name__)

READ_RETRY_S = 5.0  # between two attempts to read what the disk does not return
CHUNKS_PER_TURN = 4  # to one slave that catches up, before clients have their turn


class ReplicaSender(asyncio.Protocol):
    """Sends the journal to one slave. Loop thread only.

    At most one piece is with the transport; the next is read once it has gone, so a slave that does not read costs one
    piece. What may not be in the page cache is read by a thread.
    """

    def __init__(
        self,
        owner: "SenderOwner[ReplicaSender]",
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        name: str,
        slaves: Collection[int] = (),
    ) -> None:
        """*slaves*: the slave ids that the peer may have; none: any."""
        self.name = name
        self._slaves = slaves
        self.handshake: Handshake | None = None
        self.side: SendProgress | None = None
        self.last_heard = loop.time()
        self._owner = owner
        self._loop = loop
        self._transport = transport
        self._decoder = LinkDecoder(Handshake, FlushAck, JournalChunk)
        self._state = SenderState.GREETING
        self._blocks: set[SendBlock] = set()
        self._pending_read: asyncio.Future[bytes] | None = None  # with SendBlock.READ
        self._retry: asyncio.TimerHandle | None = None  # with SendBlock.RETRY
        self._checkpoint = memoryview(b"")  # not yet sent
        self._checkpoint_at = 0
        self._segment_end = Lsn(0)  # of the segment that is being sent
        self.read_error = ""  # why the slave is sent nothing
        transport.set_write_buffer_limits(high=0)  # pause_writing as soon as anything is buffered

    # -- asyncio.Protocol -------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self.last_heard = self._loop.time()
        if self._state is SenderState.ENDED:
            return
        try:
            for frame in self._decoder.receive_data(data):
                match frame:
                    case Handshake():
                        self._enter(SenderEvent.HANDSHAKE)
                        self._on_handshake(frame)
                    case FlushAck(flushed):
                        self._enter(SenderEvent.FLUSH_ACK)
                        self._reported(flushed)
                    case JournalChunk(lsn, chunk):
                        self._enter(SenderEvent.JOURNAL_CHUNK)
                        self._owner.on_fetched(self, lsn, chunk)
        except (LinkRefused, RemoteProtocolError) as error:
            self.refuse(str(error))

    def pause_writing(self) -> None:
        self._blocks.add(SendBlock.PEER)

    def resume_writing(self) -> None:
        self._blocks.discard(SendBlock.PEER)
        self.pump()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc  # whatever the cause, the slave reconnects
        self._enter(SenderEvent.END)
        if self._pending_read is not None:
            self._pending_read.cancel()
        if self._retry is not None:
            self._retry.cancel()
        self._owner.on_closed(self)

    # -- the owner's calls ------------------------------------------------------------------------------------

    def has_all_below(self, lsn: Lsn) -> bool:
        return self.side is not None and self.side.reported is not None and self.side.reported >= lsn

    @property
    def serves_below(self) -> Lsn | None:
        """End of what the slave has, if it answers gets and fetches."""
        return self.side.reported if self.side and self.handshake and self.handshake.serves else None

    def pump(self) -> None:
        """Send what is available, as far as the slave reads."""
        for _ in range(CHUNKS_PER_TURN):
            if self._state not in SENDS or self._blocks:
                return
            assert self.side is not None
            try:
                if self._state is SenderState.SNAPSHOT:
                    self._send_snapshot_chunk()
                elif not self._send_chunk(self.side):
                    return
            except KeyError:
                self.refuse(f"LSN {self.side.sent} is no longer stored here: retention has passed this slave")
                return
        self._loop.call_soon(self.pump)

    def send_heartbeat(self) -> None:
        """Send the master's position. Skipped while the slave does not read."""
        if self.side is not None and self._state in SENDS and SendBlock.PEER not in self._blocks:
            self._transport.write(encode(self._owner.position(self.side.slave_id)))

    def refuse(self, reason: str) -> None:
        """Send the reason, and close."""
        if self._state is not SenderState.ENDED:
            self._enter(SenderEvent.END)
            self._owner.refusals.log(self.name, self._slave, reason)
            self._transport.write(encode(Rejected(text=reason[:4096])))
            self._transport.close()

    def abort_with(self, reason: str) -> None:
        """Abort the link, discarding unsent data, and log the *reason*."""
        log.warning("link closed peer=%s slave=%s reason=%s", self.name, self._slave, reason)
        self._enter(SenderEvent.END)
        self._transport.abort()

    def _enter(self, event: SenderEvent) -> None:
        self._state = next_state(self._state, event)

    @property
    def _slave(self) -> str:
        return "?" if self.handshake is None else str(self.handshake.slave_id)

    # -- handshake --------------------------------------------------------------------------------------------

    def _on_handshake(self, handshake: Handshake) -> None:
        if self._slaves and handshake.slave_id not in self._slaves:
            allowed = ", ".join(map(str, self._slaves))
            raise LinkRefused(
                f"its principal may not be slave {handshake.slave_id}, but {allowed}: correct the slave's id, or "
                f"`slaves` in the master's access file"
            )
        self.handshake = handshake
        match self._owner.decide_start(handshake):
            case StartStream(divergence_lsn):
                self._with_proof(divergence_lsn, handshake.start, self._accept)
            case StartFetch(divergence_lsn):
                self._owner.fetch(self, handshake, divergence_lsn)
                self._with_proof(divergence_lsn, handshake.start, self._send_fetch)
            case StartResync(reason, is_empty):
                level = logging.INFO if is_empty else logging.WARNING
                log.log(level, "full resync of slave=%s reason=%s", self._slave, reason)
                self._when_done(self._owner.checkpoint(), lambda checkpoint: self._full_resync(reason, checkpoint))

    def _with_proof(self, divergence_lsn: Lsn, slave_start: int, then: Callable[[Lsn, bytes], None]) -> None:
        """Call *then* once the proof of *divergence_lsn* is read."""
        if (place := proof_place(self._owner.journal, divergence_lsn, slave_start)) is None:
            then(divergence_lsn, b"")
        else:
            read = self._owner.cold_reader.read(ColdRead(self._owner.journal, [place]))
            self._when_done(read, lambda proof: then(divergence_lsn, proof))

    def _accept(self, divergence_lsn: Lsn, proof: bytes) -> None:
        frame = Accept(
            divergence_lsn=divergence_lsn, proof_bytes=len(proof), proof=crc32(proof), **self._identity, **self._times
        )
        self._attach(SenderEvent.ACCEPT, divergence_lsn, encode(frame))

    def _send_fetch(self, divergence_lsn: Lsn, proof: bytes) -> None:
        self._enter(SenderEvent.FETCH_TAIL)
        frame = FetchTail(divergence_lsn=divergence_lsn, proof_bytes=len(proof), proof=crc32(proof), **self._identity)
        self._transport.write(encode(frame))

    def _full_resync(self, reason: str, checkpoint: bytes) -> None:
        start = Lsn(self._owner.journal.start_lsn - SEGMENT_HEADER_BYTES)
        fields = {**self._identity, **self._times}
        frame = FullResync(start=start, checkpoint_bytes=len(checkpoint), reason=reason, **fields)
        self._checkpoint = memoryview(checkpoint)
        self._attach(SenderEvent.FULL_RESYNC, start, encode(frame))

    @property
    def _identity(self) -> dict[str, Any]:
        return {"epoch": self._owner.journal.epoch, "master": self._owner.url}

    @property
    def _times(self) -> dict[str, Any]:
        section = self._owner.section
        return {"heartbeat_ms": section.heartbeat_ms, "silence_ms": section.silence_ms}

    def _attach(self, event: SenderEvent, begin: Lsn, frame: bytes) -> None:
        assert self.handshake is not None
        side = SendProgress(self.handshake.slave_id, begin, keeps_own_journal=event is SenderEvent.ACCEPT)
        self._owner.on_attached(self, side)
        self.side = side
        self._enter(event)
        self._transport.write(frame)
        self._owner.refusals.clear(self._slave)
        log.info("slave linked slave=%s peer=%s from=%d", self._slave, self.name, begin)
        self.send_heartbeat()
        self.pump()

    # -- the stream -------------------------------------------------------------------------------------------

    def _reported(self, flushed: Lsn) -> None:
        assert self.side is not None
        self.side.report(flushed)
        self._owner.on_ack(self, self.side)

    def _send_snapshot_chunk(self) -> None:
        if size := min(len(self._checkpoint), BULK_BYTES_MAX):
            self._transport.writelines([snapshot_chunk_head(self._checkpoint_at, size), self._checkpoint[:size]])
            self._checkpoint_at += size
            self._checkpoint = self._checkpoint[size:]
        if not self._checkpoint:
            self._enter(SenderEvent.SNAPSHOT_SENT)

    def _send_chunk(self, side: SendProgress) -> bool:
        owner = self._owner
        written = owner.journal.written
        if written <= side.sent:
            return False
        if side.sent >= self._segment_end:
            base, file = owner.journal.segments.locate(side.sent)
            self._segment_end = Lsn(base + file.size)
        place = JournalSlice(side.sent, side.next_bytes(written, self._segment_end))
        read = ColdRead(owner.journal, [place])
        if owner.store.page_cache.is_hot([place]) and (data := read.cached()) is not None:
            self._send(data, place.bytes)
            return True
        self._when_done(owner.cold_reader.read(read), self._send_read, self._read_failed)
        return False

    def _send_read(self, data: bytes) -> None:
        self._send([data], len(data))
        self.pump()

    def _send(self, buffers: Sequence[Buffer], size: int) -> None:
        assert self.side is not None
        self.read_error = ""
        self._transport.writelines([journal_chunk_head(self.side.sent, size), *buffers])
        self.side.advance(size)

    def _read_failed(self, error: UnreadableRange) -> None:
        """Keep the link, which the slave would make again at once: report *error* in `read_error`, and read later."""
        if self.read_error != str(error):
            self.read_error = str(error)
            log.error(
                "slave gets nothing more slave=%s lsn=%d error=%s: check the disk, then run `metaq journal check` "
                "and `repair` on this master",
                *(self._slave, self.side.sent if self.side is not None else 0, error),
            )
        self._blocks.add(SendBlock.RETRY)
        self._retry = self._loop.call_later(READ_RETRY_S, self._read_again)

    def _read_again(self) -> None:
        self._blocks.discard(SendBlock.RETRY)
        self.pump()

    def _when_done(
        self,
        future: "asyncio.Future[bytes]",
        then: Callable[[bytes], None],
        unreadable: Callable[[UnreadableRange], None] | None = None,
    ) -> None:
        """Call *then* once *future* is done; nothing is sent meanwhile.

        An unreadable range goes to *unreadable*; without that, it ends the link.
        """

        def done(future: "asyncio.Future[bytes]") -> None:
            self._pending_read = None
            self._blocks.discard(SendBlock.READ)
            if future.cancelled():
                return
            future.exception()  # seen: asyncio would report one that nobody asks for
            if self._state is SenderState.ENDED:
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

        self._pending_read = future
        self._blocks.add(SendBlock.READ)
        future.add_done_callback(done)
