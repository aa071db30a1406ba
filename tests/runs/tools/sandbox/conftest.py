"""Fixtures of the sandbox tests: a root, the directories around it, and a shell in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runs.tools.base import ToolContext, ToolResult
from runs.tools.sandbox import switches
from runs.tools.sandbox.shell import SHELL
from tests.support.machine import missing
from tests.support.sandbox import Outside, Sh, outside


@pytest.fixture(autouse=True)
def sandbox() -> None:
    if reason := switches.why_unavailable():
        missing(reason)


@pytest.fixture
def around(settings) -> Iterator[Outside]:
    with outside() as built:
        settings.AGENTOPS_TOOL_ROOTS = [str(built.root)]
        settings.AGENTOPS_SHELL_TOOL = True
        yield built


@pytest.fixture
def place(around: Outside) -> Path:
    return around.place


@pytest.fixture
def root(around: Outside) -> Path:
    return around.root


@pytest.fixture
def sh(make_ctx, root: Path) -> Sh:
    def run(command: str, timeout_s: int = 20, **context: Any) -> ToolResult:
        ctx: ToolContext = make_ctx(settings={"root": str(root)}, **context)
        return SHELL.run(ctx, {"command": command, "timeout_s": timeout_s})

    return run
