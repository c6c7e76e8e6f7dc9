"""The slave's end of the link: finds its master, dials, takes the stream into its copy, and says what it has.

What the master's frames mean is decided in `slave_side`; what a slave shows of what it has got, by who owns this.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Sequence
from typing import Literal, Protocol, cast

from journal.checksum import crc32
from journal.errors import CopySuperseded, ForeignStream, JournalClosed, StorageFailed
from journal.follower import JournalFollower
from journal.frame import Lsn
from journal.replaying import Received
from meta_broker.errors import BrokerError
from meta_broker.replication.errors import LinkRefused
from meta_broker.replication.frames import (
    Anew,
    Data,
    Fetch,
    Frame,
    FrameDecoder,
    Part,
    Position,
    Refused,
    Report,
    Welcome,
    data_head,
    encode,
)
from meta_broker.replication.master_side import PIECE_BYTES_MAX
from meta_broker.replication.slave_side import (
    BeginAnew,
    CheckProof,
    Cut,
    Heard,
    Holding,
    Receive,
    SendTail,
    SlaveSide,
)
from meta_broker.version import PRODUCT_VERSION
from meta_client.protocol.decoder import ResponseDecoder
from meta_client.protocol.encoder import encode_request
from meta_client.protocol.errors import RemoteProtocolError
from meta_client.protocol.requests import Replicate, Version
from meta_client.protocol.responses import Result
from meta_client.protocol.version import Capabilities
from zk.broker_url import BrokerUrl

log = logging.getLogger(__name__)

QUEUED_BYTES_MAX = 16 * 1024 * 1024  # received and not written yet; beyond, the master is not read
DIAL_S = 5.0  # for a connection, and for its first answers
# Between two attempts: the first pause, and the longest; each is random up to twice as long. A master that was promoted
# may acknowledge nothing before this slave has found it.
BACK_OFF_S = (0.1, 1.0)
SILENCE_S = 10.0  # until a master has said what it holds for silence
_VERSION, _REPLICATE = 1, 2  # opaques


class Follows(Protocol):
    """Who owns the copy, as its link sees it. Loop thread only."""

    slave_id: int
    serves: bool
    follower: JournalFollower

    async def find_master(self) -> BrokerUrl | None:
        """Where to dial; None: nobody is master now."""

    def heard(
        self, *, master: str, epoch: int, end: Lsn, fence: Lsn, mode: Literal["async", "sync"], in_sync: bool
    ) -> None:
        """The master, with which the copy agrees up to its own end, is so far."""

    def received(self, received: Sequence[Received]) -> None: ...
    def lost(self) -> None:
        """The link broke, or none could be had."""

    # After one of these, nothing more is received: the owner cancels `run`.

    def must_cut(self, lsn: Lsn) -> None:
        """The master never had what is here from *lsn* on."""

    def must_begin_anew(self, start: Lsn, checkpoint: bytes, reason: str) -> None:
        """What is here is of no use: the copy begins at *start*, with *checkpoint* (blank: with nothing before it)."""

    def must_stop(self, error: BrokerError) -> None:
        """The copy can't go on without an operator."""


class FollowerLink:
    """Keeps one link to whoever is master. `progress` whenever the copy's disk got on."""

    def __init__(self, owner: Follows) -> None:
        self._owner = owner
        self._link: _Link | None = None

    async def run(self) -> None:
        """Until cancelled: dial, follow, dial again."""
        pause_s, told = BACK_OFF_S[0], ""
        try:
            while True:
                why = "nobody is its master now"
                if (url := await self._owner.find_master()) is not None:
                    link = self._link = _Link(self._owner)
                    why = await self._follow(link, url)
                    self._link = None
                    self._owner.lost()
                    if link.has_streamed:
                        pause_s, told = BACK_OFF_S[0], ""
                if why != told:  # once, not each second for as long as a master is away
                    log.warning("not following master=%s reason=%s", url or "?", why)
                    told = why
                await asyncio.sleep(pause_s * random.uniform(0.5, 2))  # noqa: S311 (spreads load, keeps no secret)
                pause_s = min(2 * pause_s, BACK_OFF_S[1])
        finally:
            if self._link is not None:
                self._link.close()
                await self._link.closed.wait()

    def progress(self) -> None:
        """The copy's disk got on: tell the master, and read on if that had stopped."""
        if self._link is not None:
            self._link.progress()

    async def _follow(self, link: "_Link", url: BrokerUrl) -> str:
        """Dial, and stay until the link is over; returns why it is."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(DIAL_S):  # wait_for may swallow a cancellation
                await loop.create_connection(lambda: link, url.host, url.port)
        except TimeoutError:
            return f"no connection within {DIAL_S:g} s"
        except OSError as error:
            return f"no connection: {error.strerror or error}"
        why = await asyncio.shield(link.over)  # who cancels this has the link closed, which is not over by that
        await link.closed.wait()
        return why


class _Link(asyncio.Protocol):
    """One connection to a master."""

    def __init__(self, owner: Follows) -> None:
        self.over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.closed = asyncio.Event()
        self.closed.set()  # until there is a connection
        self.has_streamed = False
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._lines: ResponseDecoder | None = ResponseDecoder()  # until the connection is a link
        self._frames = FrameDecoder(Welcome, Anew, Fetch, Refused, Part, Data, Position)
        self._waiting: deque[Frame] = deque()  # while the proof is read: what one read of the socket brought
        self._side: SlaveSide | None = None
        self._proving: asyncio.Future[bytes] | None = None
        self._sending: asyncio.Task[None] | None = None  # of what the master lost
        self._can_write = asyncio.Event()
        self._can_write.set()
        self._is_reading = True
        self._heard = self._loop.time()
        self._reported = Lsn(-1)
        self._beat_due: asyncio.TimerHandle | None = None

    # -- asyncio.Protocol -------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.closed.clear()
        self._transport.write(b"".join(encode_request(Version(_VERSION))))
        self._beat()

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        try:
            if self._lines is not None:
                self._take_lines(self._lines, data)
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
        self._can_write.set()  # for who waits, to see that it is over
        self.closed.set()
        self._end(f"the link broke: {exc or 'closed by the master'}")

    # -- the owner's calls ------------------------------------------------------------------------------------

    def progress(self) -> None:
        """Report what is fsynced, and read on once enough is written."""
        if self._side is not None and self._side.is_streaming:
            flushed = self._owner.follower.journal.flushed
            if flushed != self._reported:
                self._report()
        self._read_or_not()

    def close(self) -> None:
        """End the link now."""
        self._end("this slave stops")

    # -- the greeting -----------------------------------------------------------------------------------------

    def _take_lines(self, lines: ResponseDecoder, data: bytes) -> None:
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
                self._say_hello(self._transport)

    def _say_hello(self, transport: asyncio.Transport) -> None:
        copy = self._owner.follower
        holding = Holding(
            tuple((life.epoch, life.incarnation, life.lsn) for life in copy.lives),
            Lsn(min(copy.journal.start_lsn, copy.end)),
            copy.end,
        )
        self._side = SlaveSide(
            copy.journal.identity, self._owner.slave_id, holding, serves=self._owner.serves, product=PRODUCT_VERSION
        )
        transport.write(encode(self._side.hello))

    # -- frames -----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        """Do what the frames that are here ask for."""
        side = self._side
        assert side is not None
        while self._waiting and self._proving is None and not self.over.done():
            match side.receive(self._waiting.popleft()):
                case Receive(lsn, data):
                    self._receive(lsn, data)
                case Heard(fence, end, _, is_in_sync, mode):
                    if side.is_streaming:
                        self._owner.heard(
                            master=side.master, epoch=side.epoch, end=end, fence=fence, mode=mode, in_sync=is_in_sync
                        )
                case CheckProof(parting, size, _):
                    self._proving = self._loop.run_in_executor(None, _bytes_before, self._owner.follower, parting, size)
                    self._proving.add_done_callback(self._read_proof)
                case BeginAnew(reason, start, checkpoint):
                    if checkpoint or self._owner.follower.lives or start != self._owner.follower.end:
                        self._owner.must_begin_anew(start, checkpoint, reason)
                        self._end("it begins anew")
                    else:
                        self._begun()
                case None:
                    pass
        self._read_or_not()

    def _read_proof(self, proof: "asyncio.Future[bytes]") -> None:
        self._proving = None
        if self.over.done() or proof.cancelled():
            return
        assert self._side is not None
        try:
            asked = self._side.proved(crc32(proof.result()))
            if isinstance(asked, Cut):
                self._owner.must_cut(asked.lsn)
                self._end("it cuts what the master never had")
                return
            if isinstance(asked, SendTail):
                self._sending = self._loop.create_task(self._send_tail(asked.lsn, Lsn(self._side.hello.end)))
                self._sending.add_done_callback(self._sent)
                self._read_or_not()
                return
            self._begun()
            self._work()
        except (LinkRefused, StorageFailed) as error:
            self._end(str(error))

    def _begun(self) -> None:
        self.has_streamed = True
        self._report()

    def _receive(self, lsn: Lsn, data: bytes | memoryview) -> None:
        try:
            received = self._owner.follower.receive(lsn, data)
        except CopySuperseded as error:
            self._owner.must_begin_anew(Lsn(0), b"", str(error))  # where, and with what, the next greeting says
            self._end("the copy begins anew")
        except ForeignStream as error:
            self._end(f"the stream is not what follows here: {error}")
            if error.is_final:
                self._owner.must_stop(BrokerError(f"{error}: the copy contradicts its master: begin it anew"))
        except (StorageFailed, JournalClosed) as error:  # who advances the store finds it, and stops
            self._end(str(error))
        else:
            if received:
                self._owner.received(received)

    # -- what the master lost -----------------------------------------------------------------------------------

    async def _send_tail(self, lsn: Lsn, end: Lsn) -> None:
        """Send the journal's bytes [lsn, end), which this slave has named before. Raises StorageFailed, KeyError."""
        journal = self._owner.follower.journal
        log.warning("the master lost what is here, sending it from=%d to=%d", lsn, end)
        await asyncio.to_thread(journal.wait_flushed, end)
        while lsn < end:
            base, file = journal.reader(lsn)
            size = min(PIECE_BYTES_MAX, base + file.size - lsn, end - lsn)
            data = await asyncio.to_thread(file.read, lsn - base, size)
            if self.over.done() or self._transport is None:
                return
            self._transport.writelines([data_head(lsn, size), data])
            lsn = Lsn(lsn + size)
            await self._can_write.wait()
            self._heard = self._loop.time()  # the master takes it, which is life enough

    def _sent(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, StorageFailed | KeyError):
            self._end(f"what the master lost can't be sent: {error}")
        elif error is not None:
            raise error

    # -- keeping it -------------------------------------------------------------------------------------------

    def _report(self) -> None:
        if self._transport is not None:
            self._reported = self._owner.follower.journal.flushed
            self._transport.write(encode(Report(self._reported)))

    def _beat(self) -> None:
        silence_s = self._side.silence_ms / 1000 if self._side is not None and self._side.silence_ms else SILENCE_S
        if self._is_reading and self._loop.time() - self._heard > silence_s:
            self._end(f"silent for {silence_s:g} s")
            return
        if self._side is not None and self._side.is_streaming:
            self._report()
        beat_s = self._side.beat_ms / 1000 if self._side is not None and self._side.beat_ms else DIAL_S / 10
        self._beat_due = self._loop.call_later(beat_s, self._beat)

    def _read_or_not(self) -> None:
        should_read = self._proving is None and self._owner.follower.journal.queued_bytes <= QUEUED_BYTES_MAX
        if self._transport is not None and should_read != self._is_reading and not self.over.done():
            self._is_reading = should_read
            if should_read:
                self._heard = self._loop.time()  # it was not asked in the meantime
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _end(self, why: str) -> None:
        if not self.over.done():
            self.over.set_result(why)
            self._waiting.clear()
            if self._beat_due is not None:
                self._beat_due.cancel()
            if self._transport is not None:
                self._transport.abort()


def _bytes_before(follower: JournalFollower, lsn: Lsn, size: int) -> bytes:
    """The *size* bytes before *lsn*, in one segment. Blocks on the disk. Raises StorageFailed."""
    if not size:
        return b""
    base, file = follower.journal.reader(lsn - size)
    return file.read(lsn - size - base, size)
