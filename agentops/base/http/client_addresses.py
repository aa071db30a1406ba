"""Client addresses in the form that limits count."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

#: Prefix length of an IPv6 network that usually belongs to a single client.
IPV6_NETWORK_BITS = 64


def parse_address(text: str) -> IPv4Address | IPv6Address | None:
    """Return the IP address, or None if the text is not one. An IPv4 address in IPv6 notation becomes IPv4."""
    try:
        address = ip_address(text.strip().removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


@lru_cache(maxsize=4096)
def network_of(text: str) -> str:
    """Return the network by which a limit counts: the IPv4 address, or the /64 network of an IPv6 address.

    A text that is not an address is returned unchanged.
    """
    address = parse_address(text)
    if isinstance(address, IPv6Address):
        return str(ip_network((int(address), IPV6_NETWORK_BITS), strict=False))
    return text if address is None else str(address)


def wide_network_of(text: str, ipv4_bits: int, ipv6_bits: int) -> str:
    """Return the network of an address with a prefix of so many bits; other texts are returned unchanged."""
    address = parse_address(text)
    if isinstance(address, IPv6Address):
        return str(IPv6Network((int(address), ipv6_bits), strict=False))
    return text if address is None else str(IPv4Network((int(address), ipv4_bits), strict=False))
