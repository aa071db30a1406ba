"""The agents of a project, with their recent activity."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from agentops.accounts.access import Action, EnteredProject, enter
from agentops.accounts.names import SLUG_PATTERN
from agentops.accounts.requests import principal_of
from agentops.base import database_clock
from agentops.base.http.methods import require_safe
from agentops.base.refusals import InvalidQuery
from runs.models import Agent
from runs.pages import commands
from runs.queries import queue_state
from runs.queries.agent_activity import AgentActivity, activity_of, with_last_run
from timeline.display import clean

PAGE_SIZE = 100
#: Maximum entries of a menu.
MAX_CHOICES = 200


@dataclass(frozen=True)
class ListedAgent:
    """An agent in the list."""

    slug: str
    provider: str
    model: str
    version: int
    tools: int
    #: Its queue, if no worker serves it; empty otherwise.
    unserved_queue: str
    last_run: UUID | None
    last_status: str
    last_run_at: datetime | None
    activity: AgentActivity


@require_safe
def index(request: HttpRequest, project: str) -> HttpResponse:
    """Show a page of agents, ordered by name."""
    entry = enter(principal_of(request), project, Action.READ)
    after = request.GET.get("after", "")
    if after and not re.match(SLUG_PATTERN, after):
        raise InvalidQuery(f"after must be the name of an agent, not {after[:64]!r}")
    columns = ("slug", "provider", "model", "version", "tools", "queue")
    agents = Agent.objects.filter(project=entry.project, slug__gt=after).only(*columns).order_by("slug")
    # One row more than a page, to know whether there is a next page.
    found: list[Any] = list(with_last_run(agents)[: PAGE_SIZE + 1])
    activity = activity_of([agent.pk for agent in found], database_clock.now())
    unserved = queue_state.unserved(agent.queue for agent in found)
    context = {
        **page_context(entry, "agents"),
        "rows": [_row(agent, activity[agent.pk], unserved) for agent in found[:PAGE_SIZE]],
        "after": after,
        "next": found[PAGE_SIZE - 1].slug if len(found) > PAGE_SIZE else "",
        "commands": commands.first_run(entry.project)[:1],
    }
    return render(request, "runs/agents/agents.html", context)


def page_context(entry: EnteredProject, section: str) -> dict[str, Any]:
    """Return the context that all pages of agents and settings need. `section` is the current entry of the top bar."""
    return {
        "section": section,
        "project": entry.project,
        "projects": entry.visible.order_by("name", "pk")[:MAX_CHOICES],
        "may_manage": Action.MANAGE in entry.actions,
        "may_operate": Action.OPERATE in entry.actions,
        "may_configure": Action.CONFIGURE in entry.actions,
    }


def _row(agent: Any, activity: AgentActivity, unserved: Collection[str]) -> ListedAgent:
    return ListedAgent(
        slug=agent.slug,
        provider=clean(agent.provider),
        model=clean(agent.model),
        version=agent.version,
        tools=len(agent.tools),
        unserved_queue=agent.queue if agent.queue in unserved else "",
        last_run=agent.last_run,
        last_status=agent.last_status or "",
        last_run_at=agent.last_run_at,
        activity=activity,
    )
