"""A small MCP server, built with the official SDK: on standard input and output, or with a port as argument over HTTP.

Run as a program: python shop_server.py [PORT]
"""

from __future__ import annotations

import base64
import os
import sys
import time
from pathlib import Path

from mcp.server.mcpserver import Context, Image, MCPServer
from mcp_types import ToolAnnotations

server = MCPServer("shop")
READS = ToolAnnotations(read_only_hint=True)


@server.tool(annotations=READS)
def stock(item: str) -> str:
    """How many there are."""
    return f"7 of {item}"


@server.tool(annotations=READS)
def picture() -> Image:
    """A picture of the shop."""
    return Image(data=base64.b64decode("iVBORw0KGgo="), format="png")


@server.tool(annotations=ToolAnnotations(idempotent_hint=True))
def label(ctx: Context, item: str) -> str:
    """Says by which key the call can be recognised."""
    meta = ctx.request_context.meta or {}
    return f"{item} {dict(meta).get('agentops/idempotency-key')}"


@server.tool()
def sell(item: str) -> str:
    """Sells one; `nothing` is an error, `crash` ends the server."""
    if item == "nothing":
        raise ValueError("nothing is not for sale")
    if item == "crash":
        os._exit(3)
    return f"sold {item}"


@server.tool(annotations=READS)
def crash(marker: str) -> str:
    """Ends the server the first time, and answers the second time."""
    if not Path(marker).exists():
        Path(marker).touch()
        os._exit(3)
    return "recovered"


@server.tool(annotations=READS)
def nap(seconds: float) -> str:
    """Takes its time."""
    time.sleep(seconds)
    return "rested"


@server.tool(annotations=READS)
def environment() -> list[str]:
    """The names of its variables."""
    return sorted(os.environ)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]))
    else:
        server.run()
