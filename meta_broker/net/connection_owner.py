"""The server's interface for its connections."""

import asyncio
from dataclasses import dataclass
from typing import Protocol, TypeVar

from journal.errors import StorageFailed
from meta_broker.access.principal import Principal
from meta_broker.net.turns import Turns
from meta_client.protocol.body_buffers import BodyBuffers
from meta_client.protocol.limits import Limits

C = TypeVar("C", contravariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionBounds:
    """Limits on what one peer may make the broker hold."""

    decoder: Limits
    unsent_bytes_max: int
    requests_in_flight_max: int


class ConnectionOwner(Protocol[C]):
    """The server, as a connection sees it."""

    buffers: BodyBuffers
    received_chunk: memoryview  # for what a connection receives outside of large bodies, until it has taken that
    turns: Turns

    def opened(self, connection: C, transport: asyncio.Transport) -> bool:
        """Register a new connection. False: there are too many, and *transport* was taken over."""

    def closed(self, connection: C) -> None: ...

    def become(self, connection: C, principal: Principal) -> str:
        """Let *connection* join the account of *principal*. Returns why not, blank if it did."""

    def received(self, connection: C, held: int, *, made_progress: bool) -> None:
        """Report that *connection* holds *held* bytes of an incomplete body; *made_progress*: a request was
        completed.
        """

    def unsent(self, connection: C, held: int, *, made_progress: bool) -> None:
        """Report that *connection* holds *held* bytes of replies; *made_progress*: its peer reads."""

    def flush_later(self, connection: C) -> None:
        """Call *connection*'s `flush` at the end of this turn of the loop."""

    def is_journal_full(self) -> bool:
        """Return whether sockets must not be read because too much waits to be written; `handle_queued` follows."""

    def failed(self, error: StorageFailed) -> None:
        """Stop the broker, since the journal has stopped."""
