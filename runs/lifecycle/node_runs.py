"""The runs of a flow's nodes: each visit of an agent, tool or human node is one conversation of ordinary runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from pydantic import JsonValue

from agentops.base.redaction.redact import DEFAULT as REDACTOR
from agentops.base.refusals import Refusal
from runs.fixtures import library
from runs.fixtures.format import FixtureError, VisitMark
from runs.flows.kernel.flow_decisions import VisitStart
from runs.flows.kernel.snapshot import Visit
from runs.lifecycle import creation, inbox
from runs.lifecycle.creation import Opening, Origin
from runs.lifecycle.title_limits import MAX_TITLE
from runs.models import Agent, AgentRun, AgentRunMessage, FlowRun, FlowVisit
from runs.providers import flow_node
from runs.providers.base import FixtureExhausted
from runs.statuses import RunStatus, WaitReason

ASK = "ask_user"
#: Waits for a person. A pause of the flow does not affect them: they hold no worker, and may be answered during it.
FOR_PEOPLE = frozenset({WaitReason.INPUT, WaitReason.APPROVAL, WaitReason.UNKNOWN_TOOL})
#: The provider that numbers its answers across all runs of a node.
RECORDINGS = "fixture"


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
        creation.check_agent(agent or _unsaved(flow_run, config))
        return creation.open_run(flow_run.project, agent, opening, Origin(flow_run_id=flow_run.pk))
    except Refusal as error:
        raise CannotStart(error.code, str(error)) from error


def _agent(flow_run: FlowRun, spec: Mapping[str, Any]) -> Agent:
    agent = Agent.objects.filter(project=flow_run.project_id, slug=spec["agent"]).first()
    if agent is None:
        raise CannotStart("agent_not_found", f"the project has no agent {spec['agent']!r}")
    return agent


def _node_config(flow_run: FlowRun, start: VisitStart, spec: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the first message and the frozen agent of a tool node or a human node."""
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
            arguments["choices"] = [_as_text(choice) for choice in _list(start.request["choices"])]
    settings[flow_node.CALL] = {"tool": tool, "arguments": arguments}
    return prompt, tool_config(flow_run.slug, flow_run.flow_version, tool, settings)


def tool_config(slug: str, version: int, tool: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the frozen agent of a run that calls one tool."""
    return {
        "agent_id": slug, "version": version, "provider": flow_node.NAME, "model": tool, "instructions": "",
        "tools": [tool], "max_steps": 50, "settings": dict(settings), "policies": {},
    }  # fmt: skip


def _unsaved(flow_run: FlowRun, config: Mapping[str, Any]) -> Agent:
    fields = {name: config[name] for name in ("provider", "model", "tools", "settings")}
    return Agent(project=flow_run.project, slug=flow_run.slug, **fields)


def _title(node: JsonValue, prompt: str) -> str:
    """Return the title of a node's run, masked before it is cut: half a secret is not recognised."""
    return REDACTOR.clean_text(f"{node}: {prompt}".split("\n", 1)[0])[0][:MAX_TITLE]


def _list(value: JsonValue) -> list[JsonValue]:
    return value if isinstance(value, list) else [value]


def _as_text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _calls_before(flow_run: FlowRun, visit: Visit, agent: Agent) -> int:
    """Return the number of a recording's entries that come before this visit.

    A recorded flow run names the visit of each call. Otherwise, these are the entries that earlier iterations have
    played. Items of a forEach run concurrently, so each item then has one entry.
    """
    if agent.provider != RECORDINGS:
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
    """Return the number from the recording. None if it does not name visits, or if it is unreadable; the run reports
    that.
    """
    try:
        fixture = library.load(model, visit.node)
    except (FixtureExhausted, FixtureError, library.FixtureNotFound):
        return None
    return fixture.calls_before(VisitMark(iteration=visit.iteration, item=visit.item))


def current_runs(sessions: Sequence[UUID]) -> dict[UUID, AgentRun]:
    """Return the current run of each conversation, by the ID of its first run."""
    runs = AgentRun.objects.filter(root_run__in=sessions).exclude(status=RunStatus.RESUMED)
    return {run.root_run_id: run for run in runs}


def open_runs(flow_run: FlowRun) -> list[AgentRun]:
    """Return the runs of a flow run's nodes that have not ended, in the order of their creation."""
    runs = AgentRun.objects.unended().filter(flow_run=flow_run, root_run__flow_visit__flow_run=flow_run)
    return list(runs.order_by("pk"))


def waits_for_person(run: AgentRun) -> bool:
    """Return whether a run waits for an answer, an approval, or the outcome of a call."""
    return run.state is RunStatus.WAITING and run.status_reason in FOR_PEOPLE


def pause_all(flow_run: FlowRun) -> None:
    """Pause the runs of a flow run, except for waits for a person, in the caller's transaction."""
    for run in open_runs(flow_run):
        if not waits_for_person(run) and run.state is not RunStatus.PAUSED:
            _ignoring_ends(inbox.pause, run, flow_run)


def stop_all(flow_run: FlowRun) -> None:
    """Stop the runs of a flow run that has ended, in the caller's transaction."""
    for run in open_runs(flow_run):
        _ignoring_ends(inbox.stop, run, flow_run)


def _ignoring_ends(act: Any, run: AgentRun, flow_run: FlowRun) -> None:
    try:
        act(run.pk, by=f"flow:{flow_run.pk}")
    except Refusal:
        return  # it has ended in the meantime
