"""Agents of claude-agent-sdk whose program has an empty home and talks to a scripted model."""

from __future__ import annotations

import os
import shlex
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from claude_agent_sdk import ClaudeAgentOptions, ToolAnnotations, create_sdk_mcp_server, tool

from tests.support.claude_model import ClaudeModel, Content, call, serving
from tests.support.programs import claude_program

BASH = call("toolu_2", "Bash", command="echo from the shell", description="Greet")


class Shop:
    """An in-process server with two tools that note their calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

        @tool("price", "Return the price of an item", {"item": str}, ToolAnnotations(readOnlyHint=True))
        async def price(arguments: dict[str, Any]) -> dict[str, Any]:
            self.calls.append(("price", arguments))
            return {"content": [{"type": "text", "text": f"{arguments['item']}: 500"}]}

        @tool("charge", "Charge an amount", {"cents": int})
        async def charge(arguments: dict[str, Any]) -> dict[str, Any]:
            self.calls.append(("charge", arguments))
            return {"content": [{"type": "text", "text": f"charged {arguments['cents']}"}]}

        self.server = create_sdk_mcp_server("shop", tools=[price, charge])


@dataclass
class ClaudeRig:
    """Makes options of agents whose program talks to a scripted model."""

    home: Path
    stack: ExitStack
    models: list[ClaudeModel] = field(default_factory=list)

    def model(self, *script: Content, **fields: Any) -> ClaudeModel:
        """Serve a model, and return it."""
        model = self.stack.enter_context(serving(ClaudeModel(script, **fields)))
        self.models.append(model)
        return model

    def options(self, model: ClaudeModel, **fields: Any) -> ClaudeAgentOptions:
        """Return options for a program that uses a model."""
        work = self.home / "work"
        work.mkdir(exist_ok=True)
        env = {
            "HOME": str(self.home),
            "CLAUDE_CONFIG_DIR": str(self.home / "config"),
            "ANTHROPIC_BASE_URL": model.url,
            "ANTHROPIC_API_KEY": "sk-scripted",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
        return ClaudeAgentOptions(
            **{
                "cli_path": program(self.home),
                "cwd": work,
                "env": env,
                "model": "claude-sonnet-4-5",
                "setting_sources": [],
                **fields,
            }
        )


def program(folder: Path) -> str:
    """Return the program: the one of Claude Code in `CLAUDE_PROGRAM`, or else a small one with the same protocol."""
    if (given := os.environ.get("CLAUDE_PROGRAM")) is not None:
        return given
    path = folder / "claude"
    if not path.exists():
        command = shlex.join([sys.executable, str(Path(claude_program.__file__))])
        path.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        path.chmod(0o755)
    return str(path)
