"""Runs executed as in production: created by `runs.lifecycle.creation`, executed by a worker on the `fixture` provider.

Import it after `workspace.prepare_workspace` has set up Django, because it imports the product.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from agentops.accounts.models import Project
from bench import payload
from runs.lifecycle import creation
from runs.models import Agent, AgentRun
from runs.providers import base as providers
from runs.statuses import RunStatus
from runs.worker.worker import Worker


def nobody() -> None:
    """Do nothing between windows."""


@dataclass
class DriveClock:
    """Records the start of each model call and the end of the run, without the time used by others in between."""

    marks: list[float] = field(default_factory=list)
    away: float = 0.0

    def mark(self) -> None:
        self.marks.append(time.perf_counter() - self.away)

    def pause(self, others: Callable[[], None]) -> None:
        began = time.perf_counter()
        others()
        self.away += time.perf_counter() - began


@dataclass(frozen=True)
class Driven:
    run_id: UUID
    marks: list[float]
    #: From the creation to the end.
    seconds: float

    @property
    def steps(self) -> int:
        return len(self.marks) - 1

    def windows(self, size: int) -> list[float]:
        """Return the seconds of each window of `size` steps."""
        return [self.marks[at + size] - self.marks[at] for at in range(0, self.steps - size + 1, size)]


def drive(worker: Worker, fixture: str, *, steps: int, window: int = 0, others: Callable[[], None] = nobody) -> Driven:
    """Execute a new run of the fixture on this thread. `others` is called after each `window` steps."""
    began = time.perf_counter()
    run = created(fixture, steps)
    with _marking(window, others) as clock:
        if not worker.drive(run.pk):
            raise RuntimeError("the worker did not take the run")
        seconds = time.perf_counter() - began - clock.away
        clock.mark()
        if window and steps % window == 0:
            others()
    run.refresh_from_db()
    if run.state is not RunStatus.COMPLETED or run.step_count != steps:
        raise RuntimeError(f"the run is {run.status} ({run.status_reason}) after {run.step_count} of {steps} steps")
    return Driven(run.pk, clock.marks, seconds)


@contextmanager
def working() -> Iterator[Worker]:
    """Yield a worker that executes one run at a time."""
    worker = Worker()
    try:
        yield worker
    finally:
        worker.close(5)


def created(fixture: str, steps: int, *, pace_s: float = 0) -> AgentRun:
    """Queue a run of the fixture. With `pace_s`, each model call takes as many seconds."""
    project, _ = Project.objects.get_or_create(slug="bench", defaults={"name": "Bench"})
    agent, _ = Agent.objects.get_or_create(
        project=project,
        slug=f"plays-{fixture}",
        defaults={
            "provider": "fixture",
            "model": fixture,
            "tools": ["recorded"],
            "max_steps": steps + 1,
            "settings": {"tool_output_limit": None} | ({"pace": pace_s} if pace_s else {}),
        },
    )
    return creation.create(project, agent, payload.PROMPT, by="bench")


@contextmanager
def _marking(window: int, others: Callable[[], None]) -> Iterator[DriveClock]:
    """Record the calls of the provider, which happen on the thread of the worker."""
    provider: Any = providers.get("fixture")
    clock = DriveClock()
    plain = provider.open

    def marked(call: providers.ModelCall) -> Any:
        done = len(clock.marks)
        clock.mark()
        if window and done and done % window == 0:
            clock.pause(others)
        return plain(call)

    provider.open = marked
    try:
        yield clock
    finally:
        del provider.open
