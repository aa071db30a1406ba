"""Runs agents on fixtures, in the process of a test."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentops.testing.run_results import RunResult

if TYPE_CHECKING:
    from runs.worker.worker import Worker

Definition = str | Path | Mapping[str, Any]


class AgentTester:
    """Runs agents in a project of one test. The fixture `agentops` gives it."""

    def __init__(self, worker: Worker, folder: Path) -> None:
        # Test modules import this class before there are settings, so Django comes with the first use.
        from agentops.testing.fixture_runs import FixtureRuns

        self._runs = FixtureRuns(worker, folder)

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
        """Run an agent until it ends, is paused or waits for a person, and return what it did.

        `agent` is the file of a definition, or a definition; its provider is replaced by the fixture: a file, or a
        folder that has a file named after the agent. Without a prompt, the run starts with that of the fixture. Tool
        calls get the recorded results; with `real_tools` the agent's own tools are called. `settings` are added to
        those of the agent. Raises `UnusableFixture`, and `InvalidAgent` for a wrong definition.
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

    def approve(self, result: RunResult) -> RunResult:
        """Approve the tool call that a run waits for, and let the run go on."""
        return self._runs.decide(result, approved=True)

    def deny(self, result: RunResult, reason: str = "") -> RunResult:
        """Deny the tool call that a run waits for, and let the run go on."""
        return self._runs.decide(result, approved=False, reason=reason)
