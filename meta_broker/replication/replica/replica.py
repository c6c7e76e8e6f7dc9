"""A slave: what each event makes it do, in the states that `replica_state` names. Pure; no socket, no clock, no disk.

Every public method is an event. It returns effects, to be carried out in their order before the next event.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from journal.errors import ForeignStream, SyncSuperseded
from journal.records.header import Lsn
from journal.records.state_table import walk
from meta_broker.errors import BrokerError
from meta_broker.replication.link_protocol import (
    Accept,
    EpochNumbers,
    FetchTail,
    FlushAck,
    FullResync,
    Heartbeat,
    JournalChunk,
    LinkFrame,
    LinkRefused,
    Rejected,
    SnapshotChunk,
    encode,
)
from meta_broker.replication.replica import effects as do
from meta_broker.replication.replica.effects import Effect, Resync
from meta_broker.replication.replica.greeting import Greeting, handshake
from meta_broker.replication.replica.replica_state import NEXT, STREAMS, UNLINKED, VERIFIES, E, S
from meta_broker.replication.replica.slave_file import SlaveFacts
from meta_client.net.security import Credentials
from meta_client.protocol.responses import Response, Result

log = logging.getLogger(__name__)

CHECKPOINT_BYTES_MAX: Final = 1 << 30  # 100,000 branches in doubt take some hundred megabytes
QUEUED_BYTES_MAX: Final = 16 * 1024 * 1024  # received and not written yet; beyond, the master is not read
# First and longest pause between two attempts. Short: a promoted master may be unable to acknowledge anything until
# this slave has found it.
BACK_OFF_S: Final = (0.1, 1.0)
SAVE_S: Final = 1.0  # least time between two writes of slave.json, except for what a promotion goes by
HEARTBEAT_S: Final = 0.5  # until the master has sent its own, as the next one
SILENCE_S: Final = 10.0

_EVENTS: Final[Mapping[type[LinkFrame], E]] = {
    Accept: E.ACCEPT,
    FetchTail: E.FETCH_TAIL,
    FullResync: E.FULL_RESYNC,
    SnapshotChunk: E.SNAPSHOT_CHUNK,
    JournalChunk: E.JOURNAL_CHUNK,
    Heartbeat: E.HEARTBEAT,
}


class ReplicaJournal(NamedTuple):
    """The slave's journal: bytes [start, end), written in *epoch_history*. *is_unfinished*: its initial sync is."""

    epoch_history: tuple[EpochNumbers, ...]
    start: Lsn
    end: Lsn
    is_unfinished: bool = False


_START: Final = Lsn(0)
_EMPTY: Final = ReplicaJournal((), _START, _START)


@dataclass(slots=True)
class _Link:
    """Facts of one link."""

    heard_at: float
    greeting: Greeting
    journal: ReplicaJournal = _EMPTY  # at the handshake
    heartbeat_s: float = HEARTBEAT_S
    silence_s: float = SILENCE_S
    master: str = ""  # URL; with the epoch, known once it has answered the handshake
    epoch: int = 0
    next: Lsn = _START  # the stream's next LSN
    proof: int = 0
    resync: FullResync | None = None
    checkpoint: bytearray = field(default_factory=bytearray)
    high_watermark: Lsn = _START
    reported: Lsn = _START


class Replica:
    """One slave, while its directory is open."""

    def __init__(self, facts: SlaveFacts, *, serves: bool, credentials: Credentials | None = None) -> None:
        """*facts*: as slave.json has them. *serves*: it answers gets and fetches. *credentials*: for its master."""
        self._credentials = credentials
        self.facts = facts
        self.state = S.SEEKING
        self.cluster_id: str | None = None  # of the directory, once that is known
        self._serves = serves
        self._saved = facts
        self._save_at = 0.0
        self._flushed, self._queued_bytes = Lsn(0), 0
        self.has_room = True  # on the disk, for more of the copy
        self._link = _Link(0.0, Greeting(credentials))
        self._pause_s = BACK_OFF_S[0]
        self._why = self._told = ""  # why there is no link: now, and as it was last logged

    @property
    def heartbeat_s(self) -> float:
        """Seconds until the next `tick`."""
        return min(self._link.heartbeat_s, HEARTBEAT_S)

    @property
    def may_read(self) -> bool:
        """True if more may be read from the connection."""
        return self.has_room and self.state not in VERIFIES and self._queued_bytes <= QUEUED_BYTES_MAX

    # -- connections ------------------------------------------------------------------------------------------

    def connected(self, now_s: float) -> list[Effect]:
        self._move(E.CONNECT)
        self._link = _Link(now_s, Greeting(self._credentials))
        return [do.Send(self._link.greeting.first())]

    def closed(self, master: str, why: str) -> list[Effect]:
        """The connection to *master* is closed, or could not be made; *why* counts unless it was left before."""
        effects = self.leave(why)
        if self._move(E.CLOSE) is S.STOPPED:
            return []
        if self._why != self._told:  # once, not at every attempt while the master is away
            self._told = self._why
            log.warning("not following master=%s reason=%s", master, self._why)
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, BACK_OFF_S[1])
        return [*effects, do.Dial(pause_s)]

    def leave(self, why: str) -> list[Effect]:
        """Leave the link, if there is one, to try another."""
        before = self.state
        if self._move(E.LEAVE) is before:
            return []
        self._why = why
        if before is S.FOLLOWING:
            log.warning("link lost master=%s end=%d", self._link.master, self._link.next)
        return [do.Close()]

    def close(self) -> list[Effect]:
        """End for good."""
        self._move(E.STOP)
        return [do.Close(), *([self._save()] if self.facts is not self._saved else [])]

    def heard(self, now_s: float) -> None:
        """Bytes came from the master, or were taken by it."""
        self._link.heard_at = now_s

    def progress(self, flushed: Lsn, queued_bytes: int) -> list[Effect]:
        """The copy is fsynced below *flushed*, and *queued_bytes* of it are not written yet."""
        self._flushed, self._queued_bytes = flushed, queued_bytes
        return [self._report()] if self.state in STREAMS and flushed != self._link.reported else []

    def tick(self, now_s: float) -> list[Effect]:
        """Do what is due: a heartbeat, the end of a silent link, slave.json. Every `heartbeat_s`."""
        link, effects = self._link, list[Effect]()
        if not self.may_read:
            link.heard_at = now_s  # silence while reading is paused does not count
        if self.state not in UNLINKED and now_s - link.heard_at > link.silence_s:
            effects = self.leave(f"silent for {link.silence_s:g} s")
        elif self.state in STREAMS:
            effects = [self._report()]
        if self.facts is not self._saved and now_s >= self._save_at:
            self._save_at = now_s + SAVE_S
            effects.append(self._save())
        return effects

    def append_refused(self, error: ForeignStream) -> list[Effect]:
        """The copy refused the stream's next bytes."""
        if isinstance(error, SyncSuperseded):
            return self._change(Resync(Lsn(0), str(error), b""))  # the next handshake says where to begin
        if error.is_final:
            return self._stop(
                BrokerError(f"{error}: the copy contradicts its master: start it with an empty directory")
            )
        return self.leave(f"the stream is not what follows here: {error}")

    # -- the handshake ----------------------------------------------------------------------------------------

    def answered(self, answer: Response, journal: ReplicaJournal) -> list[Effect]:
        """VERSION, a login or REPLICATE is answered; *journal* is what this slave has."""
        if not isinstance(answer, Result) or not answer.is_success:
            text = answer.text if isinstance(answer, Result) else "no result"
            return self.leave(f"it is no master that replicates: {text}")
        if self.state is not S.ASKING:
            try:
                event, words = self._link.greeting.answered(answer)
            except LinkRefused as error:
                return self.leave(str(error))
            self._move(event)
            return [do.Send(words)]
        self._move(E.ANSWER)
        self._link.journal = journal
        first = handshake(self.facts, *journal[:3], serves=self._serves, cluster_id=self.cluster_id)
        return [do.Send(encode(first))]

    def proof_read(self, proof: int) -> list[Effect]:
        """The checksum for `ReadProof` is there."""
        link = self._link
        if self.state not in VERIFIES:
            return []  # left meanwhile
        if proof != link.proof:
            return self.leave(
                f"master {link.master}: the bytes before LSN {link.next} differ from this slave's: another journal, or "
                f"damage; run `metaq journal check` on both, then start this slave with an empty directory"
            )
        if self._move(E.AGREE) is S.SENDING_TAIL:
            return [do.SendTail(link.next, link.journal.end)]
        if link.next == link.journal.end:
            return self._begin_stream()
        self.facts = msgspec.structs.replace(self.facts, high_watermark=min(self.facts.high_watermark, link.next))
        return self._change(Resync(link.next, "the master never had it"))

    # -- frames -----------------------------------------------------------------------------------------------

    def frame(self, frame: LinkFrame, now_ms: int) -> list[Effect]:
        """The master sent *frame*; by the wall clock it is *now_ms*."""
        if isinstance(frame, Rejected):
            return self.leave(f"the master refused: {frame.text}")
        try:
            return self._on_frame(frame, now_ms)
        except LinkRefused as error:
            return self.leave(f"master {self._link.master or 'there'}: {error}")

    def _on_frame(self, frame: LinkFrame, now_ms: int) -> list[Effect]:
        """Raises LinkRefused for a violation of the protocol."""
        event, before = _EVENTS.get(type(frame)), self.state
        if event is None or event not in NEXT[before]:
            raise LinkRefused(f"a {type(frame).__name__} while {before.name}")
        self._move(event)
        link = self._link
        match frame:
            case Accept() | FetchTail():
                return self._accepted(frame)
            case FullResync():
                self._check_epoch(frame)
                if frame.checkpoint_bytes > CHECKPOINT_BYTES_MAX:
                    raise LinkRefused(f"a checkpoint of {frame.checkpoint_bytes} bytes")
                link.resync, link.next = frame, Lsn(frame.start)
                return self._install_when_complete(frame)
            case SnapshotChunk(position, data):
                assert link.resync is not None
                if position != len(link.checkpoint) or position + len(data) > link.resync.checkpoint_bytes:
                    raise LinkRefused(f"byte {position} of a checkpoint, where {len(link.checkpoint)} follows")
                link.checkpoint += data
                return self._install_when_complete(link.resync)
            case JournalChunk(lsn, data):
                if lsn != link.next:
                    raise LinkRefused(f"it sent LSN {lsn} where {link.next} follows")
                link.next = Lsn(lsn + len(data))
                return [do.Append(lsn, data)]
            case _:
                assert isinstance(frame, Heartbeat)
                return self._heartbeat(frame, now_ms, is_first=before is S.STREAMING)

    def _accepted(self, frame: Accept | FetchTail) -> list[Effect]:
        link, divergence_lsn = self._link, Lsn(frame.divergence_lsn)
        self._check_epoch(frame)
        start, end = link.journal.start, link.journal.end
        if not start <= divergence_lsn <= end or frame.proof_bytes > divergence_lsn - start:
            raise LinkRefused(
                f"it says the journals diverge at LSN {divergence_lsn}, and this slave has {start} to {end}"
            )
        link.next, link.proof = divergence_lsn, frame.proof
        return [do.ReadProof(divergence_lsn, frame.proof_bytes)]

    def _check_epoch(self, frame: Accept | FullResync | FetchTail) -> None:
        link = self._link
        newest = link.journal.epoch_history[-1][0] if link.journal.epoch_history else 0
        if frame.epoch < newest:
            raise LinkRefused(f"it has epoch {frame.epoch}, this slave has followed epoch {newest}: it was superseded")
        link.master, link.epoch = frame.master, frame.epoch
        if not isinstance(frame, FetchTail):
            link.heartbeat_s, link.silence_s = frame.heartbeat_ms / 1000, frame.silence_ms / 1000

    def _install_when_complete(self, resync: FullResync) -> list[Effect]:
        link = self._link
        if len(link.checkpoint) < resync.checkpoint_bytes:
            return []
        self._move(E.AGREE)
        if link.checkpoint or link.journal.epoch_history or link.next != link.journal.end:
            return self._change(Resync(link.next, resync.reason, bytes(link.checkpoint)))
        return self._begin_stream()

    def _heartbeat(self, beat: Heartbeat, now_ms: int, *, is_first: bool) -> list[Effect]:
        link, before = self._link, self.facts
        high_watermark = beat.high_watermark
        if not link.high_watermark <= high_watermark <= beat.end:
            raise LinkRefused(
                f"its high watermark is {high_watermark}, was {link.high_watermark}, and its end is {beat.end}"
            )
        link.high_watermark = high_watermark
        if self.state is not S.FOLLOWING:
            return []
        self.facts = msgspec.structs.replace(
            before,
            master=link.master,
            epoch=link.epoch,
            end=beat.end,
            high_watermark=high_watermark,
            heard_ms=now_ms,
            mode=beat.mode,
            in_sync=beat.is_in_sync,
        )
        is_change = (beat.mode, beat.is_in_sync) != (before.mode, before.in_sync)
        if is_first:
            behind = beat.end - link.next
            log.info("following master=%s epoch=%d end=%d behind=%d", link.master, link.epoch, beat.end, behind)
        if is_change:
            log.info("in sync changed mode=%s in_sync=%s", beat.mode, beat.is_in_sync)
        saved = [self._save()] if is_first or is_change else []  # at once: a promotion goes by it
        return saved if high_watermark == before.high_watermark else [*saved, do.Show(high_watermark)]

    def _move(self, event: E) -> S:
        self.state = walk(NEXT, self.state, event)
        return self.state

    def _begin_stream(self) -> list[Effect]:
        self._pause_s, self._told = BACK_OFF_S[0], ""
        return [self._report()]

    def _report(self) -> Effect:
        self._link.reported = self._flushed
        return do.Send(encode(FlushAck(self._flushed)))

    def _save(self) -> Effect:
        self._saved = self.facts
        return do.Save(self.facts)

    def _change(self, what: Resync) -> list[Effect]:
        if self._link.journal.is_unfinished:  # nothing of it will be left
            blank = {"end": 0, "high_watermark": 0, "heard_ms": 0, "mode": "async", "in_sync": False}
            self.facts = msgspec.structs.replace(self.facts, **blank)
        return self._stop(what)

    def _stop(self, why: Resync | BrokerError) -> list[Effect]:
        self._move(E.STOP)
        return [do.End(why), do.Close()]
