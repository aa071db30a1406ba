"""Flow runs of one test: the database rows behind `AgentTester.run_flow`, and their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

from agentops.testing.fixture_runs import result_of
from agentops.testing.flow_results import FlowResult
from agentops.testing.played_agents import BY, apply_agent, definition_of, new_project, place, played_tools
from runs.actions import approvals, flow_definitions, flow_run_actions, run_actions
from runs.lifecycle import node_runs
from runs.lifecycle.approval_decisions import Decision
from runs.models import AgentRun, AgentRunToolCall, Approval, FlowRun, FlowVisit
from runs.worker.flow_in_process import HumanAnswers, drive_flow_to_rest, open_questions, require_kind
from runs.worker.worker import Worker
from timeline.models import Event

Definition = str | Path | Mapping[str, Any]
#: The answer to all questions of a node, or one answer for each visit.
Answers = Mapping[str, str | Sequence[str]]


class FixtureFlows:
    """The flow runs of one test, each in a separate project. `folder` is an AGENTOPS_FIXTURES directory."""

    def __init__(self, worker: Worker, folder: Path) -> None:
        self._worker = worker
        self._folder = folder
        #: By flow run.
        self._answers: dict[UUID, HumanAnswers] = {}

    def run(
        self,
        flow: Definition,
        agents: Sequence[Definition],
        fixtures: Path,
        inputs: Mapping[str, Any],
        *,
        answers: Answers,
        tool_outputs: Mapping[str, Any],
        real_tools: bool,
        settings: Mapping[str, Any],
        timeout_s: float,
    ) -> FlowResult:
        """Run a flow on fixtures; see `AgentTester.run_flow`."""
        project, model = new_project(), place(fixtures, self._folder)
        for definition in map(definition_of, agents):
            tools = played_tools(definition, real_tools=real_tools)
            apply_agent(project, definition, model=model, tools=tools, settings=settings)
        definition = _with_outputs(definition_of(flow), tool_outputs)
        row, _ = flow_definitions.apply(project, definition, by=BY)
        given = HumanAnswers(row.definition, answers)
        flow_run = flow_run_actions.create(BY, row, inputs)
        self._answers[flow_run.pk] = given
        return self._drive(flow_run.pk, timeout_s)

    def answer(self, result: FlowResult, node: str, text: str) -> FlowResult:
        """Answer the open question of a node, and continue the flow run."""
        for visit, run in open_questions(UUID(result.id)):
            if visit.node == node:
                run_actions.reply(BY, run, text)
                return self._drive(UUID(result.id), timeout_s=60)
        asking = ", ".join(visit.node for visit, _ in open_questions(UUID(result.id))) or "none"
        raise AssertionError(f"node {node!r} asks no question; open questions: {asking}")

    def decide(self, result: FlowResult, *, approved: bool, reason: str = "") -> FlowResult:
        """Decide the only pending approval of a flow run, and continue it."""
        pending = Approval.objects.filter(run__flow_run=UUID(result.id), state=Approval.State.PENDING)
        waiting = list(pending.select_related("run__project"))
        if len(waiting) != 1:
            nodes = ", ".join(sorted(str(each.run.agent_config.get("node_id")) for each in waiting)) or "none"
            raise AssertionError(f"the flow run does not wait for one approval; nodes that wait for one: {nodes}")
        approvals.decide(BY, waiting[0].run, waiting[0].call_id, Decision(approved, message=reason))
        return self._drive(UUID(result.id), timeout_s=60)

    def _drive(self, flow_run_id: UUID, timeout_s: float) -> FlowResult:
        answers = self._answers[flow_run_id]
        return _result_of(drive_flow_to_rest(flow_run_id, self._worker, answers=answers, by=BY, timeout_s=timeout_s))


def _with_outputs(definition: dict[str, Any], outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a flow in which constants replace the tool nodes with an output in `outputs`."""
    if not outputs:
        return definition
    require_kind(definition, outputs, "tool", "calls no tool")
    nodes = [
        {name: node[name] for name in ("id", "title", "when", "policy", "state") if name in node}
        | {"type": "constant", "value": outputs[node["id"]]}
        if node.get("id") in outputs
        else node
        for node in definition.get("nodes", [])
    ]
    return {**definition, "nodes": nodes}


def _result_of(flow_run: FlowRun) -> FlowResult:
    visits = list(FlowVisit.objects.filter(flow_run=flow_run, session__isnull=False).order_by("pk"))
    runs = node_runs.current_runs([visit.session_id for visit in visits if visit.session_id is not None])
    # Columns do not preserve the order of keys.
    statuses, nodes = flow_run.snapshot["nodeStatus"], [node["id"] for node in flow_run.definition["nodes"]]
    return FlowResult(
        id=str(flow_run.pk),
        status=flow_run.status,
        reason=flow_run.status_reason,
        error=flow_run.error_message,
        snapshot=flow_run.snapshot | {"nodeStatus": {node: statuses[node] for node in nodes}},
        runs={visit.key: result_of(runs[visit.session_id]) for visit in visits if visit.session_id is not None},
        questions={visit.key: _question_of(run) for visit, run in open_questions(flow_run.pk)},
        events=tuple(Event.objects.filter(log=flow_run.pk).order_by("seq").values_list("type", flat=True)),
        cost_usd=_cost_of(flow_run),
    )


def _question_of(run: AgentRun) -> str:
    call = AgentRunToolCall.objects.filter(run=run).latest("id")
    return str(call.input["question"]) if isinstance(call.input, dict) else ""


def _cost_of(flow_run: FlowRun) -> Decimal | None:
    """Return the cost of all agents of the flow run; None if the cost of one is unknown."""
    runs = AgentRun.objects.filter(flow_run=flow_run, agent__isnull=False)
    costs = list(runs.values_list("cost_usd", "unpriced_calls"))
    known = [cost for cost, unpriced in costs if cost is not None and not unpriced]
    return sum(known, Decimal(0)) if len(known) == len(costs) else None
