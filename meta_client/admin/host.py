"""Addresses that only this machine reaches, and which Host headers a port there answers. Pure.

A name may be pointed at 127.0.0.1 by its owner, whose page in a browser of this machine then reads the port as its own
(DNS rebinding). A page has no address for its name, so that addresses and `localhost` are safe to answer.
"""

import ipaddress
import re
from typing import Final

HOST: Final = re.compile(r"(?:\[(?P<ipv6>[^\]]*)\]|(?P<name>[^:]*))(?::[0-9]*)?")


def is_loopback(host: str) -> bool:
    """Return whether *host* is an address that only this machine reaches; of names, `localhost` alone is."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def may_ask_as(header: str | None, listens_at: str) -> bool:
    """Return whether a request with this Host header is answered at the address *listens_at*. None: there is no such
    header, which every browser sends."""
    if header is None or not is_loopback(listens_at):
        return True
    if (found := HOST.fullmatch(header)) is None:
        return False
    if found["ipv6"] is not None:
        return _is_address(ipaddress.IPv6Address, found["ipv6"])
    return found["name"].lower() == "localhost" or _is_address(ipaddress.IPv4Address, found["name"])


def _is_address(kind: type[ipaddress.IPv4Address] | type[ipaddress.IPv6Address], text: str) -> bool:
    try:
        kind(text)
    except ValueError:
        return False
    return True
