"""Requests to model servers that agents name: the headers and addresses that are allowed. Needs a vendor's library."""

from __future__ import annotations

import asyncio

import httpx2

from agentops.base.http.guarded_client import locate
from runs.providers.server_rules import check_target, policy_of

TIMEOUT = httpx2.Timeout(600, connect=5)
#: Headers that are sent. The vendors' libraries would add headers from the environment, which may hold secrets.
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
    """Sends requests to the checked addresses, even if the name resolves to others in the meantime."""

    def __init__(self) -> None:
        self._inner = httpx2.AsyncHTTPTransport(trust_env=False)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request. Raises `UrlNotAllowed` before anything is sent."""
        url = str(request.url)
        # In a thread, because resolving blocks.
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
        """Send a request to an address. TLS and the Host header use the name."""
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
