"""Interfaces of a connection: implemented by threads (connection.py) and by an event loop (aio/)."""

from collections.abc import Sequence
from typing import Protocol

from meta_client.net.pending_reply import OnDone, PendingReply
from meta_client.protocol.requests import Request
from meta_client.protocol.version import Capabilities
from zk.tree.broker_url import BrokerUrl


class Transport(Protocol):
    """A live connection to one broker, or the remains of one: connection.Connection documents the methods."""

    @property
    def url(self) -> BrokerUrl: ...

    @property
    def is_broken(self) -> bool: ...

    def submit(self, request: Request, on_done: OnDone | None = None, *, is_urgent: bool = True) -> PendingReply: ...

    def submit_all(self, requests: Sequence[Request]) -> list[PendingReply]: ...

    def capabilities(self, timeout_s: float) -> Capabilities: ...

    def abandon(self, opaque: int) -> bool: ...

    def expire(self, opaque: int, after_s: float) -> None: ...


class Link(Transport, Protocol):
    """A Transport that threads share, as a client's pool holds it."""

    @property
    def is_refused(self) -> bool: ...

    def close(self) -> None: ...


class Transports(Protocol):
    """The connections of a client, one per broker: connections.Connections documents them."""

    def get(self, url: BrokerUrl, timeout_s: float, *, patient: bool = True) -> Transport: ...

    def sleep(self, seconds: float) -> None: ...
