"""Runs agents and flows on fixtures, in the process of a test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from agentops.testing.flow_results import FlowResult
from agentops.testing.run_results import RunResult

if TYPE_CHECKING:
    from runs.worker.worker import Worker

Definition = str | Path | Mapping[str, Any]
Result = TypeVar("Result", RunResult, FlowResult)


class AgentTester:
    """Runs agents and flows in projects of one test. The fixture `agentops` returns it."""

    def __init__(self, worker: Worker, folder: Path) -> None:
        # Test modules import this class before the settings exist, so Django is only imported at the first use.
        from agentops.testing.fixture_flows import FixtureFlows
        from agentops.testing.fixture_runs import FixtureRuns

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
