"""One connection to a master: appends its stream to the copy, and acknowledges what is durable.

`replica.handshake` interprets the master's frames; the owner decides what a slave shows of its copy.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Literal, Protocol, cast

from journal.checksum import crc32
from journal.errors import ForeignStream, JournalClosed, StorageFailed, SyncSuperseded
from journal.records.header import Lsn
from journal.replica.follower import JournalFollower
from journal.state.replay import PendingUpdates
from meta_broker.errors import BrokerError
from meta_broker.replication.link_protocol import (
    CHUNK_BYTES_MAX,
    Accept,
    FetchTail,
    FlushAck,
    FullResync,
    Heartbeat,
    JournalChunk,
    LinkDecoder,
    LinkFrame,
    LinkRefused,
    Reject,
    SnapshotChunk,
    encode,
    journal_chunk_head,
)
from meta_broker.replication.replica.handshake import (
    AppendChunk,
    InstallSnapshot,
    MasterProgress,
    ReplicaJournal,
    ReplicaLinkState,
    SendLostTail,
    TruncateFrom,
    VerifyProof,
)
from meta_broker.version import PRODUCT_VERSION
from meta_client.protocol.decoder import ResponseDecoder
from meta_client.protocol.encoder import encode_request
from meta_client.protocol.errors import RemoteProtocolError
from meta_client.protocol.requests import Replicate, Version
from meta_client.protocol.responses import Result
from meta_client.protocol.version import Capabilities
from zk.tree.broker_url import BrokerUrl

log = logging.getLogger(__name__)

QUEUED_BYTES_MAX = 16 * 1024 * 1024  # received and not written yet; beyond, the master is not read
DIAL_S = 5.0  # timeout of a connection and of its first answers
SILENCE_S = 10.0  # until the master has sent its own limit
_VERSION, _REPLICATE = 1, 2  # opaques


class ReplicaOwner(Protocol):
    """The owner of the copy, as its link sees it. Loop thread only."""

    slave_id: int
    serves: bool
    follower: JournalFollower

    async def find_master(self) -> BrokerUrl | None:
        """Return the master's address; None: there is no master now."""

    def on_heartbeat(
        self, *, master: str, epoch: int, end: Lsn, high_watermark: Lsn, mode: Literal["async", "sync"], in_sync: bool
    ) -> None:
        """Record the position of the master; the copy agrees with it up to the copy's end."""

    def on_records(self, received: Sequence[PendingUpdates]) -> None: ...
    def on_disconnected(self) -> None:
        """The link broke, or none could be established."""

    # After any of these nothing more is received: the owner cancels `run`.

    def must_truncate(self, lsn: Lsn) -> None:
        """Truncate the copy at *lsn*: the master never had what follows."""

    def must_resync(self, start: Lsn, checkpoint: bytes, reason: str) -> None:
        """Replace the copy, which is unusable: begin at *start* with *checkpoint* (blank: with nothing before it)."""

    def must_stop(self, error: BrokerError) -> None:
        """The copy cannot go on without an operator."""


class ReplicaLink(asyncio.Protocol):
    """One connection to a master."""

    def __init__(self, owner: ReplicaOwner) -> None:
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.closed = asyncio.Event()
        self.closed.set()  # set while there is no connection
        self.has_streamed = False
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._lines: ResponseDecoder | None = ResponseDecoder()  # until REPLICATE is answered
        self._frames = LinkDecoder(Accept, FullResync, FetchTail, Reject, SnapshotChunk, JournalChunk, Heartbeat)
        self._waiting: deque[LinkFrame] = deque()  # frames of one socket read, while the proof is being read
        self._side: ReplicaLinkState | None = None
        self._verifying: asyncio.Future[bytes] | None = None
        self._sending: asyncio.Task[None] | None = None  # sends the tail the master lost
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._is_reading = True
        self._last_heard = self._loop.time()
        self._reported = Lsn(-1)
        self._heartbeat_timer: asyncio.TimerHandle | None = None

    # -- asyncio.Protocol -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.closed.clear()
        self._transport.write(b"".join(encode_request(Version(_VERSION))))
        self._heartbeat()

    def data_received(self, data: bytes) -> None:
        self._last_heard = self._loop.time()
        try:
            if self._lines is not None:
                self._read_lines(self._lines, data)
            elif not self.over.done():
                self._waiting.extend(self._frames.receive_data(data))
                self._work()
        except (RemoteProtocolError, LinkRefused) as error:
            self._end(str(error))

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._can_write.set()  # wakes waiting senders, which then see the end
        self.closed.set()
        self._end(f"the link broke: {exc or 'closed by the master'}")

    # -- the owner's calls ------------------------------------------------------------------------------------

    def progress(self) -> None:
        """Acknowledge what is fsynced, and resume reading once enough is written."""
        if self._side is not None and self._side.is_streaming:
            flushed = self._owner.follower.journal.flushed
            if flushed != self._reported:
                self._report()
        self._read_or_not()

    def close(self) -> None:
        """End the link now."""
        self._end("this slave stops")

    # -- handshake --------------------------------------------------------------------------------------------

    def _read_lines(self, lines: ResponseDecoder, data: bytes) -> None:
        for answer in lines.receive_data(data):
            assert self._transport is not None
            if not isinstance(answer, Result) or not answer.is_success:
                text = answer.text if isinstance(answer, Result) else "no result"
                raise LinkRefused(f"it is no master that replicates: {text}")
            if answer.opaque == _VERSION:
                if "replicate" not in Capabilities.parse(answer.message).extensions:
                    raise LinkRefused(f"it does not replicate, it says {answer.text[:100]!r}")
                self._transport.write(b"".join(encode_request(Replicate(_REPLICATE))))
            else:
                self._lines = None
                self._send_handshake(self._transport)

    def _send_handshake(self, transport: asyncio.Transport) -> None:
        copy = self._owner.follower
        journal = ReplicaJournal(
            tuple((life.epoch, life.incarnation, life.lsn) for life in copy.epoch_history),
            Lsn(min(copy.journal.start_lsn, copy.end)),
            copy.end,
        )
        self._side = ReplicaLinkState(
            copy.journal.identity, self._owner.slave_id, journal, serves=self._owner.serves, product=PRODUCT_VERSION
        )
        transport.write(encode(self._side.handshake))

    # -- frames -----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        """Carry out the frames received."""
        side = self._side
        assert side is not None
        while self._waiting and self._verifying is None and not self.over.done():
            match side.receive(self._waiting.popleft()):
                case AppendChunk(lsn, data):
                    self._receive(lsn, data)
                case MasterProgress(high_watermark, end, _, is_in_sync, mode):
                    if side.is_streaming:
                        self._owner.on_heartbeat(
                            master=side.master,
                            epoch=side.epoch,
                            end=end,
                            high_watermark=high_watermark,
                            mode=mode,
                            in_sync=is_in_sync,
                        )
                case VerifyProof(parting, size, _):
                    self._verifying = self._loop.run_in_executor(
                        None, _bytes_before, self._owner.follower, parting, size
                    )
                    self._verifying.add_done_callback(self._read_proof)
                case InstallSnapshot(reason, start, checkpoint):
                    if checkpoint or self._owner.follower.epoch_history or start != self._owner.follower.end:
                        self._owner.must_resync(start, checkpoint, reason)
                        self._end("it starts over")
                    else:
                        self._start_streaming()
                case None:
                    pass
        self._read_or_not()

    def _read_proof(self, proof: "asyncio.Future[bytes]") -> None:
        self._verifying = None
        if self.over.done() or proof.cancelled():
            return
        assert self._side is not None
        try:
            asked = self._side.verified(crc32(proof.result()))
            if isinstance(asked, TruncateFrom):
                self._owner.must_truncate(asked.lsn)
                self._end("it cuts what the master never had")
                return
            if isinstance(asked, SendLostTail):
                self._sending = self._loop.create_task(self._send_tail(asked.lsn, Lsn(self._side.handshake.end)))
                self._sending.add_done_callback(self._sent)
                self._read_or_not()
                return
            self._start_streaming()
            self._work()
        except (LinkRefused, StorageFailed) as error:
            self._end(str(error))

    def _start_streaming(self) -> None:
        self.has_streamed = True
        self._report()

    def _receive(self, lsn: Lsn, data: bytes | memoryview) -> None:
        try:
            received = self._owner.follower.receive(lsn, data)
        except SyncSuperseded as error:
            self._owner.must_resync(Lsn(0), b"", str(error))  # the next handshake says where to begin
            self._end("the copy starts over")
        except ForeignStream as error:
            self._end(f"the stream is not what follows here: {error}")
            if error.is_final:
                self._owner.must_stop(
                    BrokerError(f"{error}: the copy contradicts its master: start it with an empty directory")
                )
        except (StorageFailed, JournalClosed) as error:  # the task that advances the store stops the broker
            self._end(str(error))
        else:
            if received:
                self._owner.on_records(received)

    # -- the tail the master lost -------------------------------------------------------------------------------

    async def _send_tail(self, lsn: Lsn, end: Lsn) -> None:
        """Send the journal's bytes [lsn, end), announced in the handshake. Raises StorageFailed, KeyError."""
        journal = self._owner.follower.journal
        log.warning("the master lost what is here, sending it from=%d to=%d", lsn, end)
        await asyncio.to_thread(journal.wait_flushed, end)
        while lsn < end:
            base, file = journal.reader(lsn)
            size = min(CHUNK_BYTES_MAX, base + file.size - lsn, end - lsn)
            data = await asyncio.to_thread(file.read, lsn - base, size)
            if self.over.done() or self._transport is None:
                return
            self._transport.writelines([journal_chunk_head(lsn, size), data])
            lsn = Lsn(lsn + size)
            await self._can_write.wait()
            self._last_heard = self._loop.time()  # the master reads, so it is alive

    def _sent(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, StorageFailed | KeyError):
            self._end(f"what the master lost can't be sent: {error}")
        elif error is not None:
            raise error

    # -- heartbeats -------------------------------------------------------------------------------------------

    def _report(self) -> None:
        if self._transport is not None:
            self._reported = self._owner.follower.journal.flushed
            self._transport.write(encode(FlushAck(self._reported)))

    def _heartbeat(self) -> None:
        silence_s = self._side.silence_ms / 1000 if self._side is not None and self._side.silence_ms else SILENCE_S
        if self._is_reading and self._loop.time() - self._last_heard > silence_s:
            self._end(f"silent for {silence_s:g} s")
            return
        if self._side is not None and self._side.is_streaming:
            self._report()
        heartbeat_s = (
            self._side.heartbeat_ms / 1000 if self._side is not None and self._side.heartbeat_ms else DIAL_S / 10
        )
        self._heartbeat_timer = self._loop.call_later(heartbeat_s, self._heartbeat)

    def _read_or_not(self) -> None:
        should_read = self._verifying is None and self._owner.follower.journal.queued_bytes <= QUEUED_BYTES_MAX
        if self._transport is not None and should_read != self._is_reading and not self.over.done():
            self._is_reading = should_read
            if should_read:
                self._last_heard = self._loop.time()  # silence while reading was paused does not count
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _end(self, why: str) -> None:
        if not self.over.done():
            self.over.set_result(why)
            self._waiting.clear()
            if self._heartbeat_timer is not None:
                self._heartbeat_timer.cancel()
            if self._transport is not None:
                self._transport.abort()


def _bytes_before(follower: JournalFollower, lsn: Lsn, size: int) -> bytes:
    """Read the *size* bytes before *lsn*, in one segment, once they are fsynced. Blocks. Raises StorageFailed."""
    if not size:
        return b""
    follower.journal.wait_flushed(lsn)
    base, file = follower.journal.reader(lsn - size)
    return file.read(lsn - size - base, size)
