"""The replay of a flow run: its graph and its timeline at an event. Read-only: nothing is executed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from agentops.accounts.access import projects_for
from agentops.accounts.requests import principal_of
from agentops.base.http.methods import require_safe
from runs.access import flow_run_for
from runs.flows.kernel.graph import Graph, graph_of
from runs.flows.kernel.snapshot import NodeStatus, Snapshot, visit_of
from runs.models import FlowRun
from runs.pages.flows.flow_run_parts import name_of_visit, title_of_run
from runs.pages.flows.graph_drawing import Drawing, drawing_of, progress_of, title_of
from runs.pages.run.run_tabs import MAX_CHOICES
from runs.pages.timeline import window
from runs.pages.timeline.replay_player import SPEEDS, moment_of
from runs.pages.timeline.window import Window
from runs.queries.flow_states import snapshot_at
from timeline.display import clean, clip

FRAME = "runs/flows/_flow_replay_frame.html"
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


@require_safe
def replay(request: HttpRequest, flow_run_id: UUID) -> HttpResponse:
    """Show the replay at event `seq`, by default at the first one."""
    principal = principal_of(request)
    flow_run = flow_run_for(principal, flow_run_id)
    context = {
        "section": "flows",
        "project": flow_run.project,
        "projects": projects_for(principal).order_by("name", "pk")[:MAX_CHOICES],
        "flow_run": flow_run,
        "title": title_of_run(flow_run),
        "speeds": SPEEDS,
        **_frame_context(request, flow_run),
    }
    return render(request, "runs/flows/flow_replay.html", context)


@require_safe
def replay_frame(request: HttpRequest, flow_run_id: UUID) -> HttpResponse:
    """Return the page content at event `seq`, as a fragment."""
    flow_run = flow_run_for(principal_of(request), flow_run_id)
    return render(request, FRAME, _frame_context(request, flow_run))


def _frame_context(request: HttpRequest, flow_run: FlowRun) -> dict[str, Any]:
    moment, notice = moment_of(request, flow_run.pk, flow_run.log.last_seq)
    page, state_url, replay_url, frame_url = (
        reverse(f"runs:{name}", args=[flow_run.pk])
        for name in ("flow-run", "flow-run-state", "flow-run-replay", "flow-run-replay-frame")
    )
    return {
        "page": page,
        "state_url": state_url,
        "replay_url": replay_url,
        "frame_url": frame_url,
        "moment": moment,
        "frame": _frame(flow_run, moment.seq),
        "frame_template": FRAME,
        "notice": notice,
    }


def _frame(flow_run: FlowRun, seq: int) -> FlowReplayFrame:
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
