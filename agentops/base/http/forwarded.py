"""The client's address and scheme behind proxies: only headers of configured proxies are trusted.

agentops.asgi wraps the application with it, instead of using the features of each server.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from ipaddress import ip_network
from typing import Any

from agentops.base.http.client_addresses import parse_address

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
        address = parse_address(host)
        return address is not None and any(address in network for network in self._networks)

    def client_of(self, forwarded_for: str) -> str | None:
        """Return the client's address: the last one in X-Forwarded-For that is not a configured proxy.

        Everything to the left of it may be forged by the client.
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


@functools.cache
def configured_proxies(names: tuple[str, ...]) -> Proxies:
    return Proxies(names)


class ForwardedClient:
    """Set the address and the scheme of the client from the headers of a configured proxy."""

    def __init__(self, application: Application, proxies: list[str]) -> None:
        self._application = application
        self._proxies = configured_proxies(tuple(proxies))

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            self._read_headers(scope)
        await self._application(scope, receive, send)

    def _read_headers(self, scope: Scope) -> None:
        host = (scope.get("client") or ("", 0))[0]
        if host not in self._proxies:
            # Django would assume that the request came over HTTPS.
            scope["headers"] = [header for header in scope["headers"] if header[0] != b"x-forwarded-proto"]
            return
        values = [value.decode("latin1") for name, value in scope["headers"] if name == b"x-forwarded-for"]
        if values and (client := self._proxies.client_of(",".join(values))) is not None:
            scope["client"] = (client, 0)
