"""Fetches from a slave the tail that this master lost, into a file."""

import logging
from collections.abc import Callable, Collection
from typing import Final, Generic, TypeVar

from journal.errors import StorageFailed
from journal.records.epoch_history import WriterEpoch
from journal.records.header import Lsn
from meta_broker.replication.link_protocol import Handshake, LinkRefused
from meta_broker.replication.lost_tail import LostTail, TailFile

log = logging.getLogger(__name__)

# A fetch that failed is not begun again for as long as it took, within these bounds: the slave comes back each second,
# and would send all of it again.
PAUSE_S_MIN: Final = 0.5
PAUSE_S_MAX: Final = 30.0

_Sender = TypeVar("_Sender")


class TailFetch(Generic[_Sender]):
    """At most one fetch, from the slave of *sender*. Loop thread only."""

    def __init__(self, directory: str, clock: Callable[[], float]) -> None:
        self.sender: _Sender | None = None  # while one runs
        self._directory = directory
        self._clock = clock
        self._not_before: dict[int, float] = {}  # by slave
        self._begun_at = 0.0
        self._logged: tuple[int, Lsn, int] | None = None  # slave, divergence_lsn and end of the last fetch
        self._handshake: Handshake
        self._file: TailFile

    def begin(self, sender: _Sender, handshake: Handshake, divergence_lsn: Lsn) -> None:
        """Begin to fetch [*divergence_lsn*, end of the slave's journal). Raises LinkRefused."""
        if self.sender is not None:
            raise LinkRefused("this master fetches from another slave what it lost")
        slave_id, end = handshake.slave_id, handshake.end
        self._begun_at = self._clock()
        if self._begun_at < self._not_before.get(slave_id, 0.0):
            raise LinkRefused("what this master lost could not be fetched from that slave: it is tried again later")
        if self._logged != (slave_id, divergence_lsn, end):
            self._logged = slave_id, divergence_lsn, end
            log.warning("lost here, fetching it from=%d to=%d slave=%d", divergence_lsn, end, slave_id)
        try:
            self._file = TailFile(self._directory, divergence_lsn)
        except StorageFailed as error:
            self._pause(slave_id)
            raise LinkRefused(str(error)) from error
        self.sender, self._handshake = sender, handshake

    def add(
        self, sender: _Sender, lsn: Lsn, data: bytes | memoryview, epoch_history: Collection[WriterEpoch]
    ) -> LostTail | None:
        """Add a piece; return the tail once it is complete. *epoch_history*: this master's. Raises LinkRefused."""
        if self.sender is None or self.sender is not sender:
            raise LinkRefused("a JOURNAL_CHUNK that was not requested")
        file, end = self._file, Lsn(self._handshake.end)
        if lsn != file.end or lsn + len(data) > end:
            raise LinkRefused(f"it sent LSN {lsn} where {file.end} follows, up to {end}")
        try:
            file.add(data)
        except StorageFailed as error:
            raise LinkRefused(str(error)) from error
        if file.end != end:
            return None
        self.sender = None
        dropped = frozenset(epoch for epoch in epoch_history if epoch.lsn >= file.divergence_lsn)
        return LostTail(file.divergence_lsn, end, self._handshake.slave_id, file, dropped)

    def give_up(self) -> _Sender | None:
        """End a fetch that runs, and return its sender."""
        sender, self.sender = self.sender, None
        if sender is not None:
            self._file.close()
            self._pause(self._handshake.slave_id)
        return sender

    def _pause(self, slave_id: int) -> None:
        now = self._clock()
        self._not_before[slave_id] = now + min(max(now - self._begun_at, PAUSE_S_MIN), PAUSE_S_MAX)
