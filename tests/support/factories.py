"""Builders of real rows, one short call each."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from agentops.accounts.models import Project
from runs import chaos
from runs.engine.shutdown import ShutdownDue
from runs.fixtures.library import load
from runs.lifecycle import creation
from runs.lifecycle.suspicion import CHILD_SEPARATOR
from runs.models import Agent, AgentRun, AgentVersion, FileImport, ImportState
from runs.statuses import LIVE, RunStatus
from runs.worker.worker import Worker
from timeline.models import Log

_numbers = itertools.count(1)


def make_project(slug: str | None = None) -> Project:
    slug = slug or f"project-{next(_numbers)}"
    return Project.objects.create(slug=slug, name=slug.title())


def make_log(project: Project | None = None) -> Log:
    return Log.objects.create(project=project or make_project())


def make_agent(project: Project | None = None, *, fixture: str = "claude-code-5c", **fields: Any) -> Agent:
    """Create an agent that plays a shipped recording without delays, and never truncates an output."""
    settings = {"tool_output_limit": None, "on_unknown_tool": "tell_model"} | fields.pop("settings", {})
    defaults = {"provider": "fixture", "model": fixture, "tools": ["recorded"], "max_steps": 500}
    agent = Agent.objects.create(
        project=project or make_project(),
        slug=fields.pop("slug", f"agent-{next(_numbers)}"),
        settings=settings,
        **(defaults | fields),
    )
    AgentVersion.of(agent, by="test").save()
    return agent


def make_run(agent: Agent | None = None, prompt: Any = None, **options: Any) -> AgentRun:
    """Create a queued run. The default prompt is the recording's."""
    agent = agent or make_agent()
    if prompt is None:
        prompt = load(agent.model).answers[0].input.prompt
    return creation.create(agent.project, agent, prompt, by="test", **options)


def make_import(run: AgentRun, text: str = "chat.json", **fields: Any) -> FileImport:
    """Create a finished import of a file with one run."""
    defaults = {"file_name": text[:255], "error": text, "created_by": "user:ada", "run_ids": [str(run.pk)]}
    finished = {"state": ImportState.DONE, "size": 7, "sha256": b"", "events": 3, "new_events": 3, "new_runs": 1}
    return FileImport.objects.create(project=run.project, **(defaults | finished | fields))


def drive(run: AgentRun, worker: Worker | None = None) -> AgentRun:
    """Drive `run` in this process until it ends or waits for a person. Return its fresh row.

    The default worker holds only this run, like a process that may also retry a run whose workers have died.
    """
    own = worker or Worker(owner=f"drive:1:x{CHILD_SEPARATOR}1")
    epoch = -1
    try:
        while RunStatus((fresh := AgentRun.objects.get(pk=run.pk)).status) in LIVE - {RunStatus.WAITING}:
            assert fresh.lease_epoch > epoch, f"run {run.pk} was not claimed: the log says why"
            epoch = fresh.lease_epoch
            assert own.drive(run.pk), f"run {run.pk} is {fresh.status} and cannot be driven"
    finally:
        if worker is None:
            own.close(5)
    return fresh


def make_waiting(project: Project | None = None, **settings: Any) -> AgentRun:
    """Create a run that waits for the outcome of its first call, because its worker left after starting the call."""
    settings = {"recorded_effect": "at_most_once", "on_unknown_tool": "wait"} | settings
    run = make_run(make_agent(project, settings=settings))

    def leave(point: str) -> None:
        if point == "tool.marked_running":
            raise ShutdownDue

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chaos, "point", leave)
        worker = Worker()
        worker.drive(run.pk)
        worker.close(5)
    return drive(run)


def make_awaiting_approval(project: Project | None = None, **rule: Any) -> AgentRun:
    """Create a run that plays a recording and waits for the approval of its first call."""
    rules = [{"tools": ".*", "action": "ask", "reason": "It reads files."} | rule]
    return drive(make_run(make_agent(project, policies={"approvals": rules})))
