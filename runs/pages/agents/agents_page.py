"""The agents of a project, and the page of an agent: its definition, its versions and its newest runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from agentops.accounts.access import Action, EnteredProject, enter
from agentops.accounts.names import SLUG_PATTERN
from agentops.accounts.requests import principal_of
from agentops.base import database_clock
from agentops.base.http.methods import require_safe
from agentops.base.refusals import InvalidQuery, NotFound
from runs.actions import agent_definitions, approvals
from runs.errors import InvalidPolicies
from runs.models import Agent, AgentVersion, FlowVersion
from runs.pages import commands
from runs.pages.agents.shown_agent import ShownApprovalRule, changes_between, shown_definition, shown_rules
from runs.pages.page_parts import parse_version, project_context, split_page
from runs.pages.runs.list_columns import DEFAULT, headings
from runs.pages.runs.run_row import listed_runs, markup_of, read, rows_of
from runs.providers import remote
from runs.queries import remote_processes
from runs.queries.remote_processes import ShownProcess
from runs.queries.usage import activity_of, with_last_run
from timeline.display import clean

PAGE_SIZE = 100


@require_safe
def index(request: HttpRequest, project: str) -> HttpResponse:
    """Show a page of agents, ordered by name."""
    entry = enter(principal_of(request), project, Action.READ)
    after = request.GET.get("after", "")
    if after and not re.match(SLUG_PATTERN, after):
        raise InvalidQuery(f"after must be the name of an agent, not {after[:64]!r}")
    columns = ("slug", "provider", "model", "version", "tools", "queue", "settings")
    agents = Agent.objects.filter(project=entry.project, slug__gt=after).only(*columns).order_by("slug")
    page, has_more = split_page(with_last_run(agents), PAGE_SIZE)
    activity = activity_of([agent.pk for agent in page], database_clock.now())
    unserved = remote_processes.unserved_agents(entry.project, page)
    for agent in page:
        agent.provider, agent.model = clean(agent.provider), clean(agent.model)
    context = {
        **project_context(entry, "agents"),
        "rows": [(agent, activity[agent.pk], unserved.get(agent.pk, "")) for agent in page],
        "after": after,
        "next": page[-1].slug if has_more else "",
        "commands": commands.first_run(entry.project)[:1],
    }
    return render(request, "runs/agents/agents.html", context)


#: Runs, versions and processes on the page of an agent.
RECENT_RUNS, RECENT_VERSIONS, MAX_PROCESSES = 10, 5, 50
#: Versions on a page of the list of versions.
VERSIONS = 50
#: The largest number that the database stores as a version.
MAX_NUMBER = 2**31 - 1


@dataclass(frozen=True)
class ListedVersion:
    """A version of an agent or a flow in a list."""

    number: int
    created_at: datetime
    created_by: str
    #: The changed fields, separated by commas.
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
    stored_agent = agent_definitions.find(entry.project, agent)
    return _page(request, entry, stored_agent, number=number, definition=_definition_at(stored_agent, number))


@require_safe
def versions(request: HttpRequest, project: str, agent: str) -> HttpResponse:
    """Show the versions of an agent, newest first, and the differences between versions `a` and `b`."""
    entry = enter(principal_of(request), project, Action.READ)
    stored_agent = agent_definitions.find(entry.project, agent)
    before, a, b = (_version_number(request, name) for name in ("before", "a", "b"))
    rows = agent_definitions.versions_of(stored_agent)
    page, has_more = split_page(rows if before is None else rows.filter(number__lt=before), VERSIONS)
    differences = None
    if a is not None and b is not None:
        differences = changes_between(_definition_at(stored_agent, a), _definition_at(stored_agent, b))
    context = {
        **project_context(entry, "agents"),
        "agent": stored_agent,
        "versions": [listed_version(each, stored_agent.version) for each in page],
        "is_first_page": before is None,
        "older": page[-1].number if has_more else None,
        "a": a if a is not None else max(stored_agent.version - 1, 1),
        "b": b if b is not None else stored_agent.version,
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
    """Show an agent: the version `number` with its `definition`, or the current version with its newest runs."""
    shown_number = number or agent.version
    versions, has_more_versions = split_page(agent_definitions.versions_of(agent), RECENT_VERSIONS)
    now = database_clock.now()
    runs = read(listed_runs().filter(agent=agent)[:RECENT_RUNS]) if number is None else []
    shown = definition or {**agent.frozen(), **agent.placement}
    context = {
        **project_context(entry, "agents"),
        "agent": agent,
        "number": shown_number,
        "is_current": shown_number == agent.version,
        "is_version_page": number is not None,
        "previous": shown_number - 1 if shown_number > 1 else None,
        "definition": shown_definition(shown),
        **_service(agent, shown),
        "project_rules": _project_rules(entry),
        "site_hooks": settings.AGENTOPS_HOOKS,
        "versions": [listed_version(each, agent.version) for each in versions],
        "has_more_versions": has_more_versions,
        "rows": markup_of(rows_of(runs, now), boxes=False),
        "headings": headings(DEFAULT, None, ()),
        "activity": activity_of([agent.pk], now)[agent.pk] if number is None else None,
    }
    return render(request, "runs/agents/agent.html", context)


def _service(agent: Agent, definition: Mapping[str, Any]) -> dict[str, Any]:
    """Return who executes the runs of an agent with this definition, or why its runs wait. At most four queries."""
    provider = definition.get("provider")
    is_durable, is_packaged = provider in remote.DURABLE, provider == remote.PACKAGE
    processes: list[ShownProcess] = []
    if is_packaged:
        processes = remote_processes.workers_with(agent.project, agent.slug, at_most=MAX_PROCESSES)
    elif is_durable:
        processes = remote_processes.living(agent.project, agent=agent.slug, at_most=MAX_PROCESSES)
    return {
        "is_durable": is_durable,
        "is_packaged": is_packaged,
        "code_version": (definition.get("settings") or {}).get(remote.CODE_VERSION, 1) if is_durable else None,
        "processes": processes,
        "unserved": remote_processes.unserved_agents(agent.project, [agent]).get(agent.pk),
    }


def _project_rules(entry: EnteredProject) -> list[ShownApprovalRule] | None:
    """Return the approval rules of the project; None if they are invalid, which stops all runs of the project."""
    try:
        return shown_rules(approvals.rules_of(entry.project))
    except InvalidPolicies:
        return None


def listed_version(version: AgentVersion | FlowVersion, current: int) -> ListedVersion:
    """Return a version for a list. `current` is the number of the current version."""
    number = version.number
    changed = ", ".join(map(str, version.changed)) or ("created" if number == 1 else "")
    return ListedVersion(number, version.created_at, clean(version.created_by), clean(changed), number == current)


def _definition_at(agent: Agent, number: int) -> dict[str, Any]:
    """Return the definition of a version. Raises NotFound."""
    definition = agent_definitions.definition_at(agent, number) if 0 < number <= MAX_NUMBER else None
    if definition is None:
        raise NotFound(f"version {number} of the agent {agent.slug!r} is not stored", code="agent_version_not_found")
    return definition


def _version_number(request: HttpRequest, name: str) -> int | None:
    text = request.GET.get(name, "")
    return parse_version(text, name, "agent") if text else None
