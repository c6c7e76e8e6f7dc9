"""Durable set of transactions decided to commit and not finished yet.

DECISION and FORGET records in a separate journal. No record means "not committed" (presumed abort), so only decisions
must be fsynced before use: a FORGET lost in a crash costs a second, harmless commit. The log stays bounded: unfinished
decisions are carried forward and earlier segments deleted.

Any thread. The lock guards appends and the map; fsync is awaited outside it, so that concurrent decisions share one.
"""

import logging
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Self

from journal.records.header import Lsn, RecordHeader
from journal.records.record import Decision, Forget, Record
from journal.records.xid import BranchKey, XaKey, Xid
from journal.state.inspection import open_beside_writer
from journal.state.wall_clock import wall_clock_ms
from journal.wal.flush_mode import FlushMode
from journal.wal.journal import Journal
from journal.wal.segments import SEGMENT_HEADER_BYTES, JournalIdentity, Segments
from journal.wal.storage import DirectoryStorage, Storage
from meta_client.coordinator.errors import ForeignLog, LogInUse
from meta_client.coordinator.log_origin import is_copy, keep_origin
from meta_client.coordinator.names import LogName
from meta_client.own_journal import OwnJournal, check_end, locked, replay, resumed

log = logging.getLogger(__name__)

SEGMENT_BYTES = 1024 * 1024  # some 4000 transactions: small enough to replay in a blink, large enough to roll seldom
# A FORGET may wait this long for an fsync, or go along with a decision's: alone it would cost one each. After a
# crash, those lost are committed again, and participants do not keep outcomes forever.
FLUSH = FlushMode(interval_ms=100)
SEGMENTS_KEPT_MIN = 2
FORMAT_VERSION = "coordinator/1"


@dataclass(slots=True)
class _Found:
    """State recovered when the log was opened."""

    unfinished: dict[Xid, str] = field(default_factory=dict)
    finished: dict[Xid, str] = field(default_factory=dict)  # those whose records are still there
    decided_ms: dict[Xid, int] = field(default_factory=dict)  # times of the unfinished

    def apply(self, header: RecordHeader, record: Record) -> None:
        match record:
            case Decision(XaKey(xid, _), participants):
                self.unfinished[xid] = participants
                self.decided_ms.setdefault(xid, header.time_ms)
            case Forget(XaKey(xid, _)):
                # Absent: carried away, and its decision dropped, before the FORGET was.
                if xid in self.unfinished:
                    self.finished[xid] = self.unfinished.pop(xid)
                self.decided_ms.pop(xid, None)
            case _:
                pass  # EPOCH: its incarnation stands in every header


class DecisionLog(OwnJournal):
    """Decisions of one coordinator in one directory, locked exclusively."""

    def __init__(self, storage: DirectoryStorage, name: LogName, journal: Journal, found: _Found) -> None:
        super().__init__(storage, journal, FORMAT_VERSION)
        self.name = name
        self._lock = threading.Lock()
        self._unfinished = found.unfinished  # transaction -> its participants; under the lock
        self._decided_ms = found.decided_ms  # the same transactions, and when; under the lock
        self._segments_max = SEGMENTS_KEPT_MIN  # under the lock

    @classmethod
    def open(cls, directory: Path, name: str, *, segment_bytes: int = SEGMENT_BYTES) -> Self:
        """Open or create the log in *directory*. Recovery is done and durable on return.

        Raises InvalidName, LogInUse, ForeignLog, CopiedLog, CorruptJournal (nothing was touched), StorageFailed.
        """
        wanted = LogName(name, secrets.token_hex(4))
        in_use = f"{directory} is in use by another coordinator: stop it first, or give this one its own directory"
        with locked(directory, LogInUse(in_use)) as storage:
            owner = _owner(storage, segment_bytes) or wanted
            if owner.name != wanted.name:
                raise ForeignLog(
                    f"{storage.path} holds the decisions of coordinator {owner.name!r}, not of {wanted.name!r}: "
                    f"name that one, or another directory"
                )
            keep_origin(storage, is_new=owner is wanted)
            segments = Segments.open(storage, JournalIdentity(owner.cluster, 0), segment_bytes, writable=True)
            found = _Found()
            opened = cls(storage, owner, resumed(segments, found.apply, FLUSH, log), found)
            opened._begin()
        return opened

    def unfinished(self) -> dict[Xid, str]:
        """Return decided and not forgotten transactions with their participants, oldest first; all durable.

        Raises StorageFailed.
        """
        with self._lock:
            found, end = dict(self._unfinished), self._journal.end
        self._journal.wait_flushed(end)
        return found

    def ages_s(self) -> list[float]:
        """Return the time since each unfinished decision, or since the log was compacted before it was opened. Reads no
        disk."""
        with self._lock:
            now_ms = wall_clock_ms()
            return [max(0.0, (now_ms - decided_ms) / 1000) for decided_ms in self._decided_ms.values()]

    @property
    def is_failed(self) -> bool:
        """True once the log can take no more decisions."""
        return self._journal.failure is not None

    def check(self) -> None:
        """Raise StorageFailed once the log can take no more decisions."""
        if (failure := self._journal.failure) is not None:
            raise failure

    def decide(self, xid: Xid, participants: str) -> None:
        """Make the decision to commit *xid* durable: after return no crash undoes it.

        Raises StorageFailed, JournalClosed; then a restart may or may not find the decision.
        """
        with self._lock:
            before = self._journal.end
            self._decided_ms[xid] = wall_clock_ms()
            self._unfinished[xid] = participants
            try:
                self._append(Decision(self._key(xid), participants))
            except BaseException:  # ^C: the record may be queued
                if self._journal.end == before:
                    del self._unfinished[xid], self._decided_ms[xid]
                raise
            end = self._journal.end
        self._journal.wait_flushed(end)

    def forget(self, xid: Xid) -> None:
        """Drop the decision about *xid*, which every participant has committed. Durable a moment later: losing that is
        harmless.

        Raises StorageFailed, JournalClosed.
        """
        with self._lock:
            self._append(Forget(self._key(xid)))
            del self._unfinished[xid], self._decided_ms[xid]
            if len(self._journal.segments) > self._segments_max:
                self._compact()

    def _compact(self) -> None:
        """Carry unfinished decisions forward and delete the segments before them. Under the lock.

        The writer thread is idle meanwhile: everything is flushed, and appends need the lock.
        """
        # Carried into an empty log the next open would count incarnations from 1 again.
        first = self._append_epoch()
        for xid, participants in self._unfinished.items():
            self._append(Decision(self._key(xid), participants))
        journal = self._journal
        journal.wait_flushed(journal.end)
        journal.segments.drop_before(first)
        # Counted from what is left: a log that is all unfinished must not be copied at every step.
        self._segments_max = len(journal.segments) + SEGMENTS_KEPT_MIN - 1
        log.debug("decision log compacted path=%s unfinished=%d", self._storage.path, len(self._unfinished))

    def _key(self, xid: Xid) -> BranchKey:
        return XaKey(xid, self.name.name)


def _owner(storage: Storage, segment_bytes: int) -> LogName | None:
    """Return the log's owner; None for an empty directory. Raises ForeignLog for a broker's journal."""
    segments = open_beside_writer(storage, segment_bytes)
    try:
        if not len(segments):
            return None
        if (owner := LogName.of_cluster(segments.identity.cluster)) is None:
            raise ForeignLog(
                f"{storage.path} holds the journal of {segments.identity}, no coordinator's decisions: "
                f"name another directory"
            )
        return owner
    finally:
        segments.close()


class LoggedDecisions(NamedTuple):
    """Read-only content of a log. *finished*: decided, and confirmed by both participants or forgotten by hand. The
    log has dropped finished decisions below *start*: none, if that is 0."""

    name: LogName
    unfinished: Mapping[Xid, str]
    finished: Mapping[Xid, str]
    is_held: bool  # a running coordinator may add decisions at any moment
    is_copy: bool  # of a log elsewhere, which may have decided since
    start: Lsn
    end: Lsn


def read_decisions(directory: Path) -> LoggedDecisions:
    """Read the log in *directory* without changing it. What is read is durable, so that it may be acted on.

    Raises ForeignLog for anything else, CorruptJournal, InvalidRecord, StorageFailed.
    """
    storage = DirectoryStorage.open_for_reading(directory)
    is_held = storage.is_held()  # looked at first: a coordinator that ends meanwhile may have decided meanwhile
    if (owner := _owner(storage, SEGMENT_BYTES)) is None:
        raise ForeignLog(f"{directory} holds no coordinator's decisions: name the directory that it was opened with")
    segments = open_beside_writer(storage, SEGMENT_BYTES)
    try:
        segments.drop_cache(segments.start)  # a decision whose fsync failed would look made
        found = _Found()
        end, _ = replay(segments, found.apply)
        check_end(segments, end)
        segments.drop_cache(segments.start)  # fsyncs what was written meanwhile, or by a process that was killed
        start = Lsn(segments.start - SEGMENT_HEADER_BYTES)
    finally:
        segments.close()
    return LoggedDecisions(owner, found.unfinished, found.finished, is_held, is_copy(storage), start, end.end)
