"""Where a request comes from: the address, network and scheme of the client, and requests from pages of other sites.

The headers of a proxy are only trusted if it is configured. `ForwardedClient` reads them, under any ASGI server.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache, lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

from django.http import HttpRequest

from agentops.base.refusals import Forbidden

#: Prefix length of IPv6 networks; such a network usually belongs to one client.
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
    """Return the network for which limits count: the IPv4 address, or the /64 network of an IPv6 address.

    A text that is not an address is returned unchanged.
    """
    address = parse_address(text)
    if isinstance(address, IPv6Address):
        return str(ip_network((int(address), IPV6_NETWORK_BITS), strict=False))
    return text if address is None else str(address)


def wide_network_of(text: str, ipv4_bits: int, ipv6_bits: int) -> str:
    """Return the network of an address, with a prefix of this length. Other texts are returned unchanged."""
    address = parse_address(text)
    if isinstance(address, IPv6Address):
        return str(IPv6Network((int(address), ipv6_bits), strict=False))
    return text if address is None else str(IPv4Network((int(address), ipv4_bits), strict=False))


Scope = dict[str, Any]
Application = Callable[[Any, Any, Any], Awaitable[None]]
#: In FORWARDED_ALLOW_IPS: every client is a proxy.
EVERYONE = "*"


class Proxies:
    """The proxies in FORWARDED_ALLOW_IPS: addresses, networks, or all clients."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._are_all = EVERYONE in names
        self._networks = [ip_network(name, strict=False) for name in names if name != EVERYONE]

    def __contains__(self, host: str) -> bool:
        return self._are_all or self.contains_configured(host)

    def contains_configured(self, host: str) -> bool:
        """Return whether an address or a network was configured that covers the host, not only `*`."""
        address = parse_address(host)
        return address is not None and any(address in network for network in self._networks)

    def client_of(self, forwarded_for: str) -> str | None:
        """Return the last address in X-Forwarded-For that is not a configured proxy: the address of the client.

        The client may have forged the addresses before it. None if the last one is invalid.
        """
        client = None
        for part in reversed(forwarded_for.split(",")):
            address = parse_address(part.strip())
            if address is None:
                break
            client = str(address)
            if not self.contains_configured(client):
                break
        return client


#: Returns the proxies for the value of FORWARDED_ALLOW_IPS.
configured_proxies = cache(Proxies)


class ForwardedClient:
    """Sets the address of the client from the headers of a configured proxy. Headers of other clients are ignored."""

    def __init__(self, application: Application, proxies: list[str]) -> None:
        self._application = application
        self._proxies = configured_proxies(tuple(proxies))

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            self._read_headers(scope)
        await self._application(scope, receive, send)

    def _read_headers(self, scope: Scope) -> None:
        """Set the client in the scope of a request from a proxy. Remove the header of other clients."""
        host = (scope.get("client") or ("", 0))[0]
        if host not in self._proxies:
            # Removed, because Django would take the request for HTTPS.
            scope["headers"] = [header for header in scope["headers"] if header[0] != b"x-forwarded-proto"]
            return
        values = [value.decode("latin1") for name, value in scope["headers"] if name == b"x-forwarded-for"]
        if values and (client := self._proxies.client_of(",".join(values))) is not None:
            scope["client"] = (client, 0)


def refuse_foreign(request: HttpRequest) -> None:
    """Raise `Forbidden` (`foreign_origin`) if the Origin header says that a page of another site sends the request."""
    origin = request.headers.get("Origin")
    if origin and origin != f"{request.scheme}://{request.get_host()}":
        raise Forbidden("pages of another site cannot send this request", code="foreign_origin")
