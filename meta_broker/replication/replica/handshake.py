"""The slave's side of a link: turns the master's frames into actions. Pure; no socket, no clock, no disk."""

from enum import Enum, auto
from typing import Final, Literal, NamedTuple, assert_never

from journal.records.header import Lsn
from journal.wal.segments import JournalIdentity
from meta_broker.replication.link_protocol import (
    VERSION,
    Accept,
    EpochNumbers,
    FetchTail,
    FlushAck,
    FullResync,
    Handshake,
    Heartbeat,
    JournalChunk,
    LinkFrame,
    LinkRefused,
    Reject,
    SnapshotChunk,
)

CHECKPOINT_BYTES_MAX: Final = 1 << 30  # 100,000 branches in doubt take some hundred megabytes


class ReplicaJournal(NamedTuple):
    """The slave's journal: bytes [start, end), written in the epochs *lives*."""

    lives: tuple[EpochNumbers, ...]
    start: Lsn
    end: Lsn

    @property
    def is_empty(self) -> bool:
        return not self.lives


class VerifyProof(NamedTuple):
    """Compare the checksum of the *size* bytes before *parting* with *proof*, then pass it to `verified`."""

    parting: Lsn
    size: int
    proof: int


class InstallSnapshot(NamedTuple):
    """Empty the directory, install *checkpoint* (blank: none), then follow from *start*."""

    reason: str
    start: Lsn
    checkpoint: bytes


class AppendChunk(NamedTuple):
    """Append these bytes to the journal."""

    lsn: Lsn
    data: bytes | memoryview


class TruncateFrom(NamedTuple):
    """Truncate what the master never had: everything from *lsn* on."""

    lsn: Lsn


class SendLostTail(NamedTuple):
    """Send everything from *lsn* on: the master lost it."""

    lsn: Lsn


class MasterProgress(NamedTuple):
    """The master's position."""

    high_watermark: Lsn
    end: Lsn
    time_ms: int
    is_in_sync: bool
    mode: Literal["async", "sync"]


Action = VerifyProof | InstallSnapshot | TruncateFrom | SendLostTail | AppendChunk | MasterProgress


class _Phase(Enum):
    HANDSHAKE = auto()
    VERIFYING = auto()
    SNAPSHOT = auto()
    STREAM = auto()
    SENDING_TAIL = auto()
    CLOSED = auto()


class ReplicaLinkState:
    """State of one link, from HANDSHAKE on. Any protocol violation raises LinkRefused and ends the link."""

    def __init__(
        self, identity: JournalIdentity, slave_id: int, journal: ReplicaJournal, *, serves: bool, product: str
    ) -> None:
        self.handshake = Handshake(
            version=VERSION,
            cluster=identity.cluster,
            broker_id=identity.broker_id,
            slave_id=slave_id,
            lives=journal.lives,
            start=journal.start,
            end=journal.end,
            serves=serves,
            product=product,
        )
        self.master = ""  # URL; with the epoch, known once it accepted the link
        self.epoch = 0
        self.heartbeat_ms = self.silence_ms = 0
        self._journal = journal
        self._phase = _Phase.HANDSHAKE
        self._next = Lsn(0)  # the stream's next LSN
        self._proof = 0
        self._high_watermark = Lsn(0)
        self._resync: FullResync | None = None
        self._is_tail_requested = False  # for the tail the master lost
        self._checkpoint = bytearray()

    @property
    def is_streaming(self) -> bool:
        return self._phase is _Phase.STREAM

    def receive(self, frame: LinkFrame) -> Action | None:
        """Return the action *frame* asks for, if any. Raises LinkRefused."""
        match frame:
            case Reject(text=text):
                self._phase = _Phase.CLOSED
                raise LinkRefused(f"the master refused: {text}")
            case Accept():
                return self._on_accept(frame)
            case FetchTail():
                self._is_tail_requested = True
                return self._on_accept(frame)
            case FullResync():
                return self._on_full_resync(frame)
            case SnapshotChunk(position, data):
                return self._on_snapshot_chunk(position, data)
            case JournalChunk(lsn, data):
                self._expect(_Phase.STREAM, frame)
                if lsn != self._next:
                    raise self._violation(f"it sent LSN {lsn} where {self._next} follows")
                self._next = Lsn(lsn + len(data))
                return AppendChunk(lsn, data)
            case Heartbeat(high_watermark, end, time_ms, is_in_sync, mode):
                if self._phase in (_Phase.HANDSHAKE, _Phase.CLOSED):
                    raise self._violation("it sent a Heartbeat before it accepted this slave")
                if not self._high_watermark <= high_watermark <= end:
                    raise self._violation(
                        f"its high watermark is {high_watermark}, was {self._high_watermark}, and its end is {end}"
                    )
                self._high_watermark = high_watermark
                return MasterProgress(high_watermark, end, time_ms, is_in_sync, mode)
            case Handshake() | FlushAck():
                raise self._violation("it sent a slave's frame")
        assert_never(frame)

    def verified(self, proof: int) -> TruncateFrom | SendLostTail | None:
        """Take the checksum VerifyProof asked for. Return what to do before the stream begins; None: nothing.

        Raises LinkRefused if *proof* is not the master's.
        """
        assert self._phase is _Phase.VERIFYING
        if proof != self._proof:
            raise self._violation(
                f"the bytes before LSN {self._next} differ from this slave's: another journal, or damage; "
                f"run `metaq journal check` on both, then start this slave with an empty directory"
            )
        if self._is_tail_requested:
            self._phase = _Phase.SENDING_TAIL
            return SendLostTail(self._next)
        self._phase = _Phase.STREAM
        return TruncateFrom(self._next) if self._next < self._journal.end else None

    def _on_accept(self, welcome: Accept | FetchTail) -> VerifyProof:
        self._expect(_Phase.HANDSHAKE, welcome)
        self._check_epoch(welcome)
        if isinstance(welcome, Accept):
            self.heartbeat_ms, self.silence_ms = welcome.heartbeat_ms, welcome.silence_ms
        journal, parting = self._journal, welcome.parting
        if not journal.start <= parting <= journal.end or welcome.proof_bytes > parting - journal.start:
            raise self._violation(
                f"it says that the journals diverge at LSN {parting}, and this slave has {journal.start} to "
                f"{journal.end}"
            )
        self._phase, self._next, self._proof = _Phase.VERIFYING, Lsn(parting), welcome.proof
        return VerifyProof(self._next, welcome.proof_bytes, welcome.proof)

    def _on_full_resync(self, anew: FullResync) -> InstallSnapshot | None:
        self._expect(_Phase.HANDSHAKE, anew)
        self._check_epoch(anew)
        self.heartbeat_ms, self.silence_ms = anew.heartbeat_ms, anew.silence_ms
        if anew.checkpoint_bytes > CHECKPOINT_BYTES_MAX:
            raise self._violation(f"a checkpoint of {anew.checkpoint_bytes} bytes")
        self._phase, self._resync, self._next = _Phase.SNAPSHOT, anew, Lsn(anew.start)
        return self._install_when_complete()

    def _check_epoch(self, frame: Accept | FullResync | FetchTail) -> None:
        newest = self._journal.lives[-1][0] if self._journal.lives else 0
        if frame.epoch < newest:
            raise self._violation(
                f"it has epoch {frame.epoch}, this slave has followed epoch {newest}: it was superseded"
            )
        self.master, self.epoch = frame.master, frame.epoch

    def _on_snapshot_chunk(self, position: int, data: bytes | memoryview) -> InstallSnapshot | None:
        self._expect(_Phase.SNAPSHOT, SnapshotChunk)
        assert self._resync is not None
        if position != len(self._checkpoint) or position + len(data) > self._resync.checkpoint_bytes:
            raise self._violation(f"byte {position} of a checkpoint, where {len(self._checkpoint)} follows")
        self._checkpoint += data
        return self._install_when_complete()

    def _install_when_complete(self) -> InstallSnapshot | None:
        assert self._resync is not None
        if len(self._checkpoint) < self._resync.checkpoint_bytes:
            return None
        self._phase = _Phase.STREAM
        checkpoint, self._checkpoint = bytes(self._checkpoint), bytearray()
        return InstallSnapshot(self._resync.reason, self._next, checkpoint)

    def _expect(self, at: _Phase, frame: object) -> None:
        if self._phase is not at:
            name = frame.__name__ if isinstance(frame, type) else type(frame).__name__
            raise self._violation(f"a {name} while {self._phase.name}")

    def _violation(self, what: str) -> LinkRefused:
        self._phase = _Phase.CLOSED
        return LinkRefused(f"master {self.master or 'there'}: {what}")
