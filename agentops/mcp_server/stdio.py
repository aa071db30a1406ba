"""The MCP server on standard input and output, until the client closes them."""

from __future__ import annotations

import anyio
from mcp.server.stdio import stdio_server

from agentops.mcp_server.api_access import Api
from agentops.mcp_server.tool_server import make_server


def serve(api: Api, *, allows_writes: bool, project: str | None) -> None:
    """Serve one client. All other output of this process goes to standard error."""
    server = make_server(api, allows_writes=allows_writes, project=project)

    async def run() -> None:
        async with stdio_server() as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())

    anyio.run(run)
