"""The forms that create and change an agent, as fields or as JSON or TOML.

The checks are the same as in `agent apply`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, get_args

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from pydantic_ai.models import KnownModelName

from agentops.accounts.access import Action, EnteredProject, Principal, enter
from agentops.accounts.models import Project
from agentops.accounts.requests import principal_of
from agentops.accounts.settings_pages.page_parts import see_other
from agentops.base.http.methods import require_http_methods
from agentops.base.redaction.masked_secrets import MaskedSecrets, masked
from agentops.base.refusals import InvalidQuery
from runs.actions import agent_definitions
from runs.actions.agent_definitions import AgentChanged
from runs.agents import definition_text
from runs.agents.definition import Definition, examine
from runs.agents.placement import DEFAULT_PRIORITY, DEFAULT_QUEUE, FIELDS
from runs.errors import InvalidAgent
from runs.fixtures import library
from runs.models import Agent
from runs.pages.agents.agents_page import page_context
from runs.pages.agents.definition_diffs import changes_between
from runs.pages.agents.definition_form import DefinitionForm
from runs.pages.agents.shown_agent import tool_facts
from runs.pages.forms import fields, form_fields
from runs.pages.forms.drafts import Draft, sent_version
from runs.pages.forms.form_fields import NotShowable
from runs.tools.catalogue import TOOLS
from timeline.display import clean

FORM, TEXT = "form", "text"
SAVE, PREVIEW, ADD = "save", "preview", "add:"
NEW: dict[str, Any] = {
    "agent_id": "", "provider": "llm", "model": "", "instructions": "", "tools": [], "max_steps": 50, "settings": {},
    "policies": {}, "queue": DEFAULT_QUEUE, "priority": DEFAULT_PRIORITY, "max_running": None,
}  # fmt: skip


@dataclass(kw_only=True)
class AgentDraft(Draft):
    """The definition of an agent that a user edits, as fields or as text."""

    #: None for a new agent.
    agent: Agent | None
    #: The version that filled the form, and its definition; 0 for a new agent. The user may have seen a newer one.
    origin: int
    stored: Mapping[str, Any]
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
        """The definition that a save replaces."""
        return NEW if self.agent is None else _at(self.agent, self.base)

    def show(self, definition: Mapping[str, Any], mode: str) -> None:
        """Fill the fields, or the text, with a definition. Uses text if a part of the definition has no field."""
        if mode == FORM:
            try:
                self.mode, self.form = FORM, DefinitionForm(definition)
            except NotShowable as error:
                self.mode, self.text = TEXT, form_fields.json_of(masked(dict(definition)))
                self.notice = f"This definition can only be edited as text: {error}."
        else:
            self.mode, self.text, self.form = TEXT, form_fields.json_of(masked(dict(definition))), None


@require_http_methods(["GET", "HEAD", "POST"])
def new(request: HttpRequest, project: str) -> HttpResponse:
    """Show the form of a new agent, or of a copy of the agent `from`; or create the agent and redirect to it."""
    principal = principal_of(request)
    entry = enter(principal, project, Action.CONFIGURE)
    source = (request.POST if request.method == "POST" else request.GET).get("from", "")
    stored: Mapping[str, Any] = NEW
    if source:
        copied = agent_definitions.find(entry.project, source)
        stored = {**_at(copied, copied.version), "agent_id": ""}
    draft = AgentDraft(0, agent=None, origin=0, stored=stored, source=source)
    if request.method == "POST":
        return _submit(request, principal, entry, draft)
    draft.show(stored, _mode(request))
    return _render(request, entry, draft)


@require_http_methods(["GET", "HEAD", "POST"])
def edit(request: HttpRequest, project: str, agent: str) -> HttpResponse:
    """Show the form of an agent, or save a new version and redirect to the agent. Status 409 for a conflict."""
    principal = principal_of(request)
    entry = enter(principal, project, Action.CONFIGURE)
    found = agent_definitions.find(entry.project, agent)
    if request.method == "POST":
        origin, base = (sent_version(request, name, "agent") for name in ("origin", "base"))
        draft = AgentDraft(base, agent=found, origin=origin, stored=_at(found, origin))
        return _submit(request, principal, entry, draft)
    draft = AgentDraft(found.version, agent=found, origin=found.version, stored=_at(found, found.version))
    draft.show(draft.stored, _mode(request))
    return _render(request, entry, draft)


def _submit(request: HttpRequest, principal: Principal, entry: EnteredProject, draft: AgentDraft) -> HttpResponse:
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
    """Read the submitted form or text into the draft, with errors of single fields and of the text."""
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
            draft.definition = secrets.restore(definition_text.parse(draft.text))
        except definition_text.NotADefinition as error:
            draft.add_error(error)
            return
    if draft.agent is not None:
        if draft.mode == TEXT and draft.definition.get("agent_id", draft.agent.slug) != draft.agent.slug:
            text = f"The name of an agent cannot be changed: it is {draft.agent.slug!r}"
            draft.add_error(text, "/agent_id", draft.definition)
        draft.definition["agent_id"] = draft.agent.slug


def _add_problems(draft: AgentDraft, problems: list[InvalidAgent]) -> None:
    if draft.form is not None:
        draft.form.add_problems(problems)
        return
    for problem in problems:
        draft.add_error(problem, str(problem.data.get("pointer", "")), draft.definition)


def _save(request: HttpRequest, principal: Principal, entry: EnteredProject, draft: AgentDraft) -> HttpResponse:
    agent, outcome = agent_definitions.apply(entry.project, draft.definition, by=principal, changes=draft.base)
    if outcome == "unchanged":
        messages.info(request, f"Nothing to save: version {agent.version} is the same.")
    elif agent.version == draft.base:
        messages.success(request, "Queue, priority and limit saved. They hold for the runs that wait, too.")
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
    seen = draft.current
    draft.agent.refresh_from_db()
    draft.base = draft.agent.version
    draft.conflict = changes_between(seen, draft.current)
    draft.preview = changes_between(draft.current, _whole(draft))
    return _render(request, entry, draft, status=409)


def _render(request: HttpRequest, entry: EnteredProject, draft: AgentDraft, *, status: int = 200) -> HttpResponse:
    tools = [tool_facts(each) for each in TOOLS.entries()]
    chosen = draft.form.chosen_tools if draft.form is not None else []
    newest = agent_definitions.versions_of(draft.agent) if draft.agent and draft.conflict is not None else None
    context = {
        **page_context(entry, "agents"),
        "draft": draft,
        "agent": draft.agent,
        "form": draft.form,
        "models": suggestions(entry.project),
        "tools": [(tool, tool.name in chosen) for tool in tools],
        "latest": newest.first() if newest is not None else None,
    }
    return render(request, "runs/agents/agent_form.html", context, status=status)


def _whole(draft: AgentDraft) -> dict[str, Any]:
    """Return the valid definition of a draft with its defaults, and with unchanged parts of the placement."""
    parsed = examine(draft.definition).definition
    assert isinstance(parsed, Definition)
    stays = {name: draft.current[name] for name in FIELDS}
    return parsed.behaviour | stays | parsed.placement


def _at(agent: Agent, number: int) -> Mapping[str, Any]:
    """Return the definition of a version, with the current placement, which has no versions."""
    definition = agent_definitions.definition_at(agent, number)
    if definition is None:
        raise InvalidQuery(f"the agent {agent.slug!r} has no version {number}")
    return definition | agent.placement


def _mode(request: HttpRequest) -> str:
    return TEXT if request.GET.get("as") == TEXT else FORM


# --- Suggestions ---

#: The vendors whose libraries are extras of agentops.
VENDORS = ("anthropic", "openai", "openai-chat", "openai-responses")
MAX_OWN = 100


def suggestions(project: Project) -> list[str]:
    """Return model names: from the project's agents, from pydantic-ai's list, and recordings."""
    own = Agent.objects.filter(project=project).values_list("model", flat=True).distinct().order_by("model")[:MAX_OWN]
    return list(dict.fromkeys([*map(clean, own), *_known(), *library.names()]))


@cache
def _known() -> list[str]:
    return [name for name in get_args(KnownModelName.__value__) if name.partition(":")[0] in VENDORS]
