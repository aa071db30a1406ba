"""A flow or a flow run as a graph of nodes and edges with their states, for pages and the API. Without a layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast
from uuid import UUID

from django.db.models import Count, F, Window
from django.db.models.functions import RowNumber

from runs.flows.kernel.graph import Graph, graph_of
from runs.flows.kernel.snapshot import EdgeStatus, NodeStatus, Snapshot
from runs.models import AgentRun, FlowRun, FlowVisit
from runs.statuses import RunStatus


@dataclass(frozen=True)
class VisitView:
    """A visit of a node, with the run that currently holds its conversation."""

    key: str
    iteration: int
    item: int | None
    #: The ID of the run; None for a constant.
    run_id: UUID | None
    #: The run's status, or `done` and `running` for a constant; empty if its run is unknown.
    status: str
    #: Why the run waits or is paused.
    status_reason: str


@dataclass(frozen=True)
class NodeView:
    """A node, its place in the order of the graph, and its visits, the newest first."""

    id: str
    kind: str
    title: str
    #: The agent or tool that the node executes; empty for questions and constants.
    subject: str
    #: The length of the longest path to it, from 0. Loop edges do not count.
    depth: int
    gate: str
    status: NodeStatus
    visits: Sequence[VisitView] = ()
    visit_count: int = 0


@dataclass(frozen=True)
class EdgeView:
    """An edge. `iterations` of `max_iterations` for a loop edge, None for others."""

    key: str
    source: str
    target: str
    status: EdgeStatus
    condition: str
    for_each: str
    iterations: int | None
    max_iterations: int | None


@dataclass(frozen=True)
class FlowGraph:
    """The nodes in topological order, and the edges in the order of the definition."""

    nodes: Sequence[NodeView]
    edges: Sequence[EdgeView]


def graph_of_definition(definition: Mapping[str, Any]) -> FlowGraph:
    """Return the graph of a checked definition: all nodes and edges are pending."""
    return _view(graph_of(definition), None, {}, {})


def graph_of_run(flow_run: FlowRun, snapshot: Snapshot | None = None, *, visits: int = 20) -> FlowGraph:
    """Return the graph of a flow run, with at most `visits` visits of each node. Three queries.

    `snapshot` is an earlier snapshot for a replay. The runs are still in their current state.
    """
    own = snapshot if snapshot is not None else cast("Snapshot", flow_run.snapshot)
    rows = FlowVisit.objects.filter(flow_run=flow_run)
    counts = dict(rows.values_list("node").annotate(Count("pk")))
    # Loops and forEach create thousands of visits, and an open page polls.
    newest = rows.annotate(place=Window(RowNumber(), partition_by="node", order_by=F("pk").desc()))
    by_node: dict[str, list[FlowVisit]] = {}
    for row in newest.filter(place__lte=visits).order_by("-pk").defer("value", "output", "state"):
        by_node.setdefault(row.node, []).append(row)
    sessions = [row.session_id for each in by_node.values() for row in each if row.session_id]
    runs = AgentRun.objects.filter(root_run__in=sessions).exclude(status=RunStatus.RESUMED)
    current = {run.root_run_id: run for run in runs.only("root_run_id", "status", "status_reason")}
    views = {node: [_visit(row, current) for row in each] for node, each in by_node.items()}
    return _view(graph_of(flow_run.definition), own, views, counts)


def _visit(row: FlowVisit, current: Mapping[UUID, AgentRun]) -> VisitView:
    run = current.get(row.session_id) if row.session_id else None
    if run is None:
        status = "" if row.session_id else NodeStatus.RUNNING if row.ended_at is None else NodeStatus.DONE
        return VisitView(row.key, row.iteration, row.item, row.session_id, str(status), "")
    return VisitView(row.key, row.iteration, row.item, run.pk, run.status, run.status_reason)


def _view(
    graph: Graph,
    snapshot: Snapshot | None,
    visits: Mapping[str, Sequence[VisitView]],
    counts: Mapping[str, int],
) -> FlowGraph:
    depths: dict[str, int] = {}
    for name in graph.order:
        depths[name] = max((depths.get(edge.source, 0) + 1 for edge in graph.incoming[name]), default=0)
    nodes = [
        NodeView(
            id=name,
            kind=(node := graph.nodes[name]).kind,
            title=str(node.spec.get("title") or name),
            subject=str(node.spec.get("agent") or node.spec.get("tool") or ""),
            depth=depths[name],
            gate="any" if name in graph.any_gates else "all",
            status=NodeStatus(snapshot["nodeStatus"][name]) if snapshot else NodeStatus.PENDING,
            visits=visits.get(name, ()),
            visit_count=counts.get(name, 0),
        )
        for name in graph.order
    ]
    edges = [
        EdgeView(
            key=edge.key,
            source=edge.source,
            target=edge.target,
            status=EdgeStatus(snapshot["edgeStatus"][edge.key]) if snapshot else EdgeStatus.PENDING,
            condition=edge.when or "",
            for_each=edge.each_in or "",
            iterations=(snapshot["loopCounters"][edge.key] if snapshot else 0) if edge.is_loop else None,
            max_iterations=edge.max_iterations,
        )
        for edge in graph.edges
    ]
    return FlowGraph(nodes, edges)
