"""Agents of tests: definitions whose model is replaced by a fixture."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentops.accounts.access import SYSTEM
from agentops.accounts.memberships import create_project
from agentops.accounts.models import Project
from agentops.testing.run_results import UnusableFixture
from runs.actions import agent_definitions
from runs.agents import definition_text
from runs.fixtures import fixture_files
from runs.fixtures.text_files import FixtureError
from runs.fixtures.verification import files_in
from runs.models import Agent
from runs.tools.catalogue import TOOLS
from runs.tools.registry import RECORDED

BY = "pytest"
_numbers = itertools.count(1)


def new_project() -> Project:
    """Create a project for a single test."""
    return create_project(f"pytest-{next(_numbers)}", "Tests", actor=SYSTEM)


def definition_of(source: str | Path | Mapping[str, Any]) -> dict[str, Any]:
    """Return the definition of an agent or a flow from a file (TOML or JSON) or a mapping."""
    if isinstance(source, Mapping):
        return dict(source)
    path = Path(source)
    return definition_text.parse(path.read_text(encoding="utf-8"), suffix=path.suffix)


def played_tools(definition: Mapping[str, Any], *, real_tools: bool) -> Sequence[str]:
    """Return the tools of an agent in a test: its own, or the recorded ones and the tools that end a run."""
    own: Sequence[str] = definition.get("tools") or []
    return own if real_tools else [*filter(_ends_runs, own), RECORDED]


def _ends_runs(name: str) -> bool:
    """Return whether a tool ends its run, such as `done`, whose argument is the result: a recorded tool would not."""
    tool = TOOLS.get(name)
    return tool is not None and tool.ends


def apply_agent(
    project: Project, definition: dict[str, Any], *, model: str, tools: Sequence[str], settings: Mapping[str, Any]
) -> Agent:
    """Create or update the agent of a definition, with the fixture `model` as its model. Raises `InvalidAgent`."""
    own_settings = definition.get("settings") or {}
    played = {
        "provider": "fixture",
        "model": model,
        "settings": {**own_settings, **settings} if isinstance(own_settings, dict) else own_settings,
        "tools": tools,
    }
    return agent_definitions.apply(project, {**definition, **played}, by=BY)[0]


def place(fixture: Path, folder: Path) -> str:
    """Copy a fixture file or folder to the directory that runs read, and return its name there, unique for each test.

    Raises `UnusableFixture`.
    """
    try:
        for file in files_in(fixture):
            fixture_files.load(file)
    except FixtureError as error:
        where = f"{file}: " if error.path.startswith("$") else ""
        raise UnusableFixture(f"{where}{error}") from None
    name = f"fixture-{next(_numbers)}"
    if fixture.is_dir():
        shutil.copytree(fixture, folder / name)
    else:
        shutil.copy(fixture, folder / f"{name}.json")
    return name
