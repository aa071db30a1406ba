"""HTTP requests to model servers that agents name, limited to allowed headers and addresses.

Imported on first use, because httpx2 comes with the optional libraries of the vendors.
"""

from __future__ import annotations

import asyncio

import httpx2

from agentops.base.http.guarded_client import locate
from runs.providers.server_rules import check_target, policy_of

TIMEOUT = httpx2.Timeout(600, connect=5)
#: The only headers that are sent. The vendors' libraries would add headers from the environment, which may be secret.
SENT_HEADERS = frozenset(
    {
        *("accept", "accept-encoding", "authorization", "connection", "content-length", "content-type", "host"),
        *("anthropic-beta", "anthropic-version", "user-agent", "x-api-key"),
    }
)


def make_client() -> httpx2.AsyncClient:
    """Create a client whose requests follow the rules for model servers."""
    return httpx2.AsyncClient(
        transport=ModelServerTransport(), timeout=TIMEOUT, follow_redirects=False, trust_env=False
    )


class ModelServerTransport(httpx2.AsyncBaseTransport):
    """Sends requests only to checked addresses, even if the host's name then resolves to others."""

    def __init__(self) -> None:
        self._inner = httpx2.AsyncHTTPTransport(trust_env=False)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request. Raises `UrlNotAllowed` before anything is sent."""
        url = str(request.url)
        # Resolving the name blocks, so do it in a thread.
        target, addresses = await asyncio.to_thread(locate, url, policy_of(url))
        check_target(target, addresses)
        headers = [(name, value) for name, value in request.headers.multi_items() if name.lower() in SENT_HEADERS]
        *others, last = addresses
        for address in others:
            try:
                return await self._send(request, headers, target.host, str(address))
            except (httpx2.ConnectError, httpx2.ConnectTimeout):
                continue
        return await self._send(request, headers, target.host, str(last))

    async def _send(
        self, request: httpx2.Request, headers: list[tuple[str, str]], host: str, address: str
    ) -> httpx2.Response:
        """Send a request to an address. TLS and the Host header still use the name."""
        pinned = httpx2.Request(
            request.method,
            request.url.copy_with(host=address),
            headers=headers,
            stream=request.stream,
            extensions={**request.extensions, "sni_hostname": host},
        )
        return await self._inner.handle_async_request(pinned)

    async def aclose(self) -> None:
        await self._inner.aclose()
