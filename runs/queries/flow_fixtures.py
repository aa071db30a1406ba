"""Creates fixtures of a stored flow run: one for each agent node, with all visits of the node."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import dataclass, field
from typing import Any

from agentops.base.redaction.redact import DEFAULT as REDACTOR
from agentops.base.refusals import Conflict
from runs.fixtures import fixture_files
from runs.fixtures.format import About, Fixture, FixtureError, VisitMark, join_visits
from runs.flows.kernel.graph import Node, graph_of
from runs.flows.kernel.snapshot import visit_of
from runs.models import AgentRun, FlowRun, FlowVisit
from runs.queries.run_fixture import NothingRecorded, RunRecording, record
from runs.statuses import RunStatus

#: Maximum visits of agent nodes that one request records. Each takes several queries. The command has no limit.
MAX_VISITS_OF_A_REQUEST = 200


@dataclass(frozen=True)
class FlowRecording:
    """The fixtures of a flow run by node, and notes on their omissions."""

    flow_id: str
    fixtures: dict[str, RunRecording] = field(default_factory=dict)
    #: The answers of people, by node, in the order of its visits. Secrets are masked.
    answers: dict[str, list[Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return the recording as JSON: `{"flow_id", "fixtures": {node: fixture}, "answers", "notes"}`."""
        fixtures = {node: json.loads(fixture_files.dumps(each.fixture)) for node, each in self.fixtures.items()}
        return {"flow_id": self.flow_id, "fixtures": fixtures, "answers": self.answers, "notes": self.notes}

    def as_zip(self) -> bytes:
        """Return a ZIP archive of a folder named after the flow, with a file for each node and `notes.txt`."""
        target = io.BytesIO()
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for node, each in self.fixtures.items():
                archive.writestr(f"{self.flow_id}/{node}.json", fixture_files.dumps(each.fixture))
            if self.notes:
                archive.writestr(f"{self.flow_id}/notes.txt", "".join(f"{note}\n" for note in self.notes))
        return target.getvalue()


def record_flow_of_request(flow_run: FlowRun) -> FlowRecording:
    """Return the result of `record_flow`. Raises `Conflict` (`too_many_visits`) if it has too many visits."""
    visits = FlowVisit.objects.filter(flow_run=flow_run, kind="agent", session__isnull=False)
    if visits[: MAX_VISITS_OF_A_REQUEST + 1].count() > MAX_VISITS_OF_A_REQUEST:
        limit, command = MAX_VISITS_OF_A_REQUEST, f"agentops record_fixtures --flow-run {flow_run.pk} --output DIR"
        raise Conflict(
            f"agents were called for more than {limit} visits of nodes; use `{command}`", code="too_many_visits"
        )
    return record_flow(flow_run)


def record_flow(flow_run: FlowRun) -> FlowRecording:
    """Return the fixtures of the agent nodes of a flow run. Takes several queries for each visit.

    Redaction rules of the project apply if the caller has added the project to the scope. Raises `NothingRecorded` if
    no agent node has an answer of a model.
    """
    recording = FlowRecording(flow_run.slug)
    if not flow_run.state.terminal:
        recording.notes.append(f"the flow run is {flow_run.status}: only what it has done so far is recorded")
    graph = graph_of(flow_run.definition)
    for node in [graph.nodes[name] for name in graph.order]:
        visits = FlowVisit.objects.filter(flow_run=flow_run, node=node.id, session__isnull=False)
        _add(recording, flow_run, node, list(visits.order_by("iteration", "item")))
    if not recording.fixtures:
        raise NothingRecorded("no agent node has an answer of a model yet, so there is nothing to record")
    return recording


def _add(recording: FlowRecording, flow_run: FlowRun, node: Node, visits: list[FlowVisit]) -> None:
    """Add a node to the recording: a fixture, or a note about its omission."""
    if node.kind == "agent":
        _add_agent(recording, flow_run, node, visits)
    elif node.kind == "tool" and visits:
        recording.notes.append(f"node {node.id} is not recorded: a flow that plays this calls its tool again")
    elif node.kind == "human":
        answers = [REDACTOR.clean(visit.output)[0] for visit in visits if visit.ended_at is not None]
        if answers:
            recording.answers[node.id] = answers
            text = json.dumps(answers, ensure_ascii=False)
            recording.notes.append(f"node {node.id} is not recorded: a person answers again; the answers were {text}")


def _add_agent(recording: FlowRecording, flow_run: FlowRun, node: Node, visits: list[FlowVisit]) -> None:
    newest = AgentRun.objects.filter(root_run__flow_visit__in=visits).exclude(status=RunStatus.RESUMED)
    runs = {run.root_run_id: run for run in newest}
    fixtures: dict[VisitMark, Fixture] = {}
    notes: list[str] = []
    for visit in visits:
        prefix = "" if visit.key == node.id and len(visits) == 1 else f"{visit.key}: "
        try:
            recorded = record(runs[visit.session_id])
        except NothingRecorded as error:
            recording.notes.append(f"{visit.key} is not recorded: {error}")
            continue
        fixtures[_mark(visit)] = recorded.fixture
        notes += [f"{prefix}{note}" for note in recorded.notes]
    if not fixtures:
        return
    title = REDACTOR.clean_text(str(node.spec.get("title") or node.id))[0]
    about = About(
        title=f"{title}, of flow {flow_run.slug}", origin=f"agentops flow run {flow_run.pk}", notes="; ".join(notes)
    )
    try:
        recording.fixtures[node.id] = RunRecording(join_visits(fixtures, about), notes)
    except (FixtureError, ValueError) as error:
        raise NothingRecorded(f"node {node.id} cannot be a fixture: {error}") from error


def _mark(visit: FlowVisit) -> VisitMark:
    key = visit_of(visit.key)
    return VisitMark(iteration=key.iteration, item=key.item)
