"""The page of components, for superusers, with its forms and parts of flows, and the URLs of a site that serves it.

It renders every component of pages with the templates that pages use. Served by tests, and by `make components` for
people who change a template. Its content is in component_samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from django import forms
from django.http import FileResponse, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render
from django.urls import path, reverse

from agentops import urls as site
from agentops.accounts.access import Action, may, projects_for
from agentops.accounts.errors import RoleRequired
from agentops.accounts.requests import principal_of
from agentops.accounts.settings_pages.page_parts import key_form, member_form
from agentops.accounts.settings_pages.redaction_page import SecretForm
from agentops.base.http.methods import require_safe
from agentops.base.refusals import InvalidQuery, NotFound
from runs import demo
from runs.agents.definition import examine
from runs.flows.kernel.graph import graph_of
from runs.flows.kernel.snapshot import EdgeStatus, NodeStatus, Snapshot, initial
from runs.models import Delivery, FlowRun, Sink
from runs.pages.agents.definition_form import DefinitionForm
from runs.pages.agents.edit_page import AgentDraft
from runs.pages.agents.shown_agent import tool_facts
from runs.pages.content.differences import difference
from runs.pages.flows.edit_flow_page import FlowDraft
from runs.pages.flows.flow_page import shown_definition
from runs.pages.flows.flow_run_page import FlowReplayFrame, ReplayedNode
from runs.pages.flows.flow_run_parts import FlowRunGraph, FlowRunHead, OpenNodeRun, ShownNode, ShownVisit, context_of
from runs.pages.flows.flows_page import ListedFlowRun
from runs.pages.flows.graph_drawing import KINDS, drawing_of, executor_of, title_of
from runs.pages.forms.fields import CODE, HiddenURL, OneLineField, TextField
from runs.pages.run.replay_page import PlayerMoment
from runs.pages.settings.sink_page import prepared
from runs.pages.timeline.window import Window
from runs.statuses import RunStatus
from runs.tools.catalogue import TOOLS
from tests.support.component_list_examples import basic_examples, list_examples, overview_examples
from tests.support.component_run_examples import (
    BASE,
    Example,
    ExampleFrame,
    Examples,
    content_examples,
    items_of,
    render_examples,
    run_examples,
    timeline_examples,
)
from tests.support.component_samples import (
    BEGIN,
    ContentKind,
    SampleContent,
    content_of,
    message_events,
    sample_id,
    sample_project,
)
from timeline.display import clean, clip


def form_examples(request: HttpRequest, content: SampleContent) -> Iterator[Example]:
    """Yield forms filled with invalid content."""
    yield Example("Fields of an agent", "runs/agents/_agent_fields.html", _agent(content), ExampleFrame.FORM)
    errors = [("/policies", clean(content.error)), ("", clean(content.error))][: content.rows]
    draft = AgentDraft(0, content.text, errors, agent=None, origin=0, stored={}, seen={})
    yield Example("Agent as text", "runs/agents/_agent_text.html", {"draft": draft}, ExampleFrame.FORM)
    changed = [difference("instructions", content.text, content.title)][: content.rows]
    conflict = {"what": "this agent", "conflict": changed, "version": 2, "url": "#"}
    saved = {"created_by": content.name, "number": 2, "created_at": BEGIN}
    yield Example("Conflict", "runs/forms/_conflict.html", {**conflict, "saved": saved})
    yield Example("Preview of changes", "runs/forms/_preview.html", {"preview": changed, "version": 2})
    yield from _of_fields(content)
    yield from _of_sinks(content)
    yield from _of_projects(content)


def _of_sinks(content: SampleContent) -> Iterator[Example]:
    name, error = clean(content.name), clean(content.error)
    sink = {"project": sample_project(content), "sink": Sink(pk=sample_id(5), name=name or "sink")}
    yield Example("Way back to a sink", "runs/sinks/_head.html", sink)
    test = prepared(Delivery(state=Delivery.State.DEAD, error=error, response=content.output, created_at=BEGIN))
    yield Example("Test of a sink", "runs/sinks/_test.html", {"test": test})


def _of_fields(content: SampleContent) -> Iterator[Example]:
    text = clean(content.text)

    class ExampleForm(forms.Form):
        line = OneLineField("URL", text, required=True)
        area = TextField("Headers", f"{text} `{clean(content.name)}`", CODE)
        url = OneLineField("Slack webhook", text, {"placeholder": clean(content.name)}, widget=HiddenURL)
        flag = forms.BooleanField(required=False, label="Remove this URL", help_text=text)

    form = ExampleForm({"line": content.title, "area": content.output, "url": content.title, "flag": "on"})
    for field in form:
        if content.rows:
            form.add_error(field.name, clean(content.error))
        yield Example(f"Field: {field.label}", "_field.html", {"field": field}, ExampleFrame.FORM)
    yield Example("Errors of a form", "_form_errors.html", {"form": _refused(form, content)})


def _of_projects(content: SampleContent) -> Iterator[Example]:
    project = sample_project(content)
    member = member_form({"who": content.text, "role": content.name})
    yield Example("New member", "accounts/_member_form.html", {"form": _refused(member, content), "project": project})
    key = key_form({"name": content.title * 2, "scopes": ["read", content.name], "days": "30"})
    yield Example("New API key", "accounts/_key_form.html", {"form": _refused(key, content), "project": project})
    for field in SecretForm({"name": content.text, "secret": ""}):
        yield Example(f"Redaction rule: {field.label}", "_field.html", {"field": field}, ExampleFrame.FORM)


def _refused(form: Any, content: SampleContent) -> Any:
    """Return the form with its errors and an additional error that belongs to no field."""
    form.add_error(None, clean(content.error) or "Not saved")
    return form


def _agent(content: SampleContent) -> Mapping[str, Any]:
    """Return the form of a definition with the errors from the product's validation."""
    rule = {"action": content.name, "tools": "(", "reason": content.text, "expires": content.title}
    definition = {
        "agent_id": content.name,
        "provider": content.name,
        "model": content.title,
        "instructions": content.markdown,
        "tools": [content.name],
        "max_steps": 0,
        "settings": {"temperature": content.rows, "root": content.name},
        "policies": {"approvals": [rule] * min(content.rows, 3), "on_error": {"action": "resume", "attempts": 0}},
    }
    form = _sent(DefinitionForm(definition))
    form.add_problems(examine(form.definition()).problems)
    tools = [(tool_facts(each), at % 2 == 0) for at, each in enumerate(TOOLS.entries()[:6])]
    return {"form": form, "models": [], "tools": tools}


def _sent(form: DefinitionForm) -> DefinitionForm:
    """Return the form as a browser sends it."""
    data = QueryDict(mutable=True)
    for part in [form, *(row for rows in form.lists.values() for row in [rows.management_form, *rows])]:
        data.update({field.html_name: "" if field.value() is None else str(field.value()) for field in part})
    data.setlist("tools", form.chosen_tools)
    return DefinitionForm(form.stored, data)


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
            node.id,
            title_of(node),
            KINDS[node.kind],
            executor_of(node),
            snapshot["nodeStatus"][node.id],
            clean(content.name),
            _visits(content),
            more_visits=content.rows,
        )
        for node in graph.nodes.values()
    ]
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
    flow_run = FlowRun(
        pk=sample_id(1),
        project=sample_project(content),
        flow_id=sample_id(2) if content.rows else None,
        definition={"flow_id": "sample"},
        flow_version=3,
        status=RunStatus.RUNNING,
        created_at=BEGIN,
        started_at=BEGIN if content.rows else None,
        completed_at=BEGIN + timedelta(minutes=4),
    )
    return FlowRunHead(
        flow_run,
        title=clean(content.title) or "sample",
        reason=name,
        error=clip(content.error, 2048).text,
        created_by=name,
        duration="4 min 00 s" if content.rows else "",
        counts_from=None,
        runs=content.number,
        tokens=content.number,
        cost="$4.20" if content.rows else "",
        has_fixtures=True,
        no_resume="Only a paused flow run can be resumed. This one is running.",
        no_pause="",
        no_stop="",
        open_runs=open_runs,
        more_open_runs=content.rows,
    )


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


MAX_CHOICES = 200
STYLE = Path(__file__).parent / "components/components.css"


@dataclass(frozen=True)
class ComponentGroup:
    """Components that share one page. `has_heading`: a component contains the level 1 heading."""

    name: str
    label: str
    examples: Examples
    has_heading: bool = False


GROUPS = {
    group.name: group
    for group in (
        ComponentGroup("basics", "Basics", basic_examples),
        ComponentGroup("timeline", "Timeline", timeline_examples),
        ComponentGroup("content", "Content", content_examples),
        ComponentGroup("run", "Run", run_examples, has_heading=True),
        ComponentGroup("lists", "Lists", list_examples),
        ComponentGroup("overview", "Overview", overview_examples),
        ComponentGroup("flows", "Flows", flow_examples, has_heading=True),
        ComponentGroup("forms", "Forms", form_examples),
    )
}


@require_safe
def index(request: HttpRequest, group: str = "basics") -> HttpResponse:
    """Show the components of a group with the content that `content` names, to superusers."""
    principal = principal_of(request)
    if not may(principal, Action.SUPER, None):
        raise RoleRequired("only superusers may see the page of components")
    chosen, name = GROUPS.get(group), request.GET.get("content") or ContentKind.ORDINARY
    if chosen is None:
        raise NotFound(f"there is no group of components named {group[:64]!r}")
    if name not in tuple(ContentKind):
        raise InvalidQuery(f"content must be one of {', '.join(ContentKind)}, not {name[:64]!r}")
    content = content_of(ContentKind(name))
    context = {
        "projects": projects_for(principal).order_by("name", "pk")[:MAX_CHOICES],
        "group": chosen,
        "groups": [(each, reverse("components", args=[each.name])) for each in GROUPS.values()],
        "kinds": [(kind, f"?content={kind}") for kind in ContentKind],
        "kind": content.kind,
        "examples": render_examples(request, chosen.examples(request, content)),
        # The head of a run shows the state of the connection.
        "has_run_line": chosen.has_heading,
    }
    return render(request, "components/components.html", context)


@require_safe
def style(_: HttpRequest) -> FileResponse:
    """Return the style sheet of the page."""
    return FileResponse(STYLE.open("rb"), content_type="text/css")


handler400, handler403, handler404, handler500 = site.handler400, site.handler403, site.handler404, site.handler500
urlpatterns = [
    path("components", index, name="all-components"),
    path("components/components.css", style, name="components-style"),
    path("components/<slug:group>", index, name="components"),
    *site.urlpatterns,
]
