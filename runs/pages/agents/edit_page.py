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
from django.shortcuts import render, resolve_url
from pydantic_ai.models import KnownModelName

from agentops.accounts.access import Action, EnteredProject, Principal, enter
from agentops.accounts.models import Project
from agentops.accounts.requests import principal_of
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
from runs.pages.agents.definition_form import DefinitionForm, form_of, read_form
from runs.pages.agents.shown_agent import ShownTool, tool_facts
from runs.pages.compare.differences import TextDifference
from runs.pages.forms import fields, form_fields
from runs.pages.forms.form_fields import NotShowable
from runs.providers import base as providers
from runs.tools.catalogue import TOOLS
from timeline.display import clean

FORM, TEXT = "form", "text"
SAVE, PREVIEW, ADD = "save", "preview", "add:"
NEW: dict[str, Any] = {
    "agent_id": "", "provider": "llm", "model": "", "instructions": "", "tools": [], "max_steps": 50, "settings": {},
    "policies": {}, "queue": DEFAULT_QUEUE, "priority": DEFAULT_PRIORITY, "max_running": None,
}  # fmt: skip


@dataclass
class Draft:
    """A definition that a user edits."""

    #: None for a new agent.
    agent: Agent | None
    #: The version that filled the form, and its definition; 0 for a new agent.
    origin: int
    stored: Mapping[str, Any]
    #: The version that a save replaces: `origin`, or a newer version that the user has seen.
    base: int
    #: The agent that a new agent is copied from.
    source: str = ""
    mode: str = FORM
    #: Why the definition is edited as text.
    notice: str = ""
    form: DefinitionForm | None = None
    text: str = ""
    #: Errors of the text, each with its position.
    errors: list[tuple[str, str]] = field(default_factory=list)
    definition: dict[str, Any] = field(default_factory=dict)
    #: The differences between the current version and the draft.
    preview: list[TextDifference] | None = None
    #: Changes that another user saved after this form was opened.
    conflict: list[TextDifference] | None = None

    @property
    def has_errors(self) -> bool:
        return bool(self.errors) or (self.form is not None and self.form.has_errors)

    @property
    def current(self) -> Mapping[str, Any]:
        """The definition that a save replaces."""
        return NEW if self.agent is None else _at(self.agent, self.base)

    def show(self, definition: Mapping[str, Any], mode: str) -> None:
        """Fill the fields, or the text, with a definition. Uses text if a part of the definition has no field."""
        if mode == FORM:
            try:
                self.mode, self.form = FORM, form_of(definition)
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
    draft = Draft(None, 0, stored, 0, source=source)
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
        origin, base = _version(request, "origin"), _version(request, "base")
        return _submit(request, principal, entry, Draft(found, origin, _at(found, origin), base))
    draft = Draft(found, found.version, _at(found, found.version), found.version)
    draft.show(draft.stored, _mode(request))
    return _render(request, entry, draft)


def _submit(request: HttpRequest, principal: Principal, entry: EnteredProject, draft: Draft) -> HttpResponse:
    do = request.POST.get("do", SAVE)
    _read(request, draft)
    if do.startswith(ADD) and draft.form is not None and do.removeprefix(ADD) in draft.form.lists:
        draft.form.lists[do.removeprefix(ADD)].add_row()
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


def _read(request: HttpRequest, draft: Draft) -> None:
    """Read the submitted form or text into the draft, with errors of single fields and of the text."""
    secrets = MaskedSecrets(dict(draft.stored), dict(draft.current))
    draft.mode = TEXT if request.POST.get("mode") == TEXT else FORM
    if draft.mode == FORM:
        try:
            draft.form, draft.definition = read_form(request.POST, draft.stored, secrets)
        except NotShowable as error:
            raise InvalidQuery(f"this agent is edited as text: {error}") from None
    else:
        draft.text = fields.text(request.POST.get("text", ""))
        try:
            draft.definition = secrets.restore(definition_text.parse(draft.text))
        except definition_text.NotADefinition as error:
            draft.errors.append(("", f"{str(error)[:1].upper()}{str(error)[1:]}."))
            return
    if draft.agent is not None:
        if draft.mode == TEXT and draft.definition.get("agent_id", draft.agent.slug) != draft.agent.slug:
            draft.errors.append(("$.agent_id", f"The name of an agent cannot be changed: it is {draft.agent.slug!r}."))
        draft.definition["agent_id"] = draft.agent.slug
        if draft.form is not None:
            draft.form.texts["agent_id"] = draft.agent.slug


def _add_problems(draft: Draft, problems: list[InvalidAgent]) -> None:
    if draft.form is not None:
        draft.form.add_problems(problems)
        return
    for problem in problems:
        place = definition_text.json_path(str(problem.data.get("pointer", "")), draft.definition)
        text = str(problem).rstrip(".")
        draft.errors.append((clean(place), clean(f"{text[:1].upper()}{text[1:]}.")))


def _save(request: HttpRequest, principal: Principal, entry: EnteredProject, draft: Draft) -> HttpResponse:
    agent, outcome = agent_definitions.apply(entry.project, draft.definition, by=principal, changes=draft.base)
    if outcome == "unchanged":
        messages.info(request, f"Nothing to save: version {agent.version} is the same.")
    elif agent.version == draft.base:
        messages.success(request, "Queue, priority and limit saved. They hold for the runs that wait, too.")
    else:
        messages.success(request, f"Version {agent.version} saved. Runs that exist keep the version that they have.")
    return HttpResponse(status=303, headers={"Location": resolve_url("runs:agent", entry.project.slug, agent.slug)})


def _show_conflict(request: HttpRequest, entry: EnteredProject, draft: Draft, refusal: AgentChanged) -> HttpResponse:
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


def _render(request: HttpRequest, entry: EnteredProject, draft: Draft, *, status: int = 200) -> HttpResponse:
    tools = [tool_facts(each) for each in TOOLS.registered()]
    chosen = draft.form.tools if draft.form is not None else []
    newest = agent_definitions.versions_of(draft.agent) if draft.agent and draft.conflict is not None else None
    context = {
        **page_context(entry, "agents"),
        "draft": draft,
        "agent": draft.agent,
        "form": draft.form,
        "problem_count": _problem_count(draft),
        "providers": providers.names(),
        "models": suggestions(entry.project),
        "tools": [(tool, tool.name in chosen) for tool in tools],
        "more_tools": _others(chosen, tools),
        "latest": newest.first() if newest is not None else None,
    }
    return render(request, "runs/agent_form.html", context, status=status)


def _others(chosen: list[str], tools: list[ShownTool]) -> str:
    known = {tool.name for tool in tools}
    return "\n".join(name for name in chosen if name not in known)


def _problem_count(draft: Draft) -> int:
    return len(draft.errors) if draft.form is None else draft.form.error_count


def _whole(draft: Draft) -> dict[str, Any]:
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


def _version(request: HttpRequest, name: str) -> int:
    text = request.POST.get(name, "")
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InvalidQuery(f"{name} must be the version of the agent, not {text[:64]!r}")
    return int(text)


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
