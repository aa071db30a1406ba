"""The page of an agent: its definition, its versions and its newest runs; and the page of an older version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from agentops.accounts.access import Action, EnteredProject, enter
from agentops.accounts.requests import principal_of
from agentops.base import database_clock
from agentops.base.http.methods import require_safe
from agentops.base.refusals import InvalidQuery, NotFound
from runs.actions import agent_definitions, approvals
from runs.errors import InvalidPolicies
from runs.models import Agent, AgentVersion
from runs.pages.agents.agents_page import page_context
from runs.pages.agents.definition_diffs import changes_between
from runs.pages.agents.shown_agent import ShownApprovalRule, shown_definition, shown_rules
from runs.pages.runs.list_columns import DEFAULT, headings
from runs.pages.runs.listed_run import listed_runs, read
from runs.pages.runs.row_markup import markup_of
from runs.pages.runs.run_row import rows_of
from runs.queries import queue_state
from runs.queries.agent_activity import activity_of
from timeline.display import clean

RECENT_RUNS = 10
RECENT_VERSIONS = 5
VERSIONS = 50
MAX_NUMBER = 2**31 - 1


@dataclass(frozen=True)
class ShownVersion:
    """A version in a list."""

    number: int
    created_at: datetime
    created_by: str
    changed: str
    is_current: bool


@require_safe
def detail(request: HttpRequest, project: str, agent: str) -> HttpResponse:
    """Show the current version of an agent."""
    entry = enter(principal_of(request), project, Action.READ)
    return _page(request, entry, agent_definitions.find(entry.project, agent))


@require_safe
def version(request: HttpRequest, project: str, agent: str, number: int) -> HttpResponse:
    """Show a version of an agent."""
    entry = enter(principal_of(request), project, Action.READ)
    found = agent_definitions.find(entry.project, agent)
    definition = _definition_at(found, number)
    return _page(request, entry, found, number=number, definition=definition)


@require_safe
def versions(request: HttpRequest, project: str, agent: str) -> HttpResponse:
    """Show the versions of an agent, newest first, and the differences between versions `a` and `b`."""
    entry = enter(principal_of(request), project, Action.READ)
    found = agent_definitions.find(entry.project, agent)
    before = _number(request, "before")
    rows = agent_definitions.versions_of(found)
    if before is not None:
        rows = rows.filter(number__lt=before)
    page = list(rows[: VERSIONS + 1])
    a, b = _number(request, "a"), _number(request, "b")
    differences = None
    if a is not None and b is not None:
        differences = changes_between(_definition_at(found, a), _definition_at(found, b))
    context = {
        **page_context(entry, "agents"),
        "agent": found,
        "versions": [_shown(each, found) for each in page[:VERSIONS]],
        "is_first_page": before is None,
        "older": page[VERSIONS - 1].number if len(page) > VERSIONS else None,
        "a": a if a is not None else max(found.version - 1, 1),
        "b": b if b is not None else found.version,
        "differences": differences,
    }
    return render(request, "runs/agents/agent_versions.html", context)


def _page(
    request: HttpRequest,
    entry: EnteredProject,
    agent: Agent,
    *,
    number: int | None = None,
    definition: Mapping[str, Any] | None = None,
) -> HttpResponse:
    shown = number or agent.version
    rows = list(agent_definitions.versions_of(agent)[: RECENT_VERSIONS + 1])
    now = database_clock.now()
    runs = read(listed_runs().filter(agent=agent)[:RECENT_RUNS]) if number is None else []
    context = {
        **page_context(entry, "agents"),
        "agent": agent,
        "number": shown,
        "is_current": shown == agent.version,
        "is_version_page": number is not None,
        "previous": shown - 1 if shown > 1 else None,
        "definition": shown_definition(definition or {**agent.frozen(), **agent.placement}),
        "is_unserved": number is None and bool(queue_state.unserved([agent.queue])),
        "project_rules": _project_rules(entry),
        "site_hooks": settings.AGENTOPS_HOOKS,
        "versions": [_shown(each, agent) for each in rows[:RECENT_VERSIONS]],
        "has_more_versions": len(rows) > RECENT_VERSIONS,
        "rows": markup_of(rows_of(runs, now), boxes=False),
        "headings": headings(DEFAULT, None, ()),
        "activity": activity_of([agent.pk], now)[agent.pk] if number is None else None,
    }
    return render(request, "runs/agents/agent.html", context)


def _project_rules(entry: EnteredProject) -> list[ShownApprovalRule] | None:
    """Return the approval rules of the project; None if they are unreadable, which stops all runs of the project."""
    try:
        return shown_rules(approvals.rules_of(entry.project))
    except InvalidPolicies:
        return None


def _shown(each: AgentVersion, agent: Agent) -> ShownVersion:
    changed = ", ".join(map(str, each.changed)) or ("created" if each.number == 1 else "")
    return ShownVersion(
        each.number, each.created_at, clean(each.created_by), clean(changed), each.number == agent.version
    )


def _definition_at(agent: Agent, number: int) -> dict[str, Any]:
    definition = agent_definitions.definition_at(agent, number) if 0 < number <= MAX_NUMBER else None
    if definition is None:
        raise NotFound(f"version {number} of the agent {agent.slug!r} is not stored", code="agent_version_not_found")
    return definition


def _number(request: HttpRequest, name: str) -> int | None:
    text = request.GET.get(name, "")
    if text and not (text.isascii() and text.isdigit() and len(text) < 10):
        raise InvalidQuery(f"{name} must be the number of a version, not {text[:64]!r}")
    return int(text) if text else None
