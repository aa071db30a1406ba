"""The parts of the pages of flows: the head of a flow run, its graph, a definition in words, a draft with errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from django.http import HttpRequest

from runs import demo
from runs.flows.kernel.graph import graph_of
from runs.flows.kernel.snapshot import EdgeStatus, NodeStatus, Snapshot, initial
from runs.pages.flows.edit_flow_page import FlowDraft
from runs.pages.flows.flow_page import shown_definition
from runs.pages.flows.flow_replay_frame import FlowReplayFrame, ReplayedNode
from runs.pages.flows.flow_run_parts import FlowRunGraph, FlowRunHead, OpenNodeRun, ShownNode, ShownVisit, context_of
from runs.pages.flows.flows_page import ListedFlowRun
from runs.pages.flows.graph_drawing import KINDS, drawing_of, executor_of, title_of
from runs.pages.timeline.replay_player import PlayerMoment
from runs.pages.timeline.window import Window
from runs.statuses import RunStatus
from tests.support.components.rendered_examples import Example
from tests.support.components.sample_content import SampleContent
from tests.support.components.sample_events import message_events
from tests.support.components.sample_rows import BEGIN, sample_id
from tests.support.components.timeline_examples import BASE, items_of
from timeline.display import clean, clip

_NODE_STATUSES = (NodeStatus.DONE, NodeStatus.RUNNING, NodeStatus.FAILED, NodeStatus.PENDING, NodeStatus.SKIPPED)


def flow_examples(request: HttpRequest, content: SampleContent) -> Iterator[Example]:
    """Yield the parts of the pages."""
    definition = _definition(content)
    yield Example("Head of a flow run", "runs/flows/_head.html", {"head": _head(content)})
    yield Example("Graph", "runs/flows/_graph.html", context_of(_graph(definition, content)))
    yield Example("Definition in words", "runs/flows/_definition.html", shown_definition(definition))
    yield Example("Replay", "runs/flows/_flow_replay_frame.html", _replay(definition, content))
    errors = [("nodes", clean(content.error)), ("", clean(content.title))][: content.rows]
    yield Example("Draft", "runs/flows/_draft.html", {"draft": FlowDraft(0, errors=errors, flow=None)})
    yield Example("Flow runs", "runs/flows/_flow_runs.html", {"flow_runs": _listed(content), "with_flow": True})


def _definition(content: SampleContent) -> dict[str, Any]:
    """Return the flow of the demo with a node for each status, and with the titles and texts of the content."""
    texts = {"title": content.title, "question": content.text, "prompt": content.text}
    nodes = [
        {**node, **{key: text for key, text in texts.items() if key in node or (key == "prompt" and "agent" in node)}}
        for node in demo.FLOW["nodes"]
    ]
    value = {"id": "report", "type": "constant", "title": content.title, "value": content.payload}
    edges = [*demo.FLOW["edges"], {"from": "review", "to": "report", "when": "outputs.review != ''"}]
    return {
        **demo.FLOW,
        "nodes": [*nodes, value],
        "edges": edges,
        "inputs": content.arguments,
        "state": content.payload,
    }


def _graph(definition: Mapping[str, Any], content: SampleContent) -> FlowRunGraph:
    graph = graph_of(definition)
    snapshot = _snapshot(initial(graph, str(sample_id(1))))
    nodes = [
        ShownNode(
            node.id, title_of(node), KINDS[node.kind], executor_of(node), snapshot["nodeStatus"][node.id],
            clean(content.name), _visits(content), more_visits=content.rows,
        )
        for node in graph.nodes.values()
    ]  # fmt: skip
    hrefs = {node.id: f"#node-{node.id}" for node in nodes}
    return FlowRunGraph(drawing_of(definition, snapshot, hrefs), nodes, edges=[])


def _snapshot(snapshot: Snapshot) -> Snapshot:
    """Give the nodes and the edges a status each."""
    for number, node in enumerate(snapshot["nodeStatus"]):
        snapshot["nodeStatus"][node] = _NODE_STATUSES[number % len(_NODE_STATUSES)].value
    for number, edge in enumerate(snapshot["edgeStatus"]):
        snapshot["edgeStatus"][edge] = list(EdgeStatus)[number % 3].value
    return snapshot


def _visits(content: SampleContent) -> list[ShownVisit]:
    name = clean(content.name)
    return [ShownVisit(name or "run", sample_id(at), RunStatus.FAILED, name) for at in content.entries]


def _head(content: SampleContent) -> FlowRunHead:
    name, title = clean(content.name), clip(content.title, 80).text
    open_runs = [
        OpenNodeRun(sample_id(at), title, name, RunStatus.WAITING, "for an answer", needs_person=at == 1)
        for at in content.entries
    ]
    return FlowRunHead(
        id=sample_id(1), project="sample", slug="sample", version=3, has_flow=bool(content.rows),
        title=clean(content.title) or "sample", status=RunStatus.RUNNING, reason=name,
        error=clip(content.error, 2048).text, created_at=BEGIN, created_by=name,
        started_at=BEGIN if content.rows else None, completed_at=BEGIN + timedelta(minutes=4),
        duration="4 min 00 s" if content.rows else "", counts_from=None, runs=content.number, tokens=content.number,
        cost="$4.20" if content.rows else "", has_fixtures=True,
        no_resume="Only a paused flow run can be resumed. This one is running.", no_pause="", no_stop="",
        open_runs=open_runs, more_open_runs=content.rows,
    )  # fmt: skip


def _replay(definition: Mapping[str, Any], content: SampleContent) -> Mapping[str, Any]:
    graph, text = graph_of(definition), clean(content.title)
    runs = [(clean(content.name) or "run", sample_id(at)) for at in content.entries]
    frame = FlowReplayFrame(
        window=Window(items_of(content, message_events(content), 1), last_seq=40, older=content.rows or None),
        status=RunStatus.RUNNING,
        counts=[(status.value, content.number) for status in _NODE_STATUSES],
        drawing=drawing_of(definition, _snapshot(initial(graph, str(sample_id(1)))), {}),
        nodes=[
            ReplayedNode(
                node.id, title_of(node), status.value, text, clip(content.output, 200).text, runs, content.rows
            )
            for node, status in zip(graph.nodes.values(), _NODE_STATUSES, strict=False)
        ],
        loops=[(text, at, 3) for at in content.entries],
        waiting_messages=content.rows,
    )
    return {"frame": frame, "moment": PlayerMoment(12, 40, ""), "page": BASE, "state_url": "?", "replay_url": "?"}


def _listed(content: SampleContent) -> list[ListedFlowRun]:
    name = clean(content.name)
    return [
        ListedFlowRun(sample_id(at), name, at, RunStatus.FAILED, name, BEGIN, name, "4 min 00 s")
        for at in content.entries
    ]
