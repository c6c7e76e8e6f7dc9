"""The server, as one of its connections sees it."""

import asyncio
from dataclasses import dataclass
from typing import Protocol, TypeVar

from journal.errors import StorageFailed
from meta_client.protocol.limits import Limits

C = TypeVar("C", contravariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionBounds:
    """What one peer may make the broker hold."""

    decoder: Limits
    unsent_bytes_max: int
    requests_in_flight_max: int


class ConnectionOwner(Protocol[C]):
    """The server, as a connection sees it."""

    def opened(self, connection: C, transport: asyncio.Transport) -> bool:
        """A peer has come. False: there are too many, and *transport* was taken over."""

    def closed(self, connection: C) -> None: ...

    def received(self, connection: C, held: int, *, gets_on: bool) -> None:
        """*connection* holds *held* bytes of a body that is not all here; *gets_on*: a request became whole."""

    def unsent(self, connection: C, held: int, *, gets_on: bool) -> None:
        """*connection* holds *held* bytes of answers; *gets_on*: its peer takes some."""

    def flush_later(self, connection: C) -> None:
        """Call *connection*'s `flush` soon, once this turn of the loop has queued what it has for it."""

    def is_journal_full(self) -> bool:
        """Whether so much waits to be written that sockets must not be read; `resume` follows when it is over."""

    def failed(self, error: StorageFailed) -> None:
        """The journal has stopped: so must the broker."""
