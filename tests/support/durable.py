"""Processes that execute durable functions against a site: a thread of this process with an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Self

from django.utils import timezone

from agentops.durable import DurableFunction, serve
from runs.lifecycle import creation, transitions
from runs.models import Agent, AgentRun, AgentRunToolCall, RemoteStep
from runs.statuses import RunStatus
from tests.support.clients import Site
from tests.support.timing import eventually


class ServingThread:
    """Calls `serve` in a thread, as a process elsewhere does. The end of the `with` block ends it gracefully."""

    def __init__(self, site: Site, *functions: Any, **options: Any) -> None:
        self._options = {"url": site.url, "key": site.key("work"), "poll_s": 0.2, "grace_s": 10.0, **options}
        self._functions = functions
        self._stop: asyncio.Event | None = None
        self._is_started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="serving", daemon=True)
        #: What `serve` raised.
        self.error: BaseException | None = None

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self.error = error
        finally:
            self._is_started.set()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._is_started.set()
        await serve(*self._functions, stop=self._stop, **self._options)

    def __enter__(self) -> Self:
        self._thread.start()
        self._is_started.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self.end()
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        """Ask `serve` to end. Does not wait."""
        if self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)

    def call(self, function: Callable[[], object]) -> None:
        """Call a function in the event loop of `serve`."""
        self._loop.call_soon_threadsafe(function)

    def end(self) -> None:
        """Ask `serve` to end, and wait for it."""
        self.stop()
        self._thread.join(40)
        assert not self._thread.is_alive(), "serve() does not end"


@dataclass
class DurableSite:
    """A site with durable functions in threads of this process."""

    site: Site
    functions: list[DurableFunction] = field(default_factory=list)

    def serving(self, *functions: Any, **options: Any) -> ServingThread:
        """Return a thread that executes functions; `with` starts and ends it."""
        return ServingThread(self.site, *functions, **options)

    def start(self, agent: str, prompt: str = "Go.", **options: Any) -> AgentRun:
        """Create a run of an agent as soon as it is registered."""
        agents = Agent.objects.filter(project=self.site.project, slug=agent)
        row = eventually(agents.first, why=f"the agent {agent} is registered")
        assert row is not None
        return creation.create(self.site.project, row, prompt, by="test", **options)

    def reaches(self, run: AgentRun, *statuses: RunStatus, reason: str | None = None) -> AgentRun:
        """Wait until a run has one of the statuses, and return it."""

        def is_there() -> bool:
            run.refresh_from_db()
            return run.status in statuses and reason in (None, run.status_reason)

        eventually(
            is_there, within_s=60, why=lambda: f"the run is {run.status} ({run.status_reason}): {run.error_message}"
        )
        return run

    def at_step(self, run: AgentRun, name: str) -> None:
        """Wait until a run has started a step."""
        steps = RemoteStep.objects.filter(run=run, name=name)
        eventually(steps.exists, within_s=60, why=lambda: f"no step {name!r}: {steps_of(run)}")

    def pass_deadline(self, run: AgentRun) -> None:
        """Let the time pass that a waiting run and its last call wait for."""
        over = timezone.now() - timedelta(seconds=1)
        call = AgentRunToolCall.objects.filter(run=run).latest("step_number")
        call.input["until"] = over.isoformat()
        call.save(update_fields=["input"])
        AgentRun.objects.filter(pk=run.pk).update(not_before=over)
        transitions.end_waits()

    def has_version(self, agent: str, version: int) -> None:
        """Wait until an agent is registered with a version of its code."""
        agents = Agent.objects.filter(project=self.site.project, slug=agent, settings__code_version=version)
        eventually(agents.exists, why=f"version {version} is registered")

    def set_rules(self, agent: str, *rules: dict[str, str]) -> None:
        """Set the approval rules of an agent as soon as it is registered."""
        agents = Agent.objects.filter(project=self.site.project, slug=agent)
        eventually(agents.exists, why=f"the agent {agent} is registered")
        agents.update(policies={"approvals": list(rules)})

    def is_decided(self, call_id: object) -> None:
        """Wait until the run of an approval has continued after it."""
        calls = AgentRunToolCall.objects.filter(pk=call_id).exclude(status__in=("planned", "running"))
        eventually(calls.exists, why="the decided call has ended")

    def completes(self, run: AgentRun) -> AgentRun:
        """Wait until a run is completed."""
        return self.reaches(run, RunStatus.COMPLETED)


def steps_of(run: AgentRun) -> list[tuple[str, str, str]]:
    """Return the key, the name and the state of each step of a run, in the order of their starts."""
    steps = RemoteStep.objects.filter(run=run).order_by("position")
    return [(step.key, step.name, step.state) for step in steps]
