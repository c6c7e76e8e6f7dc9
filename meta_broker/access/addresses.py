"""Addresses of peers, and ranges of them. Pure."""

import ipaddress
from typing import Final

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
AddressRange = ipaddress.IPv4Network | ipaddress.IPv6Network
IPV6_PEER_BITS: Final = 64


def parse_range(text: str) -> AddressRange:
    """Parse a range, as 10.1.0.0/16 or ::1. Raises ValueError, which says what is wrong."""
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is no range of addresses, as 10.1.0.0/16 is: {error}") from None


def parse_address(text: str) -> Address | None:
    """Parse an address as a socket names it; None: it is none. An IPv4 address is one, though it comes as IPv6."""
    try:
        parsed = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return parsed if mapped is None else mapped


def network_of(address: str) -> str:
    """Return what limits by address count *address* as: itself, or the /64 of an IPv6 one, all of which one peer may
    have. Every host of a link has link-local ones of the same /64: each of these is counted by itself."""
    parsed = parse_address(address)
    if not isinstance(parsed, ipaddress.IPv6Address) or parsed.is_link_local:
        return address if parsed is None else str(parsed)
    return str(ipaddress.ip_network((parsed, IPV6_PEER_BITS), strict=False))


def is_in(address: Address, among: AddressRange) -> bool:
    return address.version == among.version and address in among
