"""An agent of claude-agent-sdk: in-process tools with approvals and parallel calls, and a question of the model.

The program of the SDK is replaced by tests/support/programs/claude_program.py. The model is a server in this process.
"""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, ToolAnnotations, create_sdk_mcp_server, tool

from agentops.durable.claude import durable_function
from tests.chaos.programs import interface
from tests.chaos.programs.interface import ASK, CHOICES, TOOLS, TOOLS_OF, TRIP, Asked
from tests.support.claude_model import ClaudeModel, call, serving

WAITS = interface.WAITS_OF["claude"]
PROGRAM = Path(__file__).parents[2] / "support/programs/claude_program.py"
OPTIONS = [{"label": choice, "description": choice} for choice in CHOICES]


class TripModel(ClaudeModel):
    """Answers by the script."""

    def answer(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        messages = body["messages"]
        blocks = [block for message in messages for block in message["content"] if isinstance(block, dict)]
        prompt = next(block["text"] for block in blocks if block["type"] == "text" and "trip-" in block["text"])
        results = {
            interface.name_of(block["tool_use_id"]): text_of(block["content"])
            for block in blocks
            if block["type"] == "tool_result"
        }
        number = 1 + sum(message["role"] == "assistant" for message in messages)
        turn = asyncio.run(interface.answer(interface.trip_of(prompt), number, results, WAITS))
        self.script = [[{"type": "text", "text": turn.text}, *calls_of(turn.calls, number)]]
        return super().answer(body)


def text_of(content: Any) -> str:
    """Return the text of a result; of a question, the answer."""
    text = content if isinstance(content, str) else "".join(block.get("text", "") for block in content)
    return text.strip().rpartition("\n")[2]


def calls_of(calls: Iterable[Asked], number: int) -> list[dict[str, Any]]:
    return [
        call(asked.call_id(number), "AskUserQuestion", questions=[question(asked)])
        if asked.name == ASK
        else call(asked.call_id(number), f"mcp__trip__{asked.name}", **asked.arguments)
        for asked in calls
    ]


def question(asked: Asked) -> dict[str, Any]:
    return {"question": asked.arguments["question"], "header": "Seat", "options": OPTIONS, "multiSelect": False}


def tools_of(agent: str) -> list[Any]:
    return [made(name) for name in TOOLS_OF[agent]]


def made(name: str) -> Any:
    known = TOOLS[name]
    parameters = {each: str for each in known.function.__annotations__ if each != "return"}
    hints = ToolAnnotations(readOnlyHint=known.effect == "read", idempotentHint=known.effect == "idempotent")

    async def execute(arguments: dict[str, str]) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": await known.function(**arguments)}]}

    return tool(name, name, parameters, hints)(execute)


@cache
def model() -> TripModel:
    """Return the model, which is served until the process ends."""
    context = serving(TripModel([]))
    made = context.__enter__()
    model.context = context  # type: ignore[attr-defined]
    return made  # type: ignore[return-value]


def options(_: Any) -> ClaudeAgentOptions:
    """Return the options for a run in this process."""
    home = Path(os.environ["HOME"])
    program = home / "claude"
    if not program.exists():
        draft = home / f"claude.{os.getpid()}"
        draft.write_text(f'#!/bin/sh\nexec {sys.executable} -S {PROGRAM} "$@"\n')
        draft.chmod(draft.stat().st_mode | stat.S_IXUSR)
        draft.rename(program)
    return ClaudeAgentOptions(
        cli_path=program,
        cwd=home,
        env={
            "HOME": str(home),
            "CLAUDE_CONFIG_DIR": str(home / f"config-{os.getpid()}"),
            "ANTHROPIC_BASE_URL": model().url,
            "ANTHROPIC_API_KEY": "sk-scripted",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        },
        model="claude-sonnet-4-5",
        setting_sources=[],
        mcp_servers={"trip": create_sdk_mcp_server("trip", tools=tools_of(TRIP))},
        allowed_tools=[f"mcp__trip__{name}" for name in TOOLS_OF[TRIP] if not TOOLS[name].needs_approval],
    )


def served() -> list[Any]:
    return [durable_function(options, name=TRIP)]
