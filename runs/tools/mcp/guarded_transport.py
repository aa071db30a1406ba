"""HTTP for MCP sessions: each request goes to checked addresses, as with every other client."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import anyio.to_thread
import httpcore2
import httpx2

from agentops.base.http.address_policy import Address, HttpPolicy, UrlNotAllowed
from agentops.base.http.guarded_client import HttpFailed, locate

#: Failures of a connection: the request may have arrived.
FAILURES = (httpcore2.TimeoutException, httpcore2.NetworkError, httpcore2.ProtocolError)


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Sends each request over a new connection, to the current addresses of its host. No proxies."""

    def __init__(self, policy: HttpPolicy) -> None:
        self._policy = policy
        self._tls = httpx2.create_ssl_context(trust_env=False)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        try:
            _, addresses = await anyio.to_thread.run_sync(locate, str(request.url), self._policy)
        except (UrlNotAllowed, HttpFailed) as error:
            raise httpx2.ConnectError(str(error), request=request) from error
        pool = httpcore2.AsyncConnectionPool(ssl_context=self._tls, network_backend=_CheckedAddresses(addresses))
        wire = httpcore2.Request(
            request.method, str(request.url), headers=request.headers.raw, content=request.stream,
            extensions=request.extensions,
        )  # fmt: skip
        try:
            response = await pool.handle_async_request(wire)
        except FAILURES as error:
            await pool.aclose()
            raise httpx2.ReadError(str(error) or type(error).__name__, request=request) from error
        body = _Body(response, pool, self._policy.max_bytes)
        return httpx2.Response(response.status, headers=response.headers, stream=body, extensions=response.extensions)


class _Body(httpx2.AsyncByteStream):
    """The body of an answer, up to a limit. Closing it closes the connection."""

    def __init__(self, response: httpcore2.Response, pool: httpcore2.AsyncConnectionPool, limit: int) -> None:
        self._response, self._pool, self._left = response, pool, limit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._response.aiter_stream():
                self._left -= len(chunk)
                if self._left < 0:
                    raise httpx2.ReadError("the answer is too large")
                yield chunk
        except FAILURES as error:
            raise httpx2.ReadError(str(error) or type(error).__name__) from error

    async def aclose(self) -> None:
        await self._response.aclose()
        await self._pool.aclose()


class _CheckedAddresses(httpcore2.AsyncNetworkBackend):
    """Connects to the checked addresses, ignoring later DNS changes. TLS and Host still use the name."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = addresses
        self._inner = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        *others, last = self._addresses
        for address in others:
            try:
                return await self._inner.connect_tcp(str(address), port, timeout)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                continue
        return await self._inner.connect_tcp(str(last), port, timeout)

    async def sleep(self, seconds: float) -> None:
        await self._inner.sleep(seconds)
