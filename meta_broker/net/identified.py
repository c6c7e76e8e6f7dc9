"""Identity of a connection's peer: its address, and the principal that it belongs to."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from meta_broker.access.principal import Principal
from meta_broker.access.scram import Login
from meta_broker.handlers.gate import Gate
from meta_client.protocol.limits import Limits

# Of a peer that is not known: a line with a message of a login; bodies are skipped, none is kept.
UNKNOWN_LIMITS: Final = Limits(line_bytes_max=4096, body_bytes_max=0)


class Identified:
    """A connection whose peer can be known. The part of handlers.context.Peer that says who it is."""

    def __init__(self, now: float) -> None:
        self.opened_at = self.last_active = now
        self.name = self.address = "?"
        self._log_context = {"conn": self.name}
        self.principal: Principal | None = None
        self.login: Login | None = None  # one that has begun

    def note_address(self, transport: asyncio.Transport) -> None:
        """Take note of the peer's address."""
        address = transport.get_extra_info("peername") or ("?",)
        self.name, self.address = ":".join(map(str, address[:2])), str(address[0])
        self._log_context = {"conn": self.name}

    def identify(self, transport: asyncio.Transport, gate: Gate) -> bool:
        """Return whether the peer is known without a login: by its certificate, or by its address."""
        self.principal = gate.identify(self.address, certificate_names(transport.get_extra_info("peercert")))
        return self.principal is not None


def certificate_names(certificate: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the subject's common name, then the alternative names, as `ssl.SSLSocket.getpeercert` has them.

    None, or an empty one, which was not verified: no names.
    """
    if not certificate:
        return ()
    common = [value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"]
    other = [value for kind, value in certificate.get("subjectAltName", ()) if kind in ("DNS", "email", "URI")]
    return tuple(dict.fromkeys((*common, *other)))
