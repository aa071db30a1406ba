"""Fixtures: a project with an agent that plays a recording, and the command line from Python."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from agentops.accounts.access import SYSTEM
from agentops.accounts.memberships import create_project
from agentops.accounts.models import Project
from runs.actions import agent_definitions
from runs.lifecycle import creation, transitions
from runs.models import Agent, AgentRun
from runs.statuses import RunStatus
from tests.support.command_line import DEFINITION, Command
from timeline.events import Payload
from timeline.events.run import RunCompleted, RunFailed, RunPaused, RunStopped
from timeline.models import Source


@pytest.fixture
def project(db: None) -> Project:
    return create_project("alpha", "Alpha", actor=SYSTEM)


@pytest.fixture
def agent(project: Project) -> Agent:
    return agent_definitions.apply(project, DEFINITION, by="system")[0]


@pytest.fixture
def make_run(project: Project, agent: Agent) -> Callable[..., AgentRun]:
    """Create a run in the given status, with the moves of a worker and an operator: `make_run(RunStatus.PAUSED)`."""

    def make(status: RunStatus = RunStatus.QUEUED, prompt: str = "Say hello", **options: Any) -> AgentRun:
        run = creation.create(project, agent, prompt, by="test", **options)
        if status is RunStatus.QUEUED:
            return run
        claimed = transitions.claim(run.pk, "a worker")
        assert claimed is not None
        moves: dict[RunStatus, tuple[Payload, str]] = {
            RunStatus.COMPLETED: (RunCompleted(), ""),
            RunStatus.FAILED: (RunFailed(error_type="boom"), "boom"),
            RunStatus.STOPPED: (RunStopped(reason="operator"), "operator"),
            RunStatus.PAUSED: (RunPaused(reason="operator"), "operator"),
        }
        if status in moves:
            payload, reason = moves[status]
            transitions.move(claimed.run, status, payload, source=Source.WORKER, epoch=claimed.epoch, reason=reason)
        return AgentRun.objects.get(pk=run.pk)

    return make


@pytest.fixture
def command() -> Command:
    """Run a command and return its output: `command("agent", "ls")`."""

    def run(*words: str) -> str:
        out = io.StringIO()
        call_command(*words, stdout=out)
        return out.getvalue()

    return run


@pytest.fixture
def refused(command: Command) -> Callable[..., tuple[int, str]]:
    """Run a command that fails and return its exit code and message."""

    def run(*words: str) -> tuple[int, str]:
        with pytest.raises(CommandError) as refusal:
            command(*words)
        return refusal.value.returncode, str(refusal.value)

    return run
