"""Addresses of clients, as limits count them."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

#: One client of IPv6 usually has this many leading bits to itself, and may choose the rest for each connection.
IPV6_NETWORK_BITS = 64


def parse_address(text: str) -> IPv4Address | IPv6Address | None:
    """Return the address; None where the text is not one. An IPv4 address in IPv6 notation becomes an IPv4 address."""
    try:
        address = ip_address(text.strip().removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def network_of(text: str) -> str:
    """Return what a limit per address counts by: the IPv4 address, or the /64 network of an IPv6 address."""
    address = parse_address(text)
    if isinstance(address, IPv6Address):
        return str(ip_network((int(address), IPV6_NETWORK_BITS), strict=False))
    return text if address is None else str(address)
