"""Runs whose program is the stub of Claude Code."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from runs.models import AgentRun
from tests.support.claude.scripted_program import scripted_program
from tests.support.factories import make_agent, make_run


@dataclass(frozen=True)
class Program:
    """The stub, and what it has written beside its script."""

    folder: Path

    @property
    def journal(self) -> list[dict[str, Any]]:
        path = self.folder / "journal"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def starts(self) -> list[list[str]]:
        """The arguments of each start."""
        return [entry["arguments"] for entry in self.journal if "arguments" in entry]

    @property
    def heard(self) -> list[Any]:
        """The user messages, in order."""
        return [entry["user"] for entry in self.journal if "user" in entry]

    @property
    def ledger(self) -> list[str]:
        """The tools that had an effect, in order."""
        path = self.folder / "ledger"
        return path.read_text().split() if path.exists() else []

    def script(self, acts: list[dict[str, Any]]) -> None:
        """Make the stub follow a plan."""
        scripted_program(self.folder, {"plan": acts})


@pytest.fixture
def program(tmp_path: Path, settings: Any) -> Program:
    folder = tmp_path / "program"
    folder.mkdir()
    settings.AGENTOPS_CLAUDE_CLI = str(folder / "claude")
    settings.AGENTOPS_TOOL_ROOTS = [str(tmp_path / "work")]
    settings.AGENTOPS_HOME = tmp_path / "home"
    return Program(folder)


@pytest.fixture
def session_run(program: Program, tmp_path: Path) -> Callable[..., AgentRun]:
    """A queued run whose program follows a plan."""

    def make(*acts: dict[str, Any], prompt: Any = "Begin.", max_steps: int = 50, **more: Any) -> AgentRun:
        program.script(list(acts))
        root = tmp_path / "work"
        root.mkdir(exist_ok=True)
        agent_settings = {"root": str(root), "allowed_tools": ["Bash", "Read"]} | more.pop("settings", {})
        agent = make_agent(
            provider="claude_cli", model="default", tools=[], settings=agent_settings, max_steps=max_steps, **more
        )
        return make_run(agent, prompt)

    return make
