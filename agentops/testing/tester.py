"""Runs agents and flows on fixtures, in the process of a test, and sets up the site on which they run."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import django
import pytest
from django.conf import settings

from agentops.testing.run_results import FlowResult, RunResult

if TYPE_CHECKING:
    from runs.worker.worker import Worker


Definition = str | Path | Mapping[str, Any]
Result = TypeVar("Result", RunResult, FlowResult)


class AgentTester:
    """Runs agents and flows in projects of one test. The fixture `agentops` returns it."""

    def __init__(self, worker: Worker, folder: Path) -> None:
        # Imported here, because test modules import this class before Django has its settings.
        from agentops.testing.fixture_runs import FixtureFlows, FixtureRuns

        self._runs = FixtureRuns(worker, folder)
        self._flows = FixtureFlows(worker, folder)

    def run(
        self,
        agent: Definition,
        fixture: str | Path,
        prompt: str | None = None,
        *,
        real_tools: bool = False,
        max_steps: int | None = None,
        settings: Mapping[str, Any] | None = None,
        timeout_s: float = 60,
    ) -> RunResult:
        """Run an agent until it ends, is paused or waits for a person, and return the result.

        `agent` is the file of a definition, or a definition; its provider is replaced by the fixture: a file, or a
        folder that has a file named after the agent. Without a prompt, the run starts with the prompt of the fixture.
        Tool calls get the recorded results; with `real_tools` the agent's own tools are called. `settings` are added to
        the agent's settings. Raises `UnusableFixture`, and `InvalidAgent` for an invalid definition.
        """
        return self._runs.run(
            agent,
            Path(fixture),
            prompt,
            real_tools=real_tools,
            max_steps=max_steps,
            settings=dict(settings or {}),
            timeout_s=timeout_s,
        )

    def run_twice(self, agent: Definition, fixture: str | Path, prompt: str | None = None, **options: Any) -> RunResult:
        """Run an agent twice, check that both runs did the same, and return the first. Arguments as for `run`."""
        __tracebackhide__ = True
        first, second = (self.run(agent, fixture, prompt, **options) for _ in range(2))
        first.assert_same(second)
        return first

    def run_flow(
        self,
        flow: Definition,
        agents: Sequence[Definition],
        fixtures: str | Path,
        inputs: Mapping[str, Any] | None = None,
        *,
        answers: Mapping[str, str | Sequence[str]] | None = None,
        tool_outputs: Mapping[str, Any] | None = None,
        real_tools: bool = False,
        settings: Mapping[str, Any] | None = None,
        timeout_s: float = 60,
    ) -> FlowResult:
        """Run a flow until it ends, is paused or waits for a person, and return the result.

        `flow` and each of `agents`, the agents of its nodes, are files of definitions, or definitions; the fixtures
        replace the models of the agents: a folder that has a file for each agent node. `answers` are for human nodes: a
        text answers every question of a node, a list one question per item. `tool_outputs` replace tool nodes, whose
        tools are then not called. The other arguments are the same as for `run`. Raises `UnusableFixture`,
        `InvalidAgent`, `InvalidFlow`, `InvalidFlowInputs`, and ValueError for an answer or output of a node that has
        none.
        """
        return self._flows.run(
            flow,
            agents,
            Path(fixtures),
            dict(inputs or {}),
            answers=answers or {},
            tool_outputs=tool_outputs or {},
            real_tools=real_tools,
            settings=settings or {},
            timeout_s=timeout_s,
        )

    def run_flow_twice(self, *arguments: Any, **options: Any) -> FlowResult:
        """Run a flow twice, check that both runs did the same, and return the first. Arguments as for `run_flow`."""
        __tracebackhide__ = True
        first, second = (self.run_flow(*arguments, **options) for _ in range(2))
        first.assert_same(second)
        return first

    def answer(self, result: FlowResult, node: str, text: str) -> FlowResult:
        """Answer the open question of a human node, and continue the flow run."""
        return self._flows.answer(result, node, text)

    def approve(self, result: Result) -> Result:
        """Approve the tool call that a run, or a flow run, waits for, and continue it."""
        return self._decide(result, approved=True)

    def deny(self, result: Result, reason: str = "") -> Result:
        """Deny the tool call that a run, or a flow run, waits for, and continue it."""
        return self._decide(result, approved=False, reason=reason)

    def _decide(self, result: Result, *, approved: bool, reason: str = "") -> Result:
        if isinstance(result, FlowResult):
            return self._flows.decide(result, approved=approved, reason=reason)
        return self._runs.decide(result, approved=approved, reason=reason)


SETTINGS = "agentops.settings"
#: Environment variables of a real site that tests must not use.
REAL_SITE_VARIABLES = ("DATABASE_URL", "REDIS_URL", "EMAIL_URL", "AGENTOPS_HTTPS")


class TestingSite:
    """The settings, the database and the worker of a process that runs tests. `home` is an empty directory."""

    #: Otherwise pytest would take the class for tests, because of its name.
    __test__ = False

    def __init__(self, home: Path) -> None:
        self.fixtures = home / "fixtures"
        self.fixtures.mkdir()
        #: Whether other code, such as pytest-django, has loaded the settings, and provides the database.
        self.is_foreign = settings.configured
        if not self.is_foreign:
            _load_settings(home)
            _create_database()
        elif getattr(settings, "SETTINGS_MODULE", SETTINGS) != SETTINGS:
            problem = "agentops needs its own Django settings: run its tests separately from those with"
            raise pytest.UsageError(f"{problem} {settings.SETTINGS_MODULE}")
        settings.AGENTOPS_FIXTURES = [*settings.AGENTOPS_FIXTURES, str(self.fixtures)]

    @cached_property
    def worker(self) -> Worker:
        """The worker that executes the runs of all tests, one at a time."""
        from runs.worker.worker import Worker

        return Worker()

    def close(self) -> None:
        """End the worker and close the database."""
        from django.db import connections

        if "worker" in self.__dict__:
            self.worker.close(5)
        if not self.is_foreign:
            connections.close_all()


def _load_settings(home: Path) -> None:
    """Load the settings of a site in `home`."""
    for name in REAL_SITE_VARIABLES:
        os.environ.pop(name, None)
    os.environ |= {
        "AGENTOPS_HOME": str(home),
        "DJANGO_SETTINGS_MODULE": SETTINGS,
        "SECRET_KEY": secrets.token_urlsafe(64),
    }
    django.setup()


def _create_database() -> None:
    from django.core.management import call_command
    from django.db import connection

    with connection.cursor() as cursor:
        # Nothing needs to survive a power failure.
        cursor.execute("PRAGMA synchronous=OFF")
    call_command("migrate", verbosity=0)
