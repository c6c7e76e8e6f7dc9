"""Identity of a connection's peer: its address, the principal that it belongs to, and whose quota it uses."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final

from meta_broker.access.accounts import QuotaAccount
from meta_broker.access.addresses import network_of
from meta_broker.access.principal import Principal
from meta_broker.access.scram import Login
from meta_broker.handlers.gate import Gate
from meta_broker.net.throttle import Throttle
from meta_broker.net.turns import PeerKey
from meta_client.protocol.limits import Limits

# Of a peer that is not known: a line with a message of a login; bodies are skipped, none is kept.
UNKNOWN_LIMITS: Final = Limits(line_bytes_max=4096, body_bytes_max=0)


class Identified(ABC):
    """A connection whose peer can be known. The part of handlers.context.Peer that says who it is."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.opened_at = self.last_active = loop.time()
        self.name = self.address = self.network = "?"
        self._log_context = {"conn": self.name}
        self.principal: Principal | None = None
        self.former: tuple[Principal, ...] = ()  # before another login; what they began goes on
        self.has_logged_in = False  # else its principal follows from its certificate or address
        self.certificate: tuple[str, ...] = ()  # names in it
        self.login: Login | None = None  # one that has begun
        self.throttle: Throttle | None = None  # None: it has no quota

    def identify(self, transport: asyncio.Transport, gate: Gate | None) -> None:
        """Take note of the peer's address, and of the principal that it is known as without a login: by its
        certificate, or by its address."""
        address = transport.get_extra_info("peername") or ("?",)
        self.name, self.address = ":".join(map(str, address[:2])), str(address[0])
        self.network = network_of(self.address)
        self._log_context = {"conn": self.name}
        if gate is not None:
            self.certificate = certificate_names(transport.get_extra_info("peercert"))
            self.principal = gate.identify(self.address, self.certificate)

    @property
    def peer_key(self) -> PeerKey:
        """Peer whose share of the loop's turns it uses."""
        return None if self.principal is None else self.principal.name, self.network

    @property
    def account(self) -> QuotaAccount | None:
        """Account of the principal, or without one of the address; None: it has no quota."""
        return None if self.throttle is None else self.throttle.account

    def use_account(self, account: QuotaAccount | None) -> None:
        """Stay within the quota of *account* from now on; None: of none. The former account counts it no longer."""
        if account is self.account:
            return
        if self.throttle is not None:
            self.end_throttle()
            self._loop.call_soon(self.throttle_over)  # later: a request may be in the middle of its handling
        if account is not None:
            account.connections += 1
            self.throttle = Throttle(account, self.name, self._loop, self.throttle_over)

    def end_throttle(self) -> None:
        """Wait for no quota any more. Idempotent."""
        if self.throttle is not None:
            self.throttle.close()
            self.throttle = None

    @abstractmethod
    def throttle_over(self) -> None:
        """Handle, or receive, what has waited for a quota."""


def certificate_names(certificate: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the subject's common name, then the alternative names, as `ssl.SSLSocket.getpeercert` has them.

    None, or an empty one, which was not verified: no names.
    """
    if not certificate:
        return ()
    common = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    other = [value for kind, value in certificate.get("subjectAltName", ()) if kind in ("DNS", "email", "URI")]
    return tuple(dict.fromkeys((*common, *other)))
