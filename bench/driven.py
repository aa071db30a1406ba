"""Runs as the product makes them: created by `runs.creation`, driven by one worker on the `fixture` provider.

Imports the product, so it is imported after `place.prepared` has set Django up.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from agentops.projects.models import Project
from bench import payload
from runs import creation
from runs.engine.worker import Worker
from runs.models import Agent, AgentRun
from runs.providers import base as providers
from runs.statuses import RunStatus


@dataclass(frozen=True)
class Driven:
    run_id: UUID
    #: When each model call began, and when the run was done.
    marks: list[float]

    @property
    def steps(self) -> int:
        return len(self.marks) - 1

    @property
    def steps_per_s(self) -> float:
        return self.steps / (self.marks[-1] - self.marks[0])


def drive(worker: Worker, fixture: str, *, steps: int, prompt: str = payload.PROMPT) -> Driven:
    """A new run of the fixture, driven to its end on this thread."""
    run = _created(fixture, steps, prompt)
    with _marking() as marks:
        if not worker.drive(run.pk):
            raise RuntimeError("the worker did not take the run")
        marks.append(time.perf_counter())
    run.refresh_from_db()
    if run.state is not RunStatus.COMPLETED or run.step_count != steps:
        raise RuntimeError(f"the run is {run.status} ({run.status_reason}) after {run.step_count} of {steps} steps")
    return Driven(run.pk, marks)


@contextmanager
def working() -> Iterator[Worker]:
    """One worker that drives one run at a time."""
    worker = Worker(concurrency=1)
    try:
        yield worker
    finally:
        worker.close(5)


def window_ratio(marks: list[float], window: int) -> float:
    """How much longer the last steps took than the first ones: 1 where history costs nothing."""
    window = min(window, (len(marks) - 1) // 2)
    return (marks[-1] - marks[-1 - window]) / (marks[window] - marks[0])


def _created(fixture: str, steps: int, prompt: str) -> AgentRun:
    project, _ = Project.objects.get_or_create(slug="bench", defaults={"name": "Bench"})
    agent, _ = Agent.objects.get_or_create(
        project=project,
        slug=f"plays-{fixture}",
        defaults={
            "provider": "fixture",
            "model": fixture,
            "tools": ["recorded"],
            "max_steps": steps + 1,
            "settings": {"tool_output_limit": None},
        },
    )
    return creation.create(project, agent, prompt, by="bench")


@contextmanager
def _marking() -> Iterator[list[float]]:
    """Notes when the provider is asked, on the monotonic clock of this process."""
    provider: Any = providers.get("fixture")
    marks: list[float] = []
    plain = provider.open

    def marked(call: providers.ModelCall) -> Any:
        marks.append(time.perf_counter())
        return plain(call)

    provider.open = marked
    try:
        yield marks
    finally:
        del provider.open
