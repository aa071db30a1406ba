"""`POST /mcp`: the MCP server over streamable HTTP, with an API key. No session is kept: each request stands alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any
from urllib.parse import parse_qs

from agentops.mcp_server.api_access import RelayedApi

Application = Callable[[Any, Any, Any], Awaitable[None]]
PATH = "/mcp"


class McpEndpoint:
    """An ASGI application that answers requests of MCP clients, and passes all others on.

    `?allow_writes=true` offers the tools that control runs; the key's scopes decide whether they work.
    """

    def __init__(self, application: Application, django: Application) -> None:
        """`django`: what answers the requests that the tools make."""
        self._application = application
        self._django = django

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"] != PATH:
            await self._application(scope, receive, send)
        elif scope["method"] != "POST":
            # Streams of the server's own messages are for servers with sessions.
            await _answer(send, 405, [(b"allow", b"POST")], b"")
        else:
            await self._post(scope, receive, send)

    async def _post(self, scope: Any, receive: Any, send: Any) -> None:
        api = RelayedApi(self._django, scope)
        # Refused here, so that a client learns at once that its key is not valid.
        seen = await api.send("GET", "/api/projects?limit=1", b"")
        if seen.status != 200:
            headers = [(b"content-type", b"application/problem+json"), (b"www-authenticate", b"Bearer")]
            await _answer(send, seen.status, headers, seen.body)
            return
        allows_writes = parse_qs(scope["query_string"].decode("latin-1")).get("allow_writes") == ["true"]
        # With the first request, and in a thread: loading the SDK takes a second, for which streams would stand still.
        http = await asyncio.to_thread(import_module, "agentops.mcp_server.streamable_http")
        await http.answer(api, scope, receive, send, allows_writes=allows_writes)


async def _answer(send: Any, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    length = (b"content-length", str(len(body)).encode())
    security = [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length, *security]})
    await send({"type": "http.response.body", "body": body})
