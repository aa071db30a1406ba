"""The parts of the pages of a flow run: its head, its graph, and its nodes with their runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, cast
from uuid import UUID

from django.db.models import Count, Q, Sum
from django.urls import reverse

from agentops.base import database_clock
from runs.actions import flow_run_actions
from runs.flows.kernel.graph import graph_of
from runs.flows.kernel.snapshot import NodeStatus, Snapshot
from runs.models import AgentRun, FlowRun
from runs.pages.flows.flows_page import duration_of
from runs.pages.flows.graph_drawing import KINDS, Drawing, drawing_of, progress_of
from runs.pages.runs.run_row import UNTITLED
from runs.queries.flow_states import EdgeView, NodeView, VisitView, graph_of_run
from runs.statuses import RunStatus, WaitReason
from timeline.display import clean, clip, total_cost
from timeline.reasons import reason_label

#: Maximum node runs listed in the head: runs affected by a stop, and runs that can receive a message.
MAX_NAMED = 20
#: Maximum bytes of the title of a run.
MAX_TITLE = 80
NOT_ALLOWED = "Requires the role operator."
#: Reasons of waits that a person ends.
_FOR_PEOPLE = frozenset({WaitReason.INPUT, WaitReason.APPROVAL, WaitReason.UNKNOWN_TOOL})


@dataclass(frozen=True)
class OpenNodeRun:
    """A run of a node that has not ended."""

    id: UUID
    title: str
    node: str
    status: str
    reason: str
    needs_person: bool


@dataclass(frozen=True)
class FlowRunHead:
    """The header of the page."""

    flow_run: FlowRun
    title: str
    reason: str
    error: str
    created_by: str
    #: The duration is the time since `counts_from`, unless that is None.
    duration: str
    counts_from: datetime | None
    #: Number of runs of nodes; their tokens and their cost.
    runs: int
    tokens: int
    cost: str
    #: Whether a run of an agent node has a response of the model, which a fixture can contain.
    has_fixtures: bool
    #: Why an action is unavailable; empty if it is available.
    no_resume: str
    no_pause: str
    no_stop: str
    #: The runs of nodes that have not ended.
    open_runs: Sequence[OpenNodeRun] = ()
    more_open_runs: int = 0

    @property
    def waiting(self) -> list[OpenNodeRun]:
        """Return the open runs that wait for a person."""
        return [run for run in self.open_runs if run.needs_person]


@dataclass(frozen=True)
class ShownVisit:
    """A visit of a node: the flow run has reached the node, and opened a run for it."""

    label: str
    run_id: UUID | None
    status: str
    reason: str


@dataclass(frozen=True)
class ShownNode:
    """A node in the table next to the drawing."""

    id: str
    title: str
    kind: str
    by: str
    status: str
    progress: str
    visits: list[ShownVisit] = field(default_factory=list)
    more_visits: int = 0


@dataclass(frozen=True)
class FlowRunGraph:
    """The drawing of a flow run, and the same content as tables."""

    drawing: Drawing
    nodes: list[ShownNode]
    edges: list[EdgeView]


def head_of(flow_run: FlowRun, *, allowed: bool) -> FlowRunHead:
    """Return the head of a flow run. `allowed`: whether the user may operate it. Four queries."""
    now = database_clock.now()
    totals = AgentRun.objects.filter(flow_run=flow_run).aggregate(
        runs=Count("pk"),
        tokens_in=Sum("input_tokens"),
        tokens_out=Sum("output_tokens"),
        cost=Sum("cost_usd"),
        unpriced=Sum("unpriced_calls"),
        steps_of_agents=Sum("step_count", filter=Q(root_run__flow_visit__kind="agent")),
    )
    affected = flow_run_actions.affected_runs(flow_run) if not flow_run.state.terminal else []
    cost: Decimal | None = totals["cost"]
    return FlowRunHead(
        flow_run=flow_run,
        title=title_of_run(flow_run),
        reason=clean(reason_label(flow_run.status_reason)),
        error=clip(flow_run.error_message, 2048).text,
        created_by=clean(flow_run.created_by),
        duration=duration_of(flow_run, now),
        counts_from=flow_run.started_at if not flow_run.state.terminal else None,
        runs=totals["runs"],
        tokens=(totals["tokens_in"] or 0) + (totals["tokens_out"] or 0),
        cost=total_cost(cost, totals["unpriced"] or 0),
        has_fixtures=bool(totals["steps_of_agents"]),
        no_resume=_why_not_resume(flow_run, allowed=allowed),
        no_pause=_why_not(flow_run, allowed=allowed, paused="This flow run is already paused."),
        no_stop=_why_not(flow_run, allowed=allowed),
        open_runs=[_open_run(run) for run in affected[:MAX_NAMED]],
        more_open_runs=max(len(affected) - MAX_NAMED, 0),
    )


def title_of_run(flow_run: FlowRun) -> str:
    """Return the title that the flow had when the run was created, or its name."""
    return clean(str(flow_run.definition.get("title") or "")) or flow_run.slug


def _why_not(flow_run: FlowRun, *, allowed: bool, paused: str = "") -> str:
    """Return why a flow run cannot be stopped or paused; `paused` is the reason if it is paused. Empty if it can."""
    if not allowed:
        return NOT_ALLOWED
    if flow_run.state.terminal:
        return f"The flow run has ended: it is {flow_run.status}."
    return paused if flow_run.state is RunStatus.PAUSED else ""


def _why_not_resume(flow_run: FlowRun, *, allowed: bool) -> str:
    """Return why a flow run cannot be resumed; empty if it can."""
    if not allowed:
        return NOT_ALLOWED
    if flow_run.state is not RunStatus.PAUSED:
        return f"Only a paused flow run can be resumed. This one is {flow_run.status}."
    return ""


def _open_run(run: AgentRun) -> OpenNodeRun:
    return OpenNodeRun(
        id=run.pk,
        title=clip(run.title, MAX_TITLE).text or UNTITLED,
        node=clean(str(run.agent_config.get("node_id") or "")),
        status=run.status,
        reason=clean(reason_label(run.status_reason)),
        needs_person=run.state is RunStatus.PAUSED
        or (run.state is RunStatus.WAITING and run.status_reason in _FOR_PEOPLE),
    )


def graph_at(flow_run: FlowRun, snapshot: Snapshot | None = None) -> FlowRunGraph:
    """Return the graph of a flow run with the states of a snapshot, by default the current one. Three queries."""
    if snapshot is None:
        snapshot = cast("Snapshot", flow_run.snapshot)
    graph, view = graph_of(flow_run.definition), graph_of_run(flow_run, snapshot)
    nodes = [_node(node, progress_of(graph, snapshot, node.id)) for node in view.nodes]
    hrefs = {node.id: _href(node) for node in view.nodes}
    return FlowRunGraph(drawing_of(flow_run.definition, snapshot, hrefs), nodes, list(view.edges))


def _href(node: NodeView) -> str:
    """Return the page of a node's run, or its row in the table if it has several."""
    if node.visit_count == 1 and node.visits[0].run_id is not None:
        return reverse("runs:detail", args=[node.visits[0].run_id])
    return f"#node-{node.id}"


def _node(node: NodeView, progress: str) -> ShownNode:
    return ShownNode(
        id=node.id,
        title=clean(node.title),
        kind=KINDS[node.kind],
        by=clean(node.subject),
        status=node.status.value,
        progress=progress,
        visits=[_visit(visit) for visit in node.visits if visit.run_id is not None],
        more_visits=max(node.visit_count - len(node.visits), 0),
    )


def _visit(visit: VisitView) -> ShownVisit:
    name = name_of_visit(visit.iteration, visit.item)
    return ShownVisit(name, visit.run_id, visit.status, clean(reason_label(visit.status_reason)))


def name_of_visit(iteration: int, item: int | None) -> str:
    """Return the label of a visit: "run", "iteration 2", "item 1" or "iteration 2, item 1"."""
    words = [f"iteration {iteration + 1}"] if iteration else []
    words += [f"item {item + 1}"] if item is not None else []
    return ", ".join(words) or "run"


def status_counts(statuses: Iterable[str]) -> list[tuple[str, int]]:
    """Return the number of nodes for each status that occurs."""
    counts = Counter(statuses)
    return [(status.value, counts[status.value]) for status in NodeStatus if counts[status.value]]


def context_of(graph: FlowRunGraph) -> dict[str, Any]:
    """Return the template context of a graph."""
    return {"graph": graph, "counts": status_counts(node.status for node in graph.nodes)}
