"""The page of a flow: its drawing, its nodes and edges in words, its versions and its newest runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse

from agentops.accounts.access import Action, EnteredProject, enter
from agentops.accounts.requests import principal_of
from agentops.base import database_clock
from agentops.base.http.methods import require_safe
from agentops.base.redaction.json_values import masked
from agentops.base.refusals import NotFound
from runs.actions import flow_definitions
from runs.flows.kernel.graph import Edge, Node, graph_of
from runs.models import Flow, FlowRun
from runs.pages.agents.agents_page import listed_version
from runs.pages.content.differences import TextDifference, difference
from runs.pages.flows.flows_page import listed
from runs.pages.flows.graph_drawing import KINDS, drawing_of, executor_of, title_of
from runs.pages.page_parts import parse_version, project_context, split_page
from timeline.display import Clip, clean, clip

#: Runs and versions on the page of a flow.
RECENT_RUNS, VERSIONS = 10, 50
#: The largest number that the database stores as a version.
MAX_NUMBER = 2**31 - 1
#: Maximum bytes of a definition on a page, and of a prompt in the table of nodes.
MAX_DEFINITION, MAX_TEXT = 128 * 1024, 400


@dataclass(frozen=True)
class NodeRow:
    """A node described in words."""

    id: str
    title: str
    kind: str
    #: The agent or the tool.
    by: str
    #: The prompt, the question, the arguments or the value.
    asks: Clip
    #: The condition under which the node is entered; empty: always.
    when: str
    continues_on_error: bool


@dataclass(frozen=True)
class EdgeRow:
    """An edge described in words."""

    source: str
    target: str
    #: The condition under which the edge is followed; empty: always.
    when: str
    #: The repetition, such as "once for each item of inputs.files".
    repeats: str
    #: Whether the target starts after any of its edges, instead of all.
    any_gate: bool


@require_safe
def detail(request: HttpRequest, project: str, flow: str) -> HttpResponse:
    """Show the current version of a flow."""
    entry = enter(principal_of(request), project, Action.READ)
    return _page(request, entry, flow_definitions.find(entry.project, flow), None)


@require_safe
def definition_file(request: HttpRequest, project: str, flow: str, number: int | None = None) -> HttpResponse:
    """Return the definition of a flow, or of one version, as a file for `flow apply`. Secrets are masked."""
    entry = enter(principal_of(request), project, Action.READ)
    stored_flow = flow_definitions.find(entry.project, flow)
    definition = _definition_at(stored_flow, number)
    response = HttpResponse(f"{_json(masked(dict(definition)))}\n", content_type="application/json")
    name = f"{stored_flow.slug}.json" if number is None else f"{stored_flow.slug}.v{number}.json"
    response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return response


@require_safe
def version(request: HttpRequest, project: str, flow: str, number: int) -> HttpResponse:
    """Show one version of a flow, and what it changed."""
    entry = enter(principal_of(request), project, Action.READ)
    return _page(request, entry, flow_definitions.find(entry.project, flow), number)


def _page(request: HttpRequest, entry: EnteredProject, flow: Flow, number: int | None) -> HttpResponse:
    """Show the version `number` of a flow. None: the current version, with the flow's versions and newest runs."""
    definition, is_version = _definition_at(flow, number), number is not None
    before = request.GET.get("before", "")
    rows = flow_definitions.versions_of(flow)
    if before:
        rows = rows.filter(number__lt=parse_version(before, "before", "flow"))
    versions, has_more = split_page(rows, VERSIONS)
    runs = FlowRun.objects.filter(flow=flow).newest_first()
    context = {
        **project_context(entry, "flows"),
        "flow": flow,
        "title": clean(str(definition.get("title") or "")),
        "number": number or flow.version,
        "is_current": number in (None, flow.version),
        "is_version_page": is_version,
        "definition_url": _definition_url(flow, number),
        **shown_definition(definition),
        "changes": _changes_of(flow, number) if number else None,
        "versions": [] if is_version else [listed_version(each, flow.version) for each in versions],
        "older": versions[-1].number if has_more else None,
        "flow_runs": [] if is_version else listed(runs[:RECENT_RUNS], database_clock.now()),
    }
    return render(request, "runs/flows/flow.html", context)


def shown_definition(definition: Mapping[str, Any]) -> dict[str, Any]:
    """Return the template context that shows a valid definition: its drawing, and its nodes and edges in words."""
    graph = graph_of(definition)
    return {
        "drawing": drawing_of(definition),
        "description": clean(str(definition.get("description") or "")),
        "nodes": [_node(node) for node in graph.nodes.values()],
        "edges": [_edge(edge, edge.target in graph.any_gates) for edge in graph.edges],
        "inputs": text_of(definition.get("inputs")),
        "state": text_of(definition.get("state")),
        "json": clip(_json(masked(dict(definition))), MAX_DEFINITION),
    }


def text_of(value: Any) -> str:
    """Return a value as JSON for display; an empty string for None, {} and []."""
    return "" if value in (None, {}, []) else clip(_json(value), MAX_DEFINITION).text


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _node(node: Node) -> NodeRow:
    asks = next((node.spec[name] for name in ("prompt", "question", "arguments", "value") if name in node.spec), "")
    return NodeRow(
        id=node.id,
        title=title_of(node),
        kind=KINDS[node.kind],
        by=executor_of(node),
        asks=clip(asks if isinstance(asks, str) else _json(asks), MAX_TEXT),
        when=clean(node.when or ""),
        continues_on_error=node.continues_on_error,
    )


def _edge(edge: Edge, any_gate: bool) -> EdgeRow:
    repeats = ""
    if edge.each_in is not None:
        repeats = f"once for each {edge.each_as} of {clean(edge.each_in)}"
    elif edge.max_iterations is not None:
        repeats = f"leads back at most {edge.max_iterations} time{'s' * (edge.max_iterations != 1)}"
    return EdgeRow(edge.source, edge.target, clean(edge.when or ""), repeats, any_gate)


def _changes_of(flow: Flow, number: int) -> list[TextDifference]:
    """Return what a version changed; empty for the first version, and if the previous one is not stored."""
    before = flow_definitions.definition_at(flow, number - 1) if number > 1 else None
    return [] if before is None else changes_between(before, _definition_at(flow, number))


def changes_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[TextDifference]:
    """Return the diffs of the parts that differ between two definitions, with secrets masked."""
    old, new = masked(dict(before)), masked(dict(after))
    names = [name for name in dict.fromkeys([*new, *old]) if old.get(name) != new.get(name)]
    return [difference(name, _text_of_part(old.get(name)), _text_of_part(new.get(name))) for name in names]


def _text_of_part(value: Any) -> str:
    return value if isinstance(value, str) else text_of(value)


def _definition_at(flow: Flow, number: int | None) -> Mapping[str, Any]:
    """Return the definition of a version, by default the current one. Raises NotFound."""
    if number is None:
        current: dict[str, Any] = flow.definition
        return current
    definition = flow_definitions.definition_at(flow, number) if 0 < number <= MAX_NUMBER else None
    if definition is None:
        raise NotFound(f"version {number} of the flow {flow.slug!r} is not stored", code="flow_version_not_found")
    return definition


def _definition_url(flow: Flow, number: int | None) -> str:
    if number is None:
        return reverse("runs:flow-definition", args=[flow.project.slug, flow.slug])
    return reverse("runs:flow-version-definition", args=[flow.project.slug, flow.slug, number])
