"""Fixtures for runs of a stub of the Claude Code program."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from runs.models import AgentRun
from tests.support.factories import make_agent, make_run
from tests.support.programs.stub_cli import StubProgram


@pytest.fixture
def program(tmp_path: Path, settings: Any) -> StubProgram:
    folder = tmp_path / "program"
    folder.mkdir()
    settings.AGENTOPS_CLAUDE_CLI = str(folder / "claude")
    settings.AGENTOPS_TOOL_ROOTS = [str(tmp_path / "work")]
    settings.AGENTOPS_HOME = tmp_path / "home"
    return StubProgram(folder)


@pytest.fixture
def session_run(program: StubProgram, tmp_path: Path) -> Callable[..., AgentRun]:
    """Create a queued run whose program follows a plan."""

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
