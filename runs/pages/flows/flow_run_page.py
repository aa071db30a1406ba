"""The page of a flow run: its graph with the state of each node, the runs of the nodes, and the timeline.

Also the state of a flow run at an event, as a page and for the replay.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from agentops.accounts.access import Action, Principal, actions_of
from agentops.accounts.models import audit_models
from agentops.accounts.requests import principal_of
from agentops.base.http.methods import require_safe
from runs.access import flow_run_for
from runs.flows.kernel.graph import Graph, graph_of
from runs.flows.kernel.snapshot import Snapshot, visit_of
from runs.models import FlowRun
from runs.pages.flows.flow_page import text_of
from runs.pages.flows.flow_run_parts import context_of, graph_at, head_of, name_of_visit, status_counts
from runs.pages.flows.graph_drawing import Drawing, drawing_of, progress_of, title_of
from runs.pages.run.any_run import address_of, page_context, tab_links
from runs.pages.run.timeline_page import chosen_event, timeline_context
from runs.pages.timeline import window
from runs.pages.timeline.window import Window
from runs.queries.flow_states import snapshot_at
from timeline.display import clean, clip
from timeline.events import Show

#: The HTTP status that makes htmx stop polling.
STOP_POLLING = 286


@require_safe
def detail(request: HttpRequest, flow_run_id: UUID) -> HttpResponse:
    """Show a flow run, with the part of its timeline selected by `event`, `step`, `before` or `after`."""
    principal = principal_of(request)
    incarnation = audit_models.current_incarnation()
    flow_run = flow_run_for(principal, flow_run_id)
    context = {
        **page_context(principal, flow_run),
        **tab_links(flow_run, "detail"),
        **timeline_context(request, flow_run, incarnation, Show.ALL),
        **_changing(principal, flow_run),
        "inputs": text_of(flow_run.inputs),
    }
    return render(request, "runs/flows/flow_run.html", context)


@require_safe
def changes(request: HttpRequest, flow_run_id: UUID) -> HttpResponse:
    """Return the parts that change on an open page: its head and its graph, as fragments."""
    principal = principal_of(request)
    flow_run = flow_run_for(principal, flow_run_id)
    context = {"project": flow_run.project, **_changing(principal, flow_run)}
    status = STOP_POLLING if flow_run.state.terminal else 200
    return render(request, "runs/flows/_flow_run_changes.html", context, status=status)


@require_safe
def state(request: HttpRequest, flow_run_id: UUID) -> HttpResponse:
    """Show the state of a flow run after event `seq`, by default after the last one."""
    principal = principal_of(request)
    flow_run = flow_run_for(principal, flow_run_id)
    last_seq = flow_run.log.last_seq
    seq, notice = chosen_event(request, last_seq, default=last_seq)
    snapshot = snapshot_at(flow_run, seq)
    parts = [
        ("Outputs", snapshot["outputs"], "No node has an output yet."),
        ("State", snapshot["state"], "The flow has no state."),
        ("Loops", snapshot["loopCounters"], "The flow has no loops."),
        ("Messages that wait for a resume", snapshot["inbox"], "None."),
        ("Sessions of nodes", snapshot["agentSessions"], "None yet."),
    ]
    context = {
        **page_context(principal, flow_run),
        **tab_links(flow_run, "state"),
        **context_of(graph_at(flow_run, snapshot)),
        "head": head_of(flow_run, allowed=Action.OPERATE in actions_of(principal, flow_run.project_id)),
        "status": snapshot["status"],
        "seq": seq,
        "last_seq": last_seq,
        "notice": notice,
        "previous": seq - 1 if seq > 1 else None,
        "next": seq + 1 if seq < last_seq else None,
        "parts": [(title, text_of(value), empty) for title, value, empty in parts],
        "rows": window.up_to(flow_run.pk, seq),
        "page": address_of(flow_run),
        "state_url": address_of(flow_run, "state"),
    }
    return render(request, "runs/flows/flow_run_state.html", context)


def _changing(principal: Principal, flow_run: FlowRun) -> dict[str, Any]:
    """Return the context of the parts that change on an open page."""
    actions = actions_of(principal, flow_run.project_id)
    return {
        "may_manage": Action.MANAGE in actions,
        "head": head_of(flow_run, allowed=Action.OPERATE in actions),
        **context_of(graph_at(flow_run)),
    }


#: Maximum linked runs of a node, and bytes of an output.
MAX_RUNS, OUTPUT_BYTES = 10, 200


@dataclass(frozen=True)
class ReplayedNode:
    """A node at an event."""

    id: str
    title: str
    status: str
    progress: str
    #: The beginning of the output; empty without one.
    output: str
    #: Labels and IDs of the newest runs opened so far, newest first.
    runs: list[tuple[str, UUID]]
    #: Number of earlier runs.
    more_runs: int


@dataclass(frozen=True)
class FlowReplayFrame:
    """The content of the page of a flow run at an event."""

    window: Window
    status: str
    counts: list[tuple[str, int]]
    drawing: Drawing
    nodes: list[ReplayedNode]
    #: Loop edges that were followed: the key, how often, and the limit.
    loops: list[tuple[str, int, int]]
    #: Number of messages that nodes receive when the flow run is resumed.
    waiting_messages: int


def flow_frame(flow_run: FlowRun, seq: int) -> FlowReplayFrame:
    """Return the content of the page at event `seq`."""
    graph, snapshot = graph_of(flow_run.definition), snapshot_at(flow_run, seq)
    nodes = _nodes(graph, snapshot)
    hrefs = {node.id: _href(node) for node in nodes}
    counters = snapshot["loopCounters"]
    return FlowReplayFrame(
        window=window.up_to(flow_run.pk, seq),
        status=snapshot["status"],
        counts=status_counts(snapshot["nodeStatus"].values()),
        drawing=drawing_of(flow_run.definition, snapshot, hrefs),
        nodes=nodes,
        loops=[(loop.key, counters[loop.key], loop.max_iterations or 0) for loop in graph.loops if counters[loop.key]],
        waiting_messages=sum(map(len, snapshot["inbox"].values())),
    )


def _href(node: ReplayedNode) -> str:
    """Return the URL of the only run of a node, or else of its row in the table."""
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
    """Return the beginning of the output of a node; empty without one."""
    if node not in outputs:
        return ""
    value = outputs[node]
    return clip(clean(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)), OUTPUT_BYTES).text
