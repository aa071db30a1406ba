"""Fixtures for commands as processes: an agent that plays a recording, slow runs, an environment without Redis."""

from __future__ import annotations

import subprocess

import pytest

from agentops.accounts.access import SYSTEM
from agentops.accounts.memberships import create_project
from runs.actions import agent_definitions
from runs.lifecycle import creation
from runs.models import Agent, AgentRun
from tests.support.command_line import DEFINITION, MANAGE, Process


@pytest.fixture
def agent(transactional_db: None) -> Agent:
    """Create an agent that plays a recording."""
    project = create_project("alpha", "Alpha", actor=SYSTEM)
    return agent_definitions.apply(project, DEFINITION, by="system")[0]


@pytest.fixture
def no_broker(process_env: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in process_env.items() if name != "REDIS_URL"} | {"AGENTOPS_SWEEP_S": "0.3"}


@pytest.fixture
def slow(agent: Agent) -> list[AgentRun]:
    """Create four runs whose first answer takes minutes."""
    definition = {**DEFINITION, "agent_id": "slow", "settings": {"pace": 0.01}}
    player, _ = agent_definitions.apply(agent.project, definition, by="system")
    return [creation.create(agent.project, player, "Hi", by="test") for _ in range(4)]


@pytest.fixture
def process() -> Process:
    """Return a function that runs a command and returns its exit code, standard output and standard error."""

    def run(words: list[str], env: dict[str, str]) -> tuple[int, str, str]:
        done = subprocess.run([*MANAGE, *words], env=env, capture_output=True, text=True, timeout=120, check=False)
        return done.returncode, done.stdout, done.stderr

    return run
