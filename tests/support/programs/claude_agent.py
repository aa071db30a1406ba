"""A program with an agent of claude-agent-sdk, for tests that kill it: claude_agent.py DIRECTORY.

Each execution of a tool adds its name to `ledger` in the directory. The tool `charge` waits until the file `go` exists.
AGENTOPS_URL and AGENTOPS_API_KEY name the site, CLAUDE_PROGRAM the program of the SDK. The other variables are for it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, ToolAnnotations, create_sdk_mcp_server, tool

from agentops.durable import serve_forever
from agentops.durable.claude import durable_function

DIRECTORY = Path(sys.argv[1])


def note(name: str) -> None:
    with (DIRECTORY / "ledger").open("a") as ledger:
        ledger.write(f"{name}\n")


@tool("price", "Return the price of an item", {"item": str}, ToolAnnotations(readOnlyHint=True))
async def price(arguments: dict[str, Any]) -> dict[str, Any]:
    note("price")
    return {"content": [{"type": "text", "text": "500"}]}


@tool("charge", "Charge an amount", {"cents": int})
async def charge(arguments: dict[str, Any]) -> dict[str, Any]:
    note("charge")
    while not (DIRECTORY / "go").exists():
        await asyncio.sleep(0.02)
    return {"content": [{"type": "text", "text": f"charged {arguments['cents']}"}]}


agent = durable_function(
    ClaudeAgentOptions(
        cli_path=os.environ["CLAUDE_PROGRAM"],
        cwd=DIRECTORY,
        model="claude-sonnet-4-5",
        setting_sources=[],
        mcp_servers={"shop": create_sdk_mcp_server("shop", tools=[price, charge])},
        allowed_tools=["mcp__shop"],
    ),
    name="shop",
)

if __name__ == "__main__":
    logging.basicConfig(level="INFO", stream=sys.stderr)
    serve_forever(agent, poll_s=0.2)
