"""A link as the slave sees it: what each frame of the master asks for. Pure; no socket, no clock, no disk."""

from enum import Enum, auto
from typing import Final, Literal, NamedTuple, assert_never

from journal.frame import Lsn
from journal.segments import Identity
from meta_broker.replication.errors import LinkRefused
from meta_broker.replication.frames import (
    VERSION,
    Anew,
    Data,
    Fetch,
    Frame,
    Hello,
    LifeNumbers,
    Part,
    Position,
    Refused,
    Report,
    Welcome,
)

CHECKPOINT_BYTES_MAX: Final = 1 << 30  # a hundred thousand branches in doubt take some hundred megabytes


class Holding(NamedTuple):
    """What the slave has: bytes [start, end) of a journal of these lives."""

    lives: tuple[LifeNumbers, ...]
    start: Lsn
    end: Lsn

    @property
    def is_empty(self) -> bool:
        return not self.lives


class CheckProof(NamedTuple):
    """Compare the checksum of the *size* bytes before *parting* with *proof*, then say so to `proved`."""

    parting: Lsn
    size: int
    proof: int


class BeginAnew(NamedTuple):
    """Empty the directory, install *checkpoint* (blank: none), then follow from *start*."""

    reason: str
    start: Lsn
    checkpoint: bytes


class Receive(NamedTuple):
    """Take these bytes into the journal."""

    lsn: Lsn
    data: bytes | memoryview


class Cut(NamedTuple):
    """Cut what the master never had: everything from *lsn* on."""

    lsn: Lsn


class SendTail(NamedTuple):
    """Send what the slave has from *lsn* on: its master lost it."""

    lsn: Lsn


class Heard(NamedTuple):
    """How far the master is."""

    fence: Lsn
    end: Lsn
    time_ms: int
    is_in_sync: bool
    mode: Literal["async", "sync"]


Action = CheckProof | BeginAnew | Cut | SendTail | Receive | Heard


class _At(Enum):
    GREETING = auto()
    PROVING = auto()
    CHECKPOINT = auto()
    STREAM = auto()
    SENDING = auto()
    OVER = auto()


class SlaveSide:
    """One link, from HELLO on. Raises LinkRefused wherever the master breaks the rules; the link is over then."""

    def __init__(self, identity: Identity, slave_id: int, holding: Holding, *, serves: bool, product: str) -> None:
        self.hello = Hello(
            version=VERSION,
            cluster=identity.cluster,
            broker_id=identity.broker_id,
            slave_id=slave_id,
            lives=holding.lives,
            start=holding.start,
            end=holding.end,
            serves=serves,
            product=product,
        )
        self.master = ""  # its URL, and its epoch: once it has let us in
        self.epoch = 0
        self.beat_ms = self.silence_ms = 0
        self._holding = holding
        self._at = _At.GREETING
        self._next = Lsn(0)  # the stream's
        self._proof = 0
        self._fence = Lsn(0)
        self._anew: Anew | None = None
        self._is_asked = False  # for what the master lost
        self._checkpoint = bytearray()

    @property
    def is_streaming(self) -> bool:
        return self._at is _At.STREAM

    def receive(self, frame: Frame) -> Action | None:
        """What *frame* asks for."""
        match frame:
            case Refused(text=text):
                self._at = _At.OVER
                raise LinkRefused(f"the master refused: {text}")
            case Welcome():
                return self._welcomed(frame)
            case Fetch():
                self._is_asked = True
                return self._welcomed(frame)
            case Anew():
                return self._begun_anew(frame)
            case Part(position, data):
                return self._part(position, data)
            case Data(lsn, data):
                self._expect(_At.STREAM, frame)
                if lsn != self._next:
                    raise self._broken(f"it sent LSN {lsn} where {self._next} follows")
                self._next = Lsn(lsn + len(data))
                return Receive(lsn, data)
            case Position(fence, end, time_ms, is_in_sync, mode):
                if self._at in (_At.GREETING, _At.OVER):
                    raise self._broken("it told its position before it let this slave in")
                if not self._fence <= fence <= end:
                    raise self._broken(f"its fence is {fence}, was {self._fence}, and its end is {end}")
                self._fence = fence
                return Heard(fence, end, time_ms, is_in_sync, mode)
            case Hello() | Report():
                raise self._broken("it spoke as a slave does")
        assert_never(frame)

    def proved(self, proof: int) -> Cut | SendTail | None:
        """The checksum that CheckProof asked for is *proof*. What to cut before the stream begins; None: nothing."""
        assert self._at is _At.PROVING
        if proof != self._proof:
            raise self._broken(
                f"the bytes before LSN {self._next} differ from this slave's: another journal, or damage; "
                f"run `metaq journal check` on both, then begin this slave anew"
            )
        if self._is_asked:
            self._at = _At.SENDING
            return SendTail(self._next)
        self._at = _At.STREAM
        return Cut(self._next) if self._next < self._holding.end else None

    def _welcomed(self, welcome: Welcome | Fetch) -> CheckProof:
        self._expect(_At.GREETING, welcome)
        self._meet(welcome)
        if isinstance(welcome, Welcome):
            self.beat_ms, self.silence_ms = welcome.beat_ms, welcome.silence_ms
        holding, parting = self._holding, welcome.parting
        if not holding.start <= parting <= holding.end or welcome.proof_bytes > parting - holding.start:
            raise self._broken(
                f"it says that we part at LSN {parting}, and this slave has {holding.start} to {holding.end}"
            )
        self._at, self._next, self._proof = _At.PROVING, Lsn(parting), welcome.proof
        return CheckProof(self._next, welcome.proof_bytes, welcome.proof)

    def _begun_anew(self, anew: Anew) -> BeginAnew | None:
        self._expect(_At.GREETING, anew)
        self._meet(anew)
        self.beat_ms, self.silence_ms = anew.beat_ms, anew.silence_ms
        if anew.checkpoint_bytes > CHECKPOINT_BYTES_MAX:
            raise self._broken(f"a checkpoint of {anew.checkpoint_bytes} bytes")
        self._at, self._anew, self._next = _At.CHECKPOINT, anew, Lsn(anew.start)
        return self._maybe_whole()

    def _meet(self, frame: Welcome | Anew | Fetch) -> None:
        newest = self._holding.lives[-1][0] if self._holding.lives else 0
        if frame.epoch < newest:
            raise self._broken(f"it has epoch {frame.epoch}, this slave has followed epoch {newest}: it was superseded")
        self.master, self.epoch = frame.master, frame.epoch

    def _part(self, position: int, data: bytes | memoryview) -> BeginAnew | None:
        self._expect(_At.CHECKPOINT, Part)
        assert self._anew is not None
        if position != len(self._checkpoint) or position + len(data) > self._anew.checkpoint_bytes:
            raise self._broken(f"byte {position} of a checkpoint, where {len(self._checkpoint)} follows")
        self._checkpoint += data
        return self._maybe_whole()

    def _maybe_whole(self) -> BeginAnew | None:
        assert self._anew is not None
        if len(self._checkpoint) < self._anew.checkpoint_bytes:
            return None
        self._at = _At.STREAM
        checkpoint, self._checkpoint = bytes(self._checkpoint), bytearray()
        return BeginAnew(self._anew.reason, self._next, checkpoint)

    def _expect(self, at: _At, frame: object) -> None:
        if self._at is not at:
            name = frame.__name__ if isinstance(frame, type) else type(frame).__name__
            raise self._broken(f"a {name} while {self._at.name}")

    def _broken(self, what: str) -> LinkRefused:
        self._at = _At.OVER
        return LinkRefused(f"master {self.master or 'there'}: {what}")
