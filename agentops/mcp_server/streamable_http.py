"""Answers one streamable HTTP request in JSON, with a separate server per request."""

from __future__ import annotations

from typing import Any

from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from agentops.mcp_server.api_access import Api
from agentops.mcp_server.tool_server import make_server

#: Maximum bytes of a request.
MAX_BODY = 1 << 20


async def answer(api: Api, scope: Any, receive: Any, send: Any, *, allows_writes: bool) -> None:
    """Answer an ASGI request."""
    manager = StreamableHTTPSessionManager(
        make_server(api, allows_writes=allows_writes),
        json_response=True,
        stateless=True,
        max_request_body_size=MAX_BODY,
    )
    async with manager.run():
        await manager.handle_request(scope, receive, send)
