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
from agentops.base.redaction.masked_secrets import masked
from agentops.base.refusals import InvalidQuery, NotFound
from runs.actions import flow_definitions
from runs.flows.kernel.graph import Edge, Node, graph_of
from runs.models import Flow, FlowRun, FlowVersion
from runs.pages.agents.agent_page import ShownVersion
from runs.pages.agents.agents_page import page_context
from runs.pages.compare.differences import TextDifference, difference
from runs.pages.flows.flows_page import listed
from runs.pages.flows.graph_drawing import KINDS, drawing_of, executor_of, title_of
from timeline.display import Clip, clean, clip

RECENT_RUNS = 10
VERSIONS = 50
MAX_NUMBER = 2**31 - 1
#: Maximum bytes of a definition on a page.
MAX_DEFINITION = 128 * 1024
MAX_TEXT = 400


@dataclass(frozen=True)
class NodeRow:
    """A node described in words."""

    id: str
    title: str
    kind: str
    by: str
    #: Its prompt, question, arguments or value.
    asks: Clip
    when: str
    continues_on_error: bool


@dataclass(frozen=True)
class EdgeRow:
    """An edge described in words."""

    source: str
    target: str
    when: str
    #: The repetition, such as "once for each item of inputs.files".
    repeats: str
    any_gate: bool


@require_safe
def detail(request: HttpRequest, project: str, flow: str) -> HttpResponse:
    """Show the current version of a flow."""
    entry = enter(principal_of(request), project, Action.READ)
    found = flow_definitions.find(entry.project, flow)
    return _page(request, entry, found, found.definition, None)


@require_safe
def definition_file(request: HttpRequest, project: str, flow: str, number: int | None = None) -> HttpResponse:
    """Return the definition of a flow, or of one version, as a file for `flow apply`. Secrets are masked."""
    entry = enter(principal_of(request), project, Action.READ)
    found = flow_definitions.find(entry.project, flow)
    definition = found.definition if number is None else _definition_at(found, number)
    response = HttpResponse(f"{_json(masked(dict(definition)))}\n", content_type="application/json")
    name = f"{found.slug}.json" if number is None else f"{found.slug}.v{number}.json"
    response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    return response


@require_safe
def version(request: HttpRequest, project: str, flow: str, number: int) -> HttpResponse:
    """Show a version of a flow and its changes."""
    entry = enter(principal_of(request), project, Action.READ)
    found = flow_definitions.find(entry.project, flow)
    return _page(request, entry, found, _definition_at(found, number), number)


def _page(
    request: HttpRequest, entry: EnteredProject, flow: Flow, definition: Mapping[str, Any], number: int | None
) -> HttpResponse:
    is_version = number is not None
    before = _before(request)
    rows = flow_definitions.versions_of(flow)
    versions = list((rows if before is None else rows.filter(number__lt=before))[: VERSIONS + 1])
    runs = FlowRun.objects.filter(flow=flow).newest_first()
    context = {
        **page_context(entry, "flows"),
        "flow": flow,
        "title": clean(str(definition.get("title") or "")),
        "number": number or flow.version,
        "is_current": number in (None, flow.version),
        "is_version_page": is_version,
        "definition_url": _definition_url(flow, number),
        **shown_definition(definition),
        "changes": _changes_of(flow, number) if number else None,
        "versions": [] if is_version else [_shown(each, flow) for each in versions[:VERSIONS]],
        "older": versions[VERSIONS - 1].number if len(versions) > VERSIONS else None,
        "flow_runs": [] if is_version else listed(runs[:RECENT_RUNS], database_clock.now()),
    }
    return render(request, "runs/flows/flow.html", context)


def shown_definition(definition: Mapping[str, Any]) -> dict[str, Any]:
    """Return the drawing of a checked definition, and its parts in words."""
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
    """Return a value as JSON for display; empty for an empty one."""
    return "" if value in (None, {}, []) else clip(_json(value), MAX_DEFINITION).text


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _node(node: Node) -> NodeRow:
    asked = next((node.spec[name] for name in ("prompt", "question", "arguments", "value") if name in node.spec), "")
    return NodeRow(
        id=node.id,
        title=title_of(node),
        kind=KINDS[node.kind],
        by=executor_of(node),
        asks=clip(asked if isinstance(asked, str) else _json(asked), MAX_TEXT),
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


def _shown(each: FlowVersion, flow: Flow) -> ShownVersion:
    changed = ", ".join(map(str, each.changed)) or ("created" if each.number == 1 else "")
    return ShownVersion(
        each.number, each.created_at, clean(each.created_by), clean(changed), each.number == flow.version
    )


def _changes_of(flow: Flow, number: int) -> list[TextDifference]:
    """Return the changes of a version; empty for the first version."""
    before = flow_definitions.definition_at(flow, number - 1) if number > 1 else None
    return [] if before is None else changes_between(before, _definition_at(flow, number))


def changes_between(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[TextDifference]:
    """Return the diffs of the parts that differ between two definitions, with secrets masked."""
    old, new = masked(dict(before)), masked(dict(after))
    names = [name for name in dict.fromkeys([*new, *old]) if old.get(name) != new.get(name)]
    return [difference(name, _text_of_part(old.get(name)), _text_of_part(new.get(name))) for name in names]


def _text_of_part(value: Any) -> str:
    return value if isinstance(value, str) else text_of(value)


def _definition_at(flow: Flow, number: int) -> dict[str, Any]:
    definition = flow_definitions.definition_at(flow, number) if 0 < number <= MAX_NUMBER else None
    if definition is None:
        raise NotFound(f"version {number} of the flow {flow.slug!r} is not stored", code="flow_version_not_found")
    return definition


def _definition_url(flow: Flow, number: int | None) -> str:
    if number is None:
        return reverse("runs:flow-definition", args=[flow.project.slug, flow.slug])
    return reverse("runs:flow-version-definition", args=[flow.project.slug, flow.slug, number])


def _before(request: HttpRequest) -> int | None:
    text = request.GET.get("before", "")
    if text and not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InvalidQuery(f"before must be the number of a version, not {text[:64]!r}")
    return int(text) if text else None
