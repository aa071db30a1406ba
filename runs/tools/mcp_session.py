"""A session with one MCP server, on an event loop in a separate thread. Imports the optional package `mcp`.

HTTP requests only go to addresses that the policy of the server allows.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future, wait
from concurrent.futures import TimeoutError as NotInTime
from contextlib import ExitStack, suppress
from typing import Any, TypeVar

import anyio
import httpcore2
import httpx2
from anyio import to_thread
from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT, CallToolResult, TextContent, Tool

from agentops.base.http.address_policy import Address, HttpPolicy, UrlNotAllowed
from agentops.base.http.guarded_client import HttpFailed, locate
from runs.tools.mcp_servers import McpServer

#: Failures of a connection. The request may have arrived nevertheless.
FAILURES = (httpcore2.TimeoutException, httpcore2.NetworkError, httpcore2.ProtocolError)


class GuardedTransport(httpx2.AsyncBaseTransport):
    """Sends each request over a new connection to the checked addresses of its host, without proxies."""

    def __init__(self, policy: HttpPolicy) -> None:
        self._policy = policy
        self._tls = httpx2.create_ssl_context(trust_env=False)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        try:
            _, addresses = await to_thread.run_sync(locate, str(request.url), self._policy)
        except (UrlNotAllowed, HttpFailed) as error:
            raise httpx2.ConnectError(str(error), request=request) from error
        pool = httpcore2.AsyncConnectionPool(ssl_context=self._tls, network_backend=_CheckedAddresses(addresses))
        wire = httpcore2.Request(
            request.method,
            str(request.url),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        try:
            response = await pool.handle_async_request(wire)
        except FAILURES as error:
            await pool.aclose()
            raise httpx2.ReadError(str(error) or type(error).__name__, request=request) from error
        body = _Body(response, pool, self._policy.max_bytes)
        return httpx2.Response(response.status, headers=response.headers, stream=body, extensions=response.extensions)


class _Body(httpx2.AsyncByteStream):
    """The body of a response of at most `limit` bytes. Closing it closes the connection."""

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
    """Connects to the checked addresses without asking DNS again. TLS and the Host header still use the name."""

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


#: Seconds within which a server must start and send its first response.
CONNECT_S = 20.0
#: Seconds between two checks whether a result is still needed.
POLL_S = 0.1
#: Maximum number of tools that are read from a server.
MAX_TOOLS = 256
T = TypeVar("T")


class McpUnavailable(Exception):
    """The server cannot be started or reached, or did not answer in time before a tool was called."""


class McpDisconnected(Exception):
    """The session ended, or no response came in time. The server may have executed the request."""


class McpSession:
    """A session with a server. Usable from several threads."""

    def __init__(self, server: McpServer) -> None:
        """Start or reach the server. Raises `McpUnavailable`."""
        self._server = server
        self._stack = ExitStack()
        self._portal: BlockingPortal = self._stack.enter_context(start_blocking_portal("asyncio", name="mcp"))
        self._client: Client | None = None
        self._has_ended = self._portal.call(anyio.Event)
        self._ready: Future[None] = Future()
        self._is_broken = False
        self._serving: Future[None] | None = None
        try:
            _check(server)
            self._serving = self._portal.start_task_soon(self._serve)
            self._ready.result(CONNECT_S)
        except BaseException as error:
            self.close()
            if not isinstance(error, Exception):
                raise
            raise McpUnavailable(_reason(error)) from error

    @property
    def is_open(self) -> bool:
        """Whether the session accepts further calls."""
        return not self._is_broken and self._serving is not None and not self._serving.done()

    def tools(self) -> list[Tool]:
        """Return the tools of the server, at most `MAX_TOOLS`. Raises `McpUnavailable`."""
        until = time.monotonic() + CONNECT_S
        try:
            return self._await(self._list_tools, lambda: time.monotonic() >= until)
        except McpDisconnected as error:
            raise McpUnavailable(str(error)) from error

    def call(
        self, name: str, arguments: dict[str, Any], meta: dict[str, Any], cancelled: Callable[[], bool]
    ) -> CallToolResult:
        """Call a tool and return its result. Raises `McpDisconnected`."""

        async def call() -> CallToolResult:
            assert self._client is not None
            try:
                return await self._client.call_tool(name, arguments, meta=meta)  # type: ignore[arg-type]
            except MCPError as error:
                if error.code in (CONNECTION_CLOSED, REQUEST_TIMEOUT):
                    raise
                # The server refused the call: the tool no longer exists, or needs other arguments.
                return CallToolResult(content=[TextContent(type="text", text=error.message)], is_error=True)

        return self._await(call, cancelled)

    def close(self) -> None:
        """End the session, and the command of the server, if necessary by SIGKILL."""
        if self._serving is not None:
            with suppress(Exception):
                self._portal.call(self._has_ended.set)
            if self._client is None:
                self._serving.cancel()  # `_serve` is still waiting for the server's first response
            with suppress(Exception, CancelledError):
                self._serving.result(CONNECT_S)
            self._serving.cancel()
        self._stack.close()

    async def _serve(self) -> None:
        """Hold the session open until `close`. One task enters and leaves the client, as its cancel scopes require."""
        try:
            with open(os.devnull, "w") as discard:
                async with Client(self._transport(discard)) as client:
                    # The library would check results against the server's schemas on this event loop, without a limit.
                    client.session.validate_tool_result = _accept_result  # type: ignore[method-assign]
                    self._client = client
                    self._ready.set_result(None)
                    await self._has_ended.wait()
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error if isinstance(error, Exception) else McpUnavailable("cancelled"))
            raise

    def _transport(self, errors: Any) -> Any:
        """Return the transport to the server. `errors`: the file for the standard error of a command."""
        server = self._server
        if server.url:
            headers = httpx2.Headers(server.headers)
            limits = httpx2.Timeout(server.timeout_s)
            client = httpx2.AsyncClient(transport=GuardedTransport(server.policy), headers=headers, timeout=limits)
            return streamable_http_client(server.url, http_client=client)
        parameters = StdioServerParameters(
            command=server.command, args=list(server.args), env={"LANG": "C.UTF-8", **server.env}, cwd=server.cwd
        )
        return stdio_client(parameters, errlog=errors)

    async def _list_tools(self) -> list[Tool]:
        assert self._client is not None
        tools: list[Tool] = []
        cursor: str | None = None
        while len(tools) < MAX_TOOLS:
            page = await self._client.list_tools(cursor=cursor)
            tools += page.tools
            cursor = page.next_cursor
            if not cursor:
                break
        return tools[:MAX_TOOLS]

    def _await(self, function: Callable[[], Awaitable[T]], cancelled: Callable[[], bool]) -> T:
        """Return the result of an async function, run on the session's loop. Raises `McpDisconnected`.

        If `cancelled` returns True, the request is also cancelled at the server.
        """
        try:
            future = self._portal.start_task_soon(function)
        except RuntimeError as error:
            raise McpDisconnected("the session has ended") from error
        while not wait([future], POLL_S).done:
            if cancelled():
                future.cancel()
                raise McpDisconnected("no answer in time")
        try:
            return future.result()
        except (Exception, CancelledError) as error:
            self._is_broken = True
            raise McpDisconnected(_reason(error)) from error


async def _accept_result(name: str, result: CallToolResult) -> None:
    """Accept any result: the toolset checks it later."""


def _check(server: McpServer) -> None:
    """Check the program or the address of a server, because errors of the transport are less clear.

    Raises `McpUnavailable`.
    """
    if server.command and shutil.which(server.command) is None:
        raise McpUnavailable(f"the program {server.command!r} was not found")
    if server.url:
        try:
            locate(server.url, server.policy)
        except (UrlNotAllowed, HttpFailed) as error:
            raise McpUnavailable(str(error)) from error


def _reason(error: BaseException) -> str:
    """Return a message about an error, or about the first error of a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, NotInTime):
        return "no answer in time"
    return f"{type(error).__name__}: {error}"[:500] if str(error) else type(error).__name__
