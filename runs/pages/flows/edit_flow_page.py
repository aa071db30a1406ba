"""The form that creates and changes a flow as JSON or TOML, with a drawing that follows the text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from agentops.accounts.access import Action, EnteredProject, Principal, enter
from agentops.accounts.models import Project
from agentops.accounts.requests import principal_of
from agentops.accounts.settings_pages.page_parts import see_other
from agentops.base.http.methods import require_http_methods, require_POST
from agentops.base.redaction.json_values import MaskedSecrets, masked
from agentops.base.refusals import InvalidQuery
from runs.actions import flow_definitions
from runs.actions.flow_definitions import FlowChanged
from runs.agents.definition import NotADefinition, parse_definition
from runs.errors import InvalidFlow
from runs.models import Agent, Flow
from runs.pages.flows.flow_page import changes_between
from runs.pages.flows.graph_drawing import Drawing, drawing_of
from runs.pages.forms import fields
from runs.pages.forms.form_fields import Draft, json_of
from runs.pages.page_parts import enter_project, parse_version, project_context

#: Value of the form's button `do` that saves; every other one shows a preview.
SAVE = "save"


@dataclass(kw_only=True)
class FlowDraft(Draft):
    """The definition of a flow that a user edits."""

    flow: Flow | None
    definition: dict[str, Any] | None = None
    #: None if the text has errors that prevent a drawing.
    drawing: Drawing | None = None

    @property
    def stored(self) -> Mapping[str, Any]:
        """Return the definition of the version that a save replaces; empty for a new flow."""
        if self.flow is None:
            return {}
        definition = flow_definitions.definition_at(self.flow, self.base)
        if definition is None:
            raise InvalidQuery(f"the flow {self.flow.slug!r} has no version {self.base}")
        return definition


@require_http_methods(["GET", "HEAD", "POST"])
def new(request: HttpRequest, project: str) -> HttpResponse:
    """Show the form of a new flow, or of a copy of the flow `from`; or create the flow and redirect to it."""
    principal, entry = enter_project(request, project, Action.CONFIGURE)
    draft = FlowDraft(0, flow=None)
    if request.method == "POST":
        return _submit(request, principal, entry, draft)
    source = request.GET.get("from", "")
    if source:
        draft.text = json_of(masked({**flow_definitions.find(entry.project, source).definition, "flow_id": ""}))
    else:
        draft.text = json_of(_example(entry.project))
    _examine(entry.project, draft)
    if source:
        draft.errors = []  # the copy has no name yet
    return _render(request, entry, draft)


@require_http_methods(["GET", "HEAD", "POST"])
def edit(request: HttpRequest, project: str, flow: str) -> HttpResponse:
    """Show the form of a flow, or save a new version and redirect to the flow. Status 409 for a conflict."""
    principal, entry = enter_project(request, project, Action.CONFIGURE)
    stored_flow = flow_definitions.find(entry.project, flow)
    if request.method == "POST":
        base = parse_version(request.POST.get("base", ""), "base", "flow")
        return _submit(request, principal, entry, FlowDraft(base, flow=stored_flow))
    draft = FlowDraft(stored_flow.version, json_of(masked(dict(stored_flow.definition))), flow=stored_flow)
    _examine(entry.project, draft)
    return _render(request, entry, draft)


@require_POST
def drawing(request: HttpRequest, project: str) -> HttpResponse:
    """Return the drawing and the errors of a text, as a fragment. Nothing is saved."""
    entry = enter(principal_of(request), project, Action.CONFIGURE)
    draft = FlowDraft(0, fields.text(request.POST.get("text", "")), flow=None)
    _examine(entry.project, draft)
    return render(request, "runs/flows/_draft.html", {"draft": draft})


def _submit(request: HttpRequest, principal: Principal, entry: EnteredProject, draft: FlowDraft) -> HttpResponse:
    """Save the submitted text, or show it again with its errors or a preview of the changes."""
    draft.text = fields.text(request.POST.get("text", ""))
    _examine(entry.project, draft)
    if draft.errors or draft.definition is None:
        return _render(request, entry, draft, status=422)
    if request.POST.get("do", SAVE) == SAVE:
        try:
            return _save(request, principal, entry, draft)
        except FlowChanged as refusal:
            return _show_conflict(request, entry, draft, refusal)
        except InvalidFlow as refusal:
            # An agent was deleted between the check and the save.
            draft.add_error(refusal)
            return _render(request, entry, draft, status=422)
    draft.preview = changes_between(draft.stored, draft.definition)
    return _render(request, entry, draft)


def _examine(project: Project, draft: FlowDraft) -> None:
    """Parse and check the text of a draft. Set its definition and errors, and its drawing if that is possible."""
    try:
        parsed = parse_definition(draft.text)
    except NotADefinition as error:
        draft.add_error(error)
        return
    if draft.flow is not None:
        parsed = MaskedSecrets(dict(draft.stored), dict(draft.stored)).restore(parsed)
        if parsed.get("flow_id", draft.flow.slug) != draft.flow.slug:
            text = f"The name of a flow cannot be changed: it is {draft.flow.slug!r}"
            draft.add_error(text, "/flow_id", parsed)
            return
        parsed["flow_id"] = draft.flow.slug
    definition, problems = flow_definitions.checked(project, parsed)
    for problem in problems:
        draft.add_error(problem.text, problem.pointer, parsed)
    draft.definition = definition
    if definition is not None and not any(problem.code in _UNDRAWABLE for problem in problems):
        draft.drawing = drawing_of(definition)


#: Problems with which the graph cannot be laid out.
_UNDRAWABLE = frozenset(
    {"duplicate_id", "unknown_node", "duplicate_edge", "uncounted_cycle", "invalid_loop", "no_start"}
)


def _save(request: HttpRequest, principal: Principal, entry: EnteredProject, draft: FlowDraft) -> HttpResponse:
    """Save the draft, and redirect to the flow. Raises FlowChanged after a concurrent change, or InvalidFlow."""
    flow, outcome = flow_definitions.apply(entry.project, draft.definition, by=principal, expected_version=draft.base)
    if outcome == "unchanged":
        messages.info(request, f"Nothing to save: version {flow.version} is the same.")
    else:
        messages.success(request, f"Version {flow.version} saved. Flow runs that exist keep their version.")
    return see_other("runs:flow", entry.project.slug, flow.slug)


def _show_conflict(request: HttpRequest, entry: EnteredProject, draft: FlowDraft, refusal: FlowChanged) -> HttpResponse:
    """Show changes that another user saved, next to the user's input. The next save replaces them."""
    if draft.flow is None:
        text = "The project already has a flow of this name. Choose another name, or change that flow"
        draft.add_error(text, "/flow_id", {})
        return _render(request, entry, draft, status=409)
    seen = draft.stored
    draft.flow.refresh_from_db()
    draft.base = draft.flow.version
    draft.conflict = changes_between(seen, draft.stored)
    draft.preview = changes_between(draft.stored, draft.definition or {})
    return _render(request, entry, draft, status=409)


def _render(request: HttpRequest, entry: EnteredProject, draft: FlowDraft, *, status: int = 200) -> HttpResponse:
    context = {**project_context(entry, "flows"), "draft": draft, "flow": draft.flow}
    return render(request, "runs/flows/flow_form.html", context, status=status)


def _example(project: Project) -> dict[str, Any]:
    """Return a small flow to start from, with an agent of the project, if any."""
    agent = Agent.objects.filter(project=project).order_by("slug").values_list("slug", flat=True).first()
    work: dict[str, Any] = {"id": "work", "type": "constant", "value": "{{ inputs.task }}"}
    if agent:
        work = {"id": "work", "type": "agent", "agent": agent, "prompt": "{{ inputs.task }}"}
    return {
        "flow_id": "my-flow",
        "title": "My flow",
        "inputs": {"type": "object", "properties": {"task": {"type": "string"}}, "required": ["task"]},
        "nodes": [
            work,
            {"id": "check", "type": "human", "question": "Is this right? {{ outputs.work }}", "choices": ["yes", "no"]},
        ],
        "edges": [
            {"from": "work", "to": "check"},
            {"from": "check", "to": "work", "when": "outputs.check == 'no'", "maxIterations": 3},
        ],
    }
