"""The states of a flow run: its nodes and edges as a graph without a layout, and the replay of its log. Read-only.

`FlowReplay` leaves out outputs and values, because a flow run may have megabytes of them for each event. `snapshot_at`
returns everything, for one event.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast
from uuid import UUID

from django.db.models import Count, F, Window
from django.db.models.functions import RowNumber

from runs.flows.kernel import snapshot as snapshots
from runs.flows.kernel import snapshot_fold
from runs.flows.kernel.graph import Graph, graph_of
from runs.flows.kernel.snapshot import EdgeStatus, NodeStatus, Snapshot
from runs.models import AgentRun, FlowRun, FlowVisit
from runs.statuses import RunStatus
from timeline import log
from timeline.models import Event


@dataclass(frozen=True)
class VisitView:
    """A visit of a node, with the newest run of its conversation."""

    key: str
    iteration: int
    item: int | None
    #: The ID of the run; None for a constant.
    run_id: UUID | None
    #: The run's status; `running` or `done` for a constant; empty if the run is unknown.
    status: str
    #: Why the run waits or is paused.
    status_reason: str


@dataclass(frozen=True)
class NodeView:
    """A node, and its visits, the newest first."""

    id: str
    kind: str
    title: str
    #: The agent or tool that the node executes; empty for questions and constants.
    subject: str
    #: The length of the longest path to the node, from 0. Loop edges do not count.
    depth: int
    #: Whether the node starts after "any" or "all" of its edges.
    gate: str
    status: NodeStatus
    visits: Sequence[VisitView] = ()
    visit_count: int = 0


@dataclass(frozen=True)
class EdgeView:
    """An edge. `iterations` and `max_iterations` are None unless it is a loop edge."""

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


def graph_of_run(flow_run: FlowRun, snapshot: Snapshot | None = None, *, visits: int = 20) -> FlowGraph:
    """Return the graph of a flow run, with at most `visits` visits of each node. Three queries.

    `snapshot`: the snapshot to show instead of the current one. The runs keep their current status.
    """
    if snapshot is None:
        snapshot = cast("Snapshot", flow_run.snapshot)
    rows = FlowVisit.objects.filter(flow_run=flow_run)
    counts = dict(rows.values_list("node").annotate(Count("pk")))
    # Loops and forEach create thousands of visits, and an open page polls.
    newest = rows.annotate(position=Window(RowNumber(), partition_by="node", order_by=F("pk").desc()))
    by_node: dict[str, list[FlowVisit]] = {}
    for row in newest.filter(position__lte=visits).order_by("-pk").defer("value", "output", "state"):
        by_node.setdefault(row.node, []).append(row)
    sessions = [row.session_id for each in by_node.values() for row in each if row.session_id]
    runs = AgentRun.objects.filter(root_run__in=sessions).exclude(status=RunStatus.RESUMED)
    current = {run.root_run_id: run for run in runs.only("root_run_id", "status", "status_reason")}
    views = {node: [_visit(row, current) for row in each] for node, each in by_node.items()}
    return _view(graph_of(flow_run.definition), snapshot, views, counts)


def _visit(row: FlowVisit, current: Mapping[UUID, AgentRun]) -> VisitView:
    run = current.get(row.session_id) if row.session_id else None
    if run is None:
        status = "" if row.session_id else NodeStatus.RUNNING if row.ended_at is None else NodeStatus.DONE
        return VisitView(row.key, row.iteration, row.item, row.session_id, str(status), "")
    return VisitView(row.key, row.iteration, row.item, run.pk, run.status, run.status_reason)


def _view(
    graph: Graph, snapshot: Snapshot, visits: Mapping[str, Sequence[VisitView]], counts: Mapping[str, int]
) -> FlowGraph:
    """Return the graph with the statuses of a snapshot. `visits` and `counts` are by node."""
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
            status=NodeStatus(snapshot["nodeStatus"][name]),
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
            status=EdgeStatus(snapshot["edgeStatus"][edge.key]),
            condition=edge.when or "",
            for_each=edge.each_in or "",
            iterations=snapshot["loopCounters"][edge.key] if edge.is_loop else None,
            max_iterations=edge.max_iterations,
        )
        for edge in graph.edges
    ]
    return FlowGraph(nodes, edges)


# --- Replay ---

#: Events held in memory at a time.
CHUNK = 500


@dataclass(frozen=True, slots=True)
class FlowReplayState:
    """The state of a flow run after event `seq`. Pending nodes and edges are omitted."""

    seq: int
    status: str
    node_status: Mapping[str, str]
    edge_status: Mapping[str, str]
    loop_counters: Mapping[str, int]
    #: The number of messages that wait for a resume.
    waiting_messages: int

    def nodes(self, status: NodeStatus) -> list[str]:
        """Return the nodes with a status."""
        return [name for name, own in self.node_status.items() if own == status]

    def as_json(self) -> dict[str, Any]:
        """Return the state in its wire format, with the names of the snapshot."""
        return {
            "seq": self.seq,
            "status": self.status,
            "nodeStatus": self.node_status,
            "edgeStatus": self.edge_status,
            "loopCounters": self.loop_counters,
            "waitingMessages": self.waiting_messages,
        }


class FlowReplay:
    """A replay of a flow run: its log is folded event by event, without outputs."""

    def __init__(self, flow_run: FlowRun, after: int) -> None:
        """Fold the log up to event `after`, which must exist or be 0."""
        self._snapshot = snapshots.initial(graph_of(flow_run.definition), str(flow_run.pk))
        events = log.events_of(flow_run.pk).filter(seq__lte=after, late=False)
        for event in events.only("type", "payload", "ref_id").iterator(CHUNK):
            snapshot_fold.apply(self._snapshot, event, _no_contents)

    def continued(self, events: list[Event]) -> Iterator[tuple[Event, FlowReplayState]]:
        """Yield each of the next events with the state after it."""
        for event in events:
            if not event.late:
                snapshot_fold.apply(self._snapshot, event, _no_contents)
            yield event, _state(event.seq, self._snapshot)


def _no_contents(visit_id: UUID) -> Mapping[str, Any]:
    """Return no contents of a visit, because a replay does not show outputs."""
    return {}


def _state(seq: int, snapshot: Snapshot) -> FlowReplayState:
    return FlowReplayState(
        seq=seq,
        status=snapshot["status"],
        node_status={name: own for name, own in snapshot["nodeStatus"].items() if own != NodeStatus.PENDING},
        edge_status={name: own for name, own in snapshot["edgeStatus"].items() if own != EdgeStatus.PENDING},
        loop_counters={name: count for name, count in snapshot["loopCounters"].items() if count},
        waiting_messages=sum(map(len, snapshot["inbox"].values())),
    )


def snapshot_at(flow_run: FlowRun, seq: int | None = None) -> Snapshot:
    """Return the snapshot after event `seq`, or after all events. Changes nothing."""
    events = log.events_of(flow_run.pk).filter(late=False)
    if seq is not None:
        events = events.filter(seq__lte=seq)
    start = snapshots.initial(graph_of(flow_run.definition), str(flow_run.pk))

    def contents_of(visit_id: UUID) -> Mapping[str, Any]:
        """Return the contents of a visit that are too large for its event."""
        visits = FlowVisit.objects.filter(flow_run=flow_run, pk=visit_id)
        return visits.values("output", "state", "value").first() or {}

    return snapshot_fold.fold(start, events.only("type", "payload", "ref_id").iterator(200), contents_of)
