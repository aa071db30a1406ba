"""A session with one MCP server, on an event loop in a separate thread. Imports the optional package `mcp`."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future, wait
from concurrent.futures import TimeoutError as NotInTime
from contextlib import ExitStack, suppress
from typing import Any, TypeVar

import anyio
import httpx2
from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT, CallToolResult, TextContent, Tool

from agentops.base.http.address_policy import UrlNotAllowed
from agentops.base.http.guarded_client import HttpFailed, locate
from runs.tools.mcp.guarded_transport import GuardedTransport
from runs.tools.mcp.servers import McpServer

#: Seconds within which a server must start and send its first answer.
CONNECT_S = 20.0
POLL_S = 0.1
MAX_TOOLS = 256
T = TypeVar("T")


class McpUnavailable(Exception):
    """The server cannot be reached, or did not answer in time at the start of the session."""


class McpDisconnected(Exception):
    """The session ended, or no answer came, after a request was sent. The server may have acted on it."""


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
        """Return whether the session accepts further calls."""
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
        """End the session. The command of the server is ended, if necessary by SIGKILL."""
        if self._serving is not None:
            with suppress(Exception):
                self._portal.call(self._has_ended.set)
            if self._client is None:
                self._serving.cancel()  # it is waiting for the server's first answer
            with suppress(Exception, CancelledError):
                self._serving.result(CONNECT_S)
            self._serving.cancel()
        self._stack.close()

    async def _serve(self) -> None:
        """Hold the session open. Entered and left in the same task, as its scopes require."""
        try:
            with open(os.devnull, "w") as nowhere:
                async with Client(self._transport(nowhere)) as client:
                    # The library would check results against the server's schemas without a limit, on this event loop.
                    client.session.validate_tool_result = _accept_result  # type: ignore[method-assign]
                    self._client = client
                    self._ready.set_result(None)
                    await self._has_ended.wait()
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error if isinstance(error, Exception) else McpUnavailable("cancelled"))
            raise

    def _transport(self, errors: Any) -> Any:
        server = self._server
        if server.url:
            headers = httpx2.Headers(server.headers)
            limits = httpx2.Timeout(server.timeout_s)
            client = httpx2.AsyncClient(transport=GuardedTransport(server.policy), headers=headers, timeout=limits)
            return streamable_http_client(server.url, http_client=client)
        words = StdioServerParameters(
            command=server.command, args=list(server.args), env={"LANG": "C.UTF-8", **server.env}, cwd=server.cwd
        )
        return stdio_client(words, errlog=errors)

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
        """Run a coroutine of the session to its end. Cancelling it also cancels the request at the server."""
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
    """Accept a result: the toolset checks it."""


def _check(server: McpServer) -> None:
    """Raise a readable error before the transport raises a less clear one."""
    if server.command and shutil.which(server.command) is None:
        raise McpUnavailable(f"the program {server.command!r} was not found")
    if server.url:
        try:
            locate(server.url, server.policy)
        except (UrlNotAllowed, HttpFailed) as error:
            raise McpUnavailable(str(error)) from error


def _reason(error: BaseException) -> str:
    """Return a message about the first error of a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, NotInTime):
        return "no answer in time"
    return f"{type(error).__name__}: {error}"[:500] if str(error) else type(error).__name__
