"""Runs and flow runs of one test: the database rows behind `AgentTester`, and their results.

The model of each agent is replaced by a fixture.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

from agentops.accounts.access import SYSTEM
from agentops.accounts.memberships import create_project
from agentops.accounts.models import Project
from agentops.testing.run_results import FlowResult, Message, RunResult, ToolCall, UnusableFixture
from runs.actions import agent_definitions, approvals, flow_definitions, flow_run_actions, run_actions
from runs.agents.definition import parse_definition
from runs.conversation import transcript
from runs.conversation.transcript import text_of
from runs.fixtures import fixture_files
from runs.fixtures.text_files import FixtureError
from runs.fixtures.verification import files_in
from runs.lifecycle import node_runs
from runs.lifecycle.approval_decisions import Decision
from runs.models import Agent, AgentRun, AgentRunToolCall, Approval, FlowRun, FlowVisit
from runs.tools.catalogue import RECORDED, TOOLS
from runs.worker.in_process import HumanAnswers, drive_flow_to_rest, drive_to_rest, open_questions, require_kind
from runs.worker.worker import Worker
from timeline.models import Event

#: The actor of all changes.
BY = "pytest"
#: Make the names of projects and fixtures unique.
_numbers = itertools.count(1)

Definition = str | Path | Mapping[str, Any]
#: By node: the answer to all its questions, or one answer for each visit.
Answers = Mapping[str, str | Sequence[str]]


def new_project() -> Project:
    """Create a project for a single test."""
    return create_project(f"pytest-{next(_numbers)}", "Tests", actor=SYSTEM)


def definition_of(source: Definition) -> dict[str, Any]:
    """Return the definition of an agent or a flow. `source`: the definition, or the path of its file (TOML or JSON)."""
    if isinstance(source, Mapping):
        return dict(source)
    path = Path(source)
    return parse_definition(path.read_text(encoding="utf-8"), suffix=path.suffix)


def apply_agent(
    project: Project, agent: Definition, *, model: str, real_tools: bool, settings: Mapping[str, Any]
) -> Agent:
    """Create or update an agent, with the fixture `model` as its model. Raises `InvalidAgent`.

    Without `real_tools`, recorded tools replace the agent's own, except for tools that end a run, such as `done`: a
    recorded tool would not end the run.
    """
    definition = definition_of(agent)
    tools: Sequence[str] = definition.get("tools") or []
    if not real_tools:
        tools = [*(name for name in tools if (tool := TOOLS.get(name)) is not None and tool.ends), RECORDED]
    own_settings = definition.get("settings") or {}
    played = {
        "provider": "fixture",
        "model": model,
        "settings": {**own_settings, **settings} if isinstance(own_settings, dict) else own_settings,
        "tools": tools,
    }
    return agent_definitions.apply(project, {**definition, **played}, by=BY)[0]


def copy_fixture(fixture: Path, folder: Path) -> str:
    """Copy a fixture file or folder to `folder` under a unique name, and return the name. Raises `UnusableFixture`."""
    try:
        for file in files_in(fixture):
            fixture_files.load(file)
    except FixtureError as error:
        where = f"{file}: " if error.path.startswith("$") else ""
        raise UnusableFixture(f"{where}{error}") from None
    name = f"fixture-{next(_numbers)}"
    if fixture.is_dir():
        shutil.copytree(fixture, folder / name)
    else:
        shutil.copy(fixture, folder / f"{name}.json")
    return name


class FixtureRuns:
    """The runs of one test, in a separate project. `folder` is an AGENTOPS_FIXTURES directory."""

    def __init__(self, worker: Worker, folder: Path) -> None:
        self._worker = worker
        self._folder = folder
        self._project = new_project()

    def run(
        self,
        agent: Definition,
        fixture: Path,
        prompt: str | None,
        *,
        real_tools: bool,
        max_steps: int | None,
        settings: dict[str, Any],
        timeout_s: float,
    ) -> RunResult:
        """Run an agent on a fixture; see `AgentTester.run`."""
        model = copy_fixture(fixture, self._folder)
        row = apply_agent(self._project, agent, model=model, real_tools=real_tools, settings=settings)
        run = run_actions.create(BY, self._project, row, prompt, max_steps=max_steps)
        return self._drive(run.pk, timeout_s)

    def decide(self, result: RunResult, *, approved: bool, reason: str = "") -> RunResult:
        """Decide the approval that a run waits for, and continue the run. Raises `AssertionError` if there is none."""
        run = AgentRun.objects.select_related("project").get(pk=UUID(result.id))
        approval = Approval.objects.filter(run=run, state=Approval.State.PENDING).first()
        if approval is None:
            raise AssertionError(f"the run waits for no approval: it is {run.status}")
        approvals.decide(BY, run, approval.call_id, Decision(approved, message=reason))
        return self._drive(run.pk, timeout_s=60)

    def _drive(self, run_id: UUID, timeout_s: float) -> RunResult:
        return result_of(drive_to_rest(run_id, self._worker, timeout_s=timeout_s))


def result_of(run: AgentRun) -> RunResult:
    return RunResult(
        id=str(run.pk),
        status=run.status,
        reason=run.status_reason,
        error=run.error_message,
        result=run.result,
        structured_output=run.structured_output,
        messages=tuple(Message(row.role, text_of(row.content), row.step_number) for row in transcript.rows_of(run)),
        tool_calls=tuple(_tool_calls(run)),
        events=tuple(Event.objects.filter(log=run.pk).order_by("seq").values_list("type", flat=True)),
        steps=run.step_count - run.step_base,
        input_tokens=run.input_tokens,
        output_tokens=run.output_tokens,
        cost_usd=run.cost_usd,
        unpriced_calls=run.unpriced_calls,
    )


def _tool_calls(run: AgentRun) -> Iterator[ToolCall]:
    """Yield the calls in the order in which the model requested them."""
    messages = [row.pk for row in transcript.rows_of(run)]
    calls = AgentRunToolCall.objects.filter(message__in=messages).order_by("step_number", "id")
    for call in calls:
        yield ToolCall(call.tool_name, call.input, call.status, call.output, call.step_number)


class FixtureFlows:
    """The flow runs of one test, each in a separate project. `folder` is an AGENTOPS_FIXTURES directory."""

    def __init__(self, worker: Worker, folder: Path) -> None:
        self._worker = worker
        self._folder = folder
        #: The answers for human nodes, by flow run.
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
        project, model = new_project(), copy_fixture(fixtures, self._folder)
        for agent in agents:
            apply_agent(project, agent, model=model, real_tools=real_tools, settings=settings)
        definition = _with_outputs(definition_of(flow), tool_outputs)
        row, _ = flow_definitions.apply(project, definition, by=BY)
        human_answers = HumanAnswers(row.definition, answers)
        flow_run = flow_run_actions.create(BY, row, inputs)
        self._answers[flow_run.pk] = human_answers
        return self._drive(flow_run.pk, timeout_s)

    def answer(self, result: FlowResult, node: str, text: str) -> FlowResult:
        """Answer the open question of a node, and continue the flow run. Raises `AssertionError` if there is none."""
        for visit, run in open_questions(UUID(result.id)):
            if visit.node == node:
                run_actions.reply(BY, run, text)
                return self._drive(UUID(result.id), timeout_s=60)
        asking = ", ".join(visit.node for visit, _ in open_questions(UUID(result.id))) or "none"
        raise AssertionError(f"node {node!r} asks no question; open questions: {asking}")

    def decide(self, result: FlowResult, *, approved: bool, reason: str = "") -> FlowResult:
        """Decide the only pending approval of a flow run, and continue it. Raises `AssertionError` without one."""
        pending = Approval.objects.filter(run__flow_run=UUID(result.id), state=Approval.State.PENDING)
        rows = list(pending.select_related("run__project"))
        if len(rows) != 1:
            nodes = ", ".join(sorted(str(row.run.agent_config.get("node_id")) for row in rows)) or "none"
            raise AssertionError(f"the flow run does not wait for one approval; nodes that wait for one: {nodes}")
        approvals.decide(BY, rows[0].run, rows[0].call_id, Decision(approved, message=reason))
        return self._drive(UUID(result.id), timeout_s=60)

    def _drive(self, flow_run_id: UUID, timeout_s: float) -> FlowResult:
        answers = self._answers[flow_run_id]
        return _result_of(drive_flow_to_rest(flow_run_id, self._worker, answers=answers, by=BY, timeout_s=timeout_s))


def _with_outputs(definition: dict[str, Any], outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the definition of a flow in which constants replace the tool nodes that `outputs` names."""
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
    # In the order of the definition, because PostgreSQL does not keep the order of keys.
    statuses = {node["id"]: flow_run.snapshot["nodeStatus"][node["id"]] for node in flow_run.definition["nodes"]}
    return FlowResult(
        id=str(flow_run.pk),
        status=flow_run.status,
        reason=flow_run.status_reason,
        error=flow_run.error_message,
        snapshot=flow_run.snapshot | {"nodeStatus": statuses},
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
