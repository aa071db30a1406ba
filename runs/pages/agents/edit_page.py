"""The forms that create and change an agent, as fields or as JSON or TOML.

The checks are the same as in `agent apply`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from agentops.accounts.access import Action, EnteredProject, Principal
from agentops.accounts.settings_pages.page_parts import see_other
from agentops.base.http.methods import require_http_methods
from agentops.base.redaction.json_values import MaskedSecrets, masked
from agentops.base.refusals import InvalidQuery
from runs.actions import agent_definitions
from runs.actions.agent_definitions import AgentChanged
from runs.agents.definition import Definition, NotADefinition, examine, parse_definition
from runs.agents.placement import DEFAULT_PRIORITY, DEFAULT_QUEUE, FIELDS
from runs.errors import InvalidAgent
from runs.models import Agent, AgentVersion
from runs.pages.agents.definition_fields import suggested_models
from runs.pages.agents.definition_form import DefinitionForm
from runs.pages.agents.shown_agent import changes_between, tool_facts
from runs.pages.forms import fields, form_fields
from runs.pages.forms.form_fields import Draft, NotShowable
from runs.pages.page_parts import enter_project, parse_seen, parse_version, project_context
from runs.tools.catalogue import TOOLS

#: The modes of the page, and values of the button `do` that switch to them.
FORM, TEXT = "form", "text"
#: Other values of `do`: save, and add a row to the list whose name follows. Every other one shows a preview.
SAVE, ADD = "save", "add:"
#: The definition that fills the form of a new agent.
NEW: dict[str, Any] = {
    "agent_id": "",
    "provider": "llm",
    "model": "",
    "instructions": "",
    "tools": [],
    "max_steps": 50,
    "settings": {},
    "policies": {},
    "queue": DEFAULT_QUEUE,
    "priority": DEFAULT_PRIORITY,
    "max_running": None,
}


@dataclass(kw_only=True)
class AgentDraft(Draft):
    """The definition of an agent that a user edits, as fields or as text."""

    #: None for a new agent.
    agent: Agent | None
    #: The version that filled the form; 0 for a new agent. After a conflict, `base` is a newer one.
    origin: int
    #: The definition of the version `origin`.
    stored: Mapping[str, Any]
    #: The placement that filled the form; after a conflict, a newer one. It has no versions.
    seen: Mapping[str, Any]
    #: The version that another user has saved meanwhile; None without a conflict, or if only the placement changed.
    latest: AgentVersion | None = None
    #: The agent that a new agent is copied from.
    source: str = ""
    mode: str = FORM
    #: Why the definition is edited as text.
    notice: str = ""
    form: DefinitionForm | None = None
    definition: dict[str, Any] = field(default_factory=dict)

    @property
    def has_errors(self) -> bool:
        return self.error_count > 0

    @property
    def error_count(self) -> int:
        return len(self.errors) if self.form is None else self.form.error_count

    @property
    def current(self) -> Mapping[str, Any]:
        """Return the definition of the version `base` with the placement `seen`, which a save replaces."""
        return NEW if self.agent is None else {**_definition_at(self.agent, self.base), **self.seen}

    @property
    def seen_text(self) -> str:
        """Return `seen` as JSON, for a field of the form."""
        return json.dumps(dict(self.seen))

    def show(self, definition: Mapping[str, Any], mode: str) -> None:
        """Fill the fields, or the text, with a definition. Uses text if a part of the definition has no field."""
        if mode == FORM:
            try:
                self.mode, self.form = FORM, DefinitionForm(definition)
                return
            except NotShowable as error:
                self.notice = f"This definition can only be edited as text: {error}."
        self.mode, self.text, self.form = TEXT, form_fields.json_of(masked(dict(definition))), None


@require_http_methods(["GET", "HEAD", "POST"])
def new(request: HttpRequest, project: str) -> HttpResponse:
    """Show the form of a new agent, or of a copy of the agent `from`; or create the agent and redirect to it."""
    principal, entry = enter_project(request, project, Action.CONFIGURE)
    source = (request.POST if request.method == "POST" else request.GET).get("from", "")
    stored: Mapping[str, Any] = NEW
    if source:
        copied = agent_definitions.find(entry.project, source)
        stored = {**_definition_at(copied, copied.version), "agent_id": ""}
    draft = AgentDraft(0, agent=None, origin=0, stored=stored, seen={}, source=source)
    if request.method == "POST":
        return _submit(request, principal, entry, draft)
    draft.show(stored, _mode(request))
    return _render(request, entry, draft)


@require_http_methods(["GET", "HEAD", "POST"])
def edit(request: HttpRequest, project: str, agent: str) -> HttpResponse:
    """Show the form of an agent, or save a new version and redirect to the agent. Status 409 for a conflict."""
    principal, entry = enter_project(request, project, Action.CONFIGURE)
    stored_agent = agent_definitions.find(entry.project, agent)
    if request.method == "POST":
        origin, base = (parse_version(request.POST.get(name, ""), name, "agent") for name in ("origin", "base"))
        seen, stored = parse_seen(request, dict, "placement"), _definition_at(stored_agent, origin)
        if seen.keys() != set(FIELDS):
            raise InvalidQuery("seen must be the whole placement: reload the page")
        draft = AgentDraft(base, agent=stored_agent, origin=origin, stored=stored, seen=seen)
        return _submit(request, principal, entry, draft)
    version, seen = stored_agent.version, stored_agent.placement
    stored = _definition_at(stored_agent, version)
    draft = AgentDraft(version, agent=stored_agent, origin=version, stored=stored, seen=seen)
    draft.show(draft.stored, _mode(request))
    return _render(request, entry, draft)


def _submit(request: HttpRequest, principal: Principal, entry: EnteredProject, draft: AgentDraft) -> HttpResponse:
    """Do what the button `do` says: add a row, switch the mode, save, or show a preview of the changes."""
    do = request.POST.get("do", SAVE)
    _read(request, draft)
    if do.startswith(ADD) and draft.form is not None and do.removeprefix(ADD) in draft.form.lists:
        return _render(request, entry, draft)
    if do in (FORM, TEXT) and do != draft.mode and not draft.has_errors:
        draft.show(draft.definition, do)
        return _render(request, entry, draft)
    _add_problems(draft, agent_definitions.problems_of(entry.project, draft.definition) if draft.definition else [])
    if draft.has_errors:
        return _render(request, entry, draft, status=422)
    if do == SAVE:
        try:
            return _save(request, principal, entry, draft)
        except AgentChanged as refusal:
            return _show_conflict(request, entry, draft, refusal)
    draft.preview = changes_between(draft.current, _whole(draft))
    return _render(request, entry, draft)


def _read(request: HttpRequest, draft: AgentDraft) -> None:
    """Read the submitted form or text into the draft, with errors of its syntax and of single fields."""
    secrets = MaskedSecrets(dict(draft.stored), dict(draft.current))
    draft.mode = TEXT if request.POST.get("mode") == TEXT else FORM
    if draft.mode == FORM:
        try:
            adds = request.POST.get("do", "").removeprefix(ADD)
            draft.form = DefinitionForm(draft.stored, request.POST, secrets=secrets, adds=adds)
            draft.definition = draft.form.definition()
        except NotShowable as error:
            raise InvalidQuery(f"this agent is edited as text: {error}") from None
    else:
        draft.text = fields.text(request.POST.get("text", ""))
        try:
            draft.definition = secrets.restore(parse_definition(draft.text))
        except NotADefinition as error:
            draft.add_error(error)
            return
    if draft.agent is not None:
        if draft.mode == TEXT and draft.definition.get("agent_id", draft.agent.slug) != draft.agent.slug:
            text = f"The name of an agent cannot be changed: it is {draft.agent.slug!r}"
            draft.add_error(text, "/agent_id", draft.definition)
        draft.definition["agent_id"] = draft.agent.slug


def _add_problems(draft: AgentDraft, problems: list[InvalidAgent]) -> None:
    """Add the problems to the fields of the form, or to the errors of the text."""
    if draft.form is not None:
        draft.form.add_problems(problems)
        return
    for problem in problems:
        draft.add_error(problem, str(problem.data.get("pointer", "")), draft.definition)


def _save(request: HttpRequest, principal: Principal, entry: EnteredProject, draft: AgentDraft) -> HttpResponse:
    """Save the draft, and redirect to the agent. Raises AgentChanged after a concurrent change."""
    agent, outcome = agent_definitions.apply(
        entry.project,
        draft.definition,
        by=principal,
        expected_version=draft.base,
        expected_placement=draft.seen if draft.agent else None,
    )
    if outcome == "unchanged":
        messages.info(request, f"Nothing to save: version {agent.version} is the same.")
    elif agent.version == draft.base:
        messages.success(request, "Queue, priority and limit saved. They also apply to runs that wait in the queue.")
    else:
        messages.success(request, f"Version {agent.version} saved. Runs that exist keep the version that they have.")
    return see_other("runs:agent", entry.project.slug, agent.slug)


def _show_conflict(
    request: HttpRequest, entry: EnteredProject, draft: AgentDraft, refusal: AgentChanged
) -> HttpResponse:
    """Show changes that another user saved, next to the user's input. The next save replaces them."""
    if draft.agent is None:
        text = "The project already has an agent of this name. Choose another name, or change that agent."
        _add_problems(draft, [InvalidAgent(text, pointer="/agent_id")])
        return _render(request, entry, draft, status=409)
    before = draft.current
    draft.agent.refresh_from_db()
    if draft.base != draft.agent.version:
        draft.latest = agent_definitions.versions_of(draft.agent).first()
    draft.base, draft.seen = draft.agent.version, draft.agent.placement
    draft.conflict = changes_between(before, draft.current)
    draft.preview = changes_between(draft.current, _whole(draft))
    return _render(request, entry, draft, status=409)


def _render(request: HttpRequest, entry: EnteredProject, draft: AgentDraft, *, status: int = 200) -> HttpResponse:
    tools = [tool_facts(each) for each in TOOLS.entries()]
    chosen = draft.form.chosen_tools if draft.form is not None else []
    context = {
        **project_context(entry, "agents"),
        "draft": draft,
        "agent": draft.agent,
        "form": draft.form,
        "models": suggested_models(entry.project),
        "tools": [(tool, tool.name in chosen) for tool in tools],
    }
    return render(request, "runs/agents/agent_form.html", context, status=status)


def _whole(draft: AgentDraft) -> dict[str, Any]:
    """Return the valid definition of a draft with its defaults. Omitted parts of the placement are unchanged."""
    parsed = examine(draft.definition).definition
    assert isinstance(parsed, Definition)
    placement = {name: draft.current[name] for name in FIELDS}
    return parsed.behaviour | placement | parsed.placement


def _definition_at(agent: Agent, number: int) -> Mapping[str, Any]:
    """Return the definition of a version, with the current placement, which has no versions."""
    definition = agent_definitions.definition_at(agent, number)
    if definition is None:
        raise InvalidQuery(f"the agent {agent.slug!r} has no version {number}")
    return definition | agent.placement


def _mode(request: HttpRequest) -> str:
    return TEXT if request.GET.get("as") == TEXT else FORM
