"""One connection to a master: its bytes become a replica's events. Loop thread only."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Protocol, cast

from meta_broker.replication.link_protocol import (
    Accept,
    FetchTail,
    FullResync,
    Heartbeat,
    JournalChunk,
    LinkDecoder,
    LinkFrame,
    Rejected,
    SnapshotChunk,
)
from meta_broker.replication.replica.effects import Effect
from meta_broker.replication.replica.replica import Replica, ReplicaJournal
from meta_broker.replication.replica.replica_state import READS_FRAMES, READS_LINES
from meta_client.protocol.decoder import ResponseDecoder
from meta_client.protocol.errors import RemoteProtocolError


class LinkOwner(Protocol):
    """The shell around a replica, as its connection sees it."""

    replica: Replica
    now_ms: Callable[[], int]

    def journal(self) -> ReplicaJournal: ...
    def carry_out(self, effects: Iterable[Effect]) -> None: ...
    def on_closed(self, link: "ReplicaLink", why: str) -> None: ...


class ReplicaLink(asyncio.Protocol):
    """One connection, while it is the owner's."""

    def __init__(self, owner: LinkOwner, master: str) -> None:
        self.master = master  # URL
        self.closed = asyncio.Event()  # or given up before it was made
        self.can_write = asyncio.Event()
        self.can_write.set()
        self.transport: asyncio.Transport | None = None  # None: not connected yet
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._lines = ResponseDecoder()
        self._decoder = LinkDecoder(Accept, FullResync, FetchTail, Rejected, SnapshotChunk, JournalChunk, Heartbeat)
        self._frames: deque[LinkFrame] = deque()  # of one socket read, while none may be handled

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self.closed.is_set():  # given up meanwhile
            self.transport.abort()
        else:
            self._owner.carry_out(self._owner.replica.connected(self._loop.time()))

    def data_received(self, data: bytes) -> None:
        owner, replica = self._owner, self._owner.replica
        if self.closed.is_set():
            return
        replica.heard(self._loop.time())
        try:
            if replica.state in READS_LINES:
                for answer in self._lines.receive_data(data):
                    if replica.state in READS_LINES:
                        owner.carry_out(replica.answered(answer, owner.journal()))
            else:
                self._frames.extend(self._decoder.receive_data(data))
                self.handle_frames()
        except RemoteProtocolError as error:
            owner.carry_out(replica.leave(str(error)))

    def handle_frames(self) -> None:
        """Handle what was received, as far as it may be now."""
        owner, replica = self._owner, self._owner.replica
        while self._frames and replica.state in READS_FRAMES and replica.has_room:
            owner.carry_out(replica.frame(self._frames.popleft(), owner.now_ms()))

    def send(self, buffers: list[bytes]) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.writelines(buffers)

    def read(self, *, wanted: bool) -> None:
        """Read from the connection, or pause that."""
        transport = self.transport
        if transport is not None and not transport.is_closing() and transport.is_reading() != wanted:
            (transport.resume_reading if wanted else transport.pause_reading)()

    def pause_writing(self) -> None:
        self.can_write.clear()

    def resume_writing(self) -> None:
        self.can_write.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.on_closed(self, f"the link broke: {exc or 'closed by the master'}")
