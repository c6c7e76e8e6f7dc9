"""Broker addresses: `meta://host:port`, IPv6 in brackets (spec 1.7)."""

import re
from ipaddress import IPv6Address
from typing import Self

import msgspec

from zk.errors import ZooKeeperError

_URL = re.compile(r"meta[a-z0-9+.-]*://(?:\[(?P<ipv6>[^\[\]]*:[^\[\]]*)\]|(?P<host>[^\[\]:]+)):(?P<port>[0-9]{1,5})")
_IPV6_CHARACTERS = re.compile(r"[0-9A-Fa-f:.]+(?:%[A-Za-z0-9._-]+)?")  # ipaddress takes anything for a zone
_HOST = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_.])?")
_HOST_CHARACTERS_MAX = 253


class InvalidUrl(ZooKeeperError, ValueError):
    """A text that is no broker address: give meta://host:port."""


# A struct, because a client looks its connection up with every request: its functions are C.
class BrokerUrl(msgspec.Struct, frozen=True, order=True):
    """Address of a broker. Clients share connections, and peers compare brokers, by its text."""

    host: str  # a name, an IPv4 address, or an IPv6 address without brackets
    port: int

    def __post_init__(self) -> None:
        if not 1 <= self.port <= 65535:
            raise InvalidUrl(f"port {self.port} is outside [1, 65535]")
        if ":" in self.host:
            if _IPV6_CHARACTERS.fullmatch(self.host) is None:
                raise InvalidUrl(f"host {self.host[:60]!r} is not an IPv6 address")
            try:
                IPv6Address(self.host)
            except ValueError as error:
                raise InvalidUrl(f"host {self.host[:60]!r} is not an IPv6 address: {error}") from error
        elif len(self.host) > _HOST_CHARACTERS_MAX or _HOST.fullmatch(self.host) is None:
            raise InvalidUrl(f"host {self.host[:60]!r} is neither a name nor an address")
        try:
            self.host.encode("idna")  # as the system's functions do: their callers expect an OSError
        except UnicodeError as error:
            raise InvalidUrl(f"host {self.host[:60]!r} is neither a name nor an address: {error}") from error

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a URL; accepts any scheme that begins with `meta`, as the ancestor does. Raises InvalidUrl."""
        if (match := _URL.fullmatch(text)) is None:
            raise InvalidUrl(f"{text[:80]!r} is not meta://<host>:<port>, with an IPv6 host in brackets")
        return cls(match["ipv6"] or match["host"], int(match["port"]))

    def __str__(self) -> str:
        return f"meta://[{self.host}]:{self.port}" if ":" in self.host else f"meta://{self.host}:{self.port}"

    def encode(self) -> bytes:
        """Return the data of a node that holds this URL."""
        return str(self).encode()
