"""The runs of a flow's nodes. At each visit of an agent, tool or human node, the flow opens an ordinary run.

If that run is resumed, the run that continues it belongs to the same visit. Such a chain of runs is a conversation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import UUID

from pydantic import JsonValue

from agentops.base.redaction.redact import DEFAULT as REDACTOR
from agentops.base.refusals import Refusal
from runs.fixtures import fixture_files
from runs.fixtures.format import FixtureError, VisitMark
from runs.flows.kernel.flow_decisions import VisitStart
from runs.flows.kernel.snapshot import Visit
from runs.lifecycle import creation, inbox
from runs.lifecycle.creation import Opening, Origin
from runs.lifecycle.inbox import PostResult
from runs.lifecycle.title_limits import MAX_TITLE
from runs.models import Agent, AgentRun, AgentRunMessage, FlowRun, FlowVisit
from runs.providers import flow_node
from runs.providers.base import FixtureExhausted
from runs.statuses import RunStatus, WaitReason

ASK = "ask_user"
#: Reasons of waits for a person. Pausing the flow leaves such runs alone: they hold no worker, and a person may answer
#: while the flow is paused.
FOR_PEOPLE = frozenset({WaitReason.INPUT, WaitReason.APPROVAL, WaitReason.UNKNOWN_TOOL})
#: The provider that plays fixtures. It numbers its answers across all runs of a node.
FIXTURES = "fixture"


class CannotStart(Exception):
    """The run of a node cannot be opened. `error_type` is the code of the reason."""

    def __init__(self, error_type: str, message: str) -> None:
        super().__init__(message)
        self.error_type = error_type


def open_node_run(flow_run: FlowRun, start: VisitStart, spec: Mapping[str, Any]) -> AgentRun:
    """Open the run of a visit, in the caller's transaction. Raises `CannotStart`."""
    agent = _agent(flow_run, spec) if start.kind == "agent" else None
    if agent is not None:
        prompt = _as_text(start.request["prompt"])
        config = {**agent.frozen(), "calls_before": _calls_before(flow_run, start.visit, agent)}
    else:
        prompt, config = _node_config(flow_run, start, spec)
    if not prompt.strip():
        raise CannotStart("message_empty", "the prompt is empty")
    opening = Opening(
        config={**config, "node_id": start.visit.node},
        turns=[prompt],
        max_steps=creation.within_cap(spec["maxSteps"]) if spec.get("maxSteps") else None,
        title=_title(spec.get("title") or start.visit.node, prompt),
        by=f"flow:{flow_run.pk}",
    )
    try:
        creation.check_agent(agent or _unsaved_agent(flow_run, config))
        return creation.open_run(flow_run.project, agent, opening, Origin(flow_run_id=flow_run.pk))
    except Refusal as error:
        raise CannotStart(error.code, str(error)) from error


def _agent(flow_run: FlowRun, spec: Mapping[str, Any]) -> Agent:
    """Return the agent of an agent node. Raises `CannotStart` if the project does not have it."""
    agent = Agent.objects.filter(project=flow_run.project_id, slug=spec["agent"]).first()
    if agent is None:
        raise CannotStart("agent_not_found", f"the project has no agent {spec['agent']!r}")
    return agent


def _node_config(flow_run: FlowRun, start: VisitStart, spec: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the prompt and the frozen agent for a tool node or a human node. The agent calls one tool."""
    settings: dict[str, Any] = {"tool_output_limit": None}
    if start.kind == "tool":
        tool = str(spec["tool"])
        arguments = start.request.get("arguments") or {}
        settings |= spec.get("settings") or {}
        prompt = f"Call {tool}."
    else:
        tool, prompt = ASK, _as_text(start.request["question"])
        arguments = {"question": prompt}
        if start.request.get("choices"):
            choices = start.request["choices"]
            arguments["choices"] = [_as_text(one) for one in (choices if isinstance(choices, list) else [choices])]
    settings[flow_node.CALL] = {"tool": tool, "arguments": arguments}
    return prompt, tool_config(flow_run.slug, flow_run.flow_version, tool, settings)


def tool_config(slug: str, version: int, tool: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the frozen agent of a run that calls one tool."""
    return {
        "agent_id": slug,
        "version": version,
        "provider": flow_node.NAME,
        "model": tool,
        "instructions": "",
        "tools": [tool],
        "max_steps": 50,
        "settings": dict(settings),
        "policies": {},
    }


def _unsaved_agent(flow_run: FlowRun, config: Mapping[str, Any]) -> Agent:
    """Return an agent with this configuration, only to check it."""
    fields = {name: config[name] for name in ("provider", "model", "tools", "settings")}
    return Agent(project=flow_run.project, slug=flow_run.slug, **fields)


def _title(node: JsonValue, prompt: str) -> str:
    """Return the title of a node's run. It is masked before it is cut: half a secret would not be recognised."""
    return REDACTOR.clean_text(f"{node}: {prompt}".split("\n", 1)[0])[0][:MAX_TITLE]


def _as_text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _calls_before(flow_run: FlowRun, visit: Visit, agent: Agent) -> int:
    """Return the number of a fixture's answers that come before this visit; 0 with other providers.

    The fixture of a recorded flow run names the visit of each answer. With any other fixture, these are the answers
    that earlier iterations have played. Items of a forEach run concurrently, so each item then has one answer.
    """
    if agent.provider != FIXTURES:
        return 0
    recorded = _recorded_calls_before(agent.model, visit)
    if recorded is not None:
        return recorded
    sessions = FlowVisit.objects.filter(
        flow_run=flow_run, node=visit.node, iteration__lt=visit.iteration, session__isnull=False
    ).values("session")
    answers = AgentRunMessage.objects.filter(
        run__root_run__in=sessions, role=AgentRunMessage.Role.ASSISTANT, rolled_back_at=None
    )
    return answers.count() + (visit.item or 0)


def _recorded_calls_before(model: str, visit: Visit) -> int | None:
    """Return the number by a fixture that names visits; None if it names none, or if the fixture cannot be read."""
    try:
        fixture = fixture_files.load_named(model, visit.node)
    except (FixtureExhausted, FixtureError, fixture_files.FixtureNotFound):
        return None
    return fixture.calls_before(VisitMark(iteration=visit.iteration, item=visit.item))


def current_runs(sessions: Sequence[UUID]) -> dict[UUID, AgentRun]:
    """Return the newest run of each conversation, by the ID of the conversation's first run."""
    runs = AgentRun.objects.filter(root_run__in=sessions).exclude(status=RunStatus.RESUMED)
    return {run.root_run_id: run for run in runs}


def open_runs(flow_run: FlowRun) -> list[AgentRun]:
    """Return the runs of a flow run's nodes that have not ended, in the order of their creation."""
    runs = AgentRun.objects.unended().filter(flow_run=flow_run, root_run__flow_visit__flow_run=flow_run)
    return list(runs.order_by("pk"))


def waits_for_person(run: AgentRun) -> bool:
    """Whether a run waits for an answer, an approval, or the outcome of a call."""
    return run.state is RunStatus.WAITING and run.status_reason in FOR_PEOPLE


def pause_all(flow_run: FlowRun) -> None:
    """Pause the runs of a flow run, except runs that wait for a person, in the caller's transaction."""
    for run in open_runs(flow_run):
        if not waits_for_person(run) and run.state is not RunStatus.PAUSED:
            _post_command(inbox.pause, run, flow_run)


def stop_all(flow_run: FlowRun) -> None:
    """Stop the runs of a flow run that has ended, in the caller's transaction."""
    for run in open_runs(flow_run):
        _post_command(inbox.stop, run, flow_run)


def _post_command(post: Callable[..., PostResult], run: AgentRun, flow_run: FlowRun) -> None:
    try:
        post(run.pk, by=f"flow:{flow_run.pk}")
    except Refusal:
        return  # it has ended in the meantime
