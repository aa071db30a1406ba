"""Runs of one test: the database rows behind `AgentTester`, and their results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from agentops.testing.played_agents import BY, apply_agent, definition_of, new_project, place, played_tools
from agentops.testing.run_results import Message, RunResult, ToolCall
from runs.actions import approvals, run_actions
from runs.conversation import transcript
from runs.conversation.message_text import text_of
from runs.lifecycle.approval_decisions import Decision
from runs.models import AgentRun, AgentRunToolCall, Approval
from runs.worker.in_process import drive_to_rest
from runs.worker.worker import Worker
from timeline.models import Event


class FixtureRuns:
    """The runs of one test, in a separate project. `folder` is an AGENTOPS_FIXTURES directory."""

    def __init__(self, worker: Worker, folder: Path) -> None:
        self._worker = worker
        self._folder = folder
        self._project = new_project()

    def run(
        self,
        agent: str | Path | Mapping[str, Any],
        fixture: Path,
        prompt: str | None,
        *,
        real_tools: bool,
        max_steps: int | None,
        settings: dict[str, Any],
        timeout_s: float,
    ) -> RunResult:
        """Run an agent on a fixture; see `AgentTester.run`."""
        definition = definition_of(agent)
        tools = played_tools(definition, real_tools=real_tools)
        model = place(fixture, self._folder)
        row = apply_agent(self._project, definition, model=model, tools=tools, settings=settings)
        run = run_actions.create(BY, self._project, row, prompt, max_steps=max_steps)
        return self._drive(run.pk, timeout_s)

    def decide(self, result: RunResult, *, approved: bool, reason: str = "") -> RunResult:
        """Decide the approval that a run waits for, and continue the run."""
        run = AgentRun.objects.select_related("project").get(pk=UUID(result.id))
        approval = Approval.objects.filter(run=run, state=Approval.State.PENDING).first()
        if approval is None:
            raise AssertionError(f"the run waits for no approval: it is {run.status}")
        approvals.decide(BY, run, approval.call_id, Decision(approved, message=reason))
        return self._drive(run.pk, timeout_s=60)

    def _drive(self, run_id: UUID, timeout_s: float) -> RunResult:
        return result_of(drive_to_rest(run_id, self._worker, timeout_s=timeout_s))


def result_of(run: AgentRun) -> RunResult:
    """Return the result of a run."""
    return RunResult(
        id=str(run.pk),
        status=run.status,
        reason=run.status_reason,
        error=run.error_message,
        result=run.result,
        structured_output=run.structured_output,
        messages=tuple(_messages(run)),
        tool_calls=tuple(_tool_calls(run)),
        events=tuple(Event.objects.filter(log=run.pk).order_by("seq").values_list("type", flat=True)),
        steps=run.step_count - run.step_base,
        input_tokens=run.input_tokens,
        output_tokens=run.output_tokens,
        cost_usd=run.cost_usd,
        unpriced_calls=run.unpriced_calls,
    )


def _messages(run: AgentRun) -> Iterator[Message]:
    for row in transcript.rows_of(run):
        yield Message(row.role, text_of(row.content), row.step_number)


def _tool_calls(run: AgentRun) -> Iterator[ToolCall]:
    """Yield the calls in the order in which the model requested them."""
    messages = [row.pk for row in transcript.rows_of(run)]
    calls = AgentRunToolCall.objects.filter(message__in=messages).order_by("step_number", "id")
    for call in calls:
        yield ToolCall(call.tool_name, call.input, call.status, call.output, call.step_number)
