"""Reads a run of the site by MCP, and prints the answers as JSON. RUN_ID names the run."""
# /// script
# dependencies = ["mcp"]
# ///

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

from mcp import Client
from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client

COUNTS = {
    "input_tokens": "input",
    "output_tokens": "output",
    "cache_read_tokens": "cache read",
    "cache_write_tokens": "cache write",
    "cache_write_1h_tokens": "cache write 1h",
}


async def main() -> None:
    headers = {"Authorization": f"Bearer {os.environ['KEY']}"}
    transport = streamable_http_client(
        f"{os.environ['SITE_URL']}/mcp", http_client=create_mcp_http_client(headers=headers)
    )
    named = {"project": os.environ["PROJECT"], "run_id": os.environ["RUN_ID"]}
    async with Client(transport) as client:

        async def ask(tool: str) -> Any:
            result = await client.call_tool(tool, named)
            return result.structured_content or json.loads(result.content[0].text)

        usage, messages = (await ask("get_run"))["usage"], (await ask("list_messages"))["results"]
        calls = (await ask("list_tool_calls"))["results"]
    report = {
        "model_calls": usage["model_calls"],
        "messages": [["tool" if one["role"] == "tool_result" else one["role"], text_of(one)] for one in messages],
        "tool_calls": [call["tool_name"] for call in calls if call["status"] == "completed"],
        "tokens": {name: usage[field] for field, name in COUNTS.items()},
        "cost": usage["cost_usd"],
    }
    print(json.dumps(report))


def text_of(message: Any) -> str:
    return "".join(str(part.get("text", part.get("output", ""))) for part in message["parts"])


asyncio.run(main())
