"""The content of the replay of a flow run at an event: its graph, its nodes and its timeline."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.urls import reverse

from runs.flows.kernel.graph import Graph, graph_of
from runs.flows.kernel.snapshot import NodeStatus, Snapshot, visit_of
from runs.models import FlowRun
from runs.pages.flows.flow_run_parts import name_of_visit
from runs.pages.flows.graph_drawing import Drawing, drawing_of, progress_of, title_of
from runs.pages.timeline import window
from runs.pages.timeline.window import Window
from runs.queries.flow_states import snapshot_at
from timeline.display import clean, clip

#: Maximum linked runs of a node, and bytes of an output.
MAX_RUNS, OUTPUT_BYTES = 10, 200


@dataclass(frozen=True)
class ReplayedNode:
    """A node at an event. `runs` holds label and ID of each run opened so far."""

    id: str
    title: str
    status: str
    progress: str
    output: str
    runs: list[tuple[str, UUID]]
    more_runs: int


@dataclass(frozen=True)
class FlowReplayFrame:
    """The content of the page at an event."""

    window: Window
    status: str
    counts: list[tuple[str, int]]
    drawing: Drawing
    nodes: list[ReplayedNode]
    #: Loop edges that were followed back: the edge, the count, and the limit.
    loops: list[tuple[str, int, int]]
    waiting_messages: int


def flow_frame(flow_run: FlowRun, seq: int) -> FlowReplayFrame:
    """Return the content of the page at event `seq`."""
    graph, snapshot = graph_of(flow_run.definition), snapshot_at(flow_run, seq)
    nodes = _nodes(graph, snapshot)
    hrefs = {node.id: _href(node) for node in nodes}
    statuses = list(snapshot["nodeStatus"].values())
    counts = [(status.value, statuses.count(status)) for status in NodeStatus if status in statuses]
    counters = snapshot["loopCounters"]
    return FlowReplayFrame(
        window=window.up_to(flow_run.pk, seq),
        status=snapshot["status"],
        counts=counts,
        drawing=drawing_of(flow_run.definition, snapshot, hrefs),
        nodes=nodes,
        loops=[(loop.key, counters[loop.key], loop.max_iterations or 0) for loop in graph.loops if counters[loop.key]],
        waiting_messages=sum(map(len, snapshot["inbox"].values())),
    )


def _href(node: ReplayedNode) -> str:
    """Return the page of a node's run, or its row in the table."""
    if len(node.runs) == 1 and not node.more_runs:
        return reverse("runs:detail", args=[node.runs[0][1]])
    return f"#node-{node.id}"


def _nodes(graph: Graph, snapshot: Snapshot) -> list[ReplayedNode]:
    """Return the nodes, with the runs of their visits in the snapshot, newest first. No query."""
    runs: dict[str, list[tuple[str, UUID]]] = {}
    for key, run_id in snapshot["agentSessions"].items():
        visit = visit_of(key)
        runs.setdefault(visit.node, []).insert(0, (name_of_visit(visit.iteration, visit.item), UUID(run_id)))
    return [
        ReplayedNode(
            id=name,
            title=title_of(graph.nodes[name]),
            status=snapshot["nodeStatus"][name],
            progress=progress_of(graph, snapshot, name),
            output=_output(snapshot["outputs"], name),
            runs=runs.get(name, [])[:MAX_RUNS],
            more_runs=max(len(runs.get(name, [])) - MAX_RUNS, 0),
        )
        for name in graph.order
    ]


def _output(outputs: Mapping[str, Any], node: str) -> str:
    """Return the beginning of a node's output; empty if it has none."""
    if node not in outputs:
        return ""
    value = outputs[node]
    return clip(clean(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)), OUTPUT_BYTES).text
