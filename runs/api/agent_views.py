"""`/api/projects/{project}/agents` and `…/agents/{agent}`: the agents of a project."""

from __future__ import annotations

import re
from typing import Any

from django.db.models import QuerySet
from django.http import HttpResponse
from rest_framework.request import Request

from agentops.accounts.models import Project
from agentops.accounts.names import SLUG_PATTERN
from agentops.base.refusals import NotFound
from runs.actions import agent_definitions
from runs.api.answers import AgentAnswer, AgentRow, AgentVersionAnswer, AgentVersionRow
from runs.api.base_views import ApiView, ListView
from runs.api.negotiation import MaskedJSONRenderer
from runs.models import Agent, AgentVersion

MAX_VERSION = 2**31 - 1


def agent_in(project: Project, slug: str) -> Agent:
    """Return the agent of the URL. Raises `agent_not_found`."""
    # An invalid name never reaches the database: PostgreSQL fails on NUL and lone surrogates.
    agent = Agent.objects.filter(project=project, slug=slug).first() if re.match(SLUG_PATTERN, slug) else None
    if agent is None:
        raise NotFound("no such agent in this project", code="agent_not_found")
    return agent


class Agents(ListView):
    """List the agents of a project by name, without instructions, settings and policies."""

    serializer_class = AgentRow

    def get_queryset(self) -> QuerySet[Agent]:
        return Agent.objects.filter(project=self.get_project()).order_by("slug")


class AgentDetail(ApiView):
    """Get an agent."""

    serializer_class = AgentAnswer

    def get(self, request: Request, **_: Any) -> HttpResponse:
        agent = agent_in(self.get_project(), self.kwargs["agent"])
        return self.etag_response(MaskedJSONRenderer().render(self.get_serializer(agent).data).decode())


class AgentVersions(ListView):
    """List the versions of an agent, the newest first, without their definitions. Each change makes a version."""

    serializer_class = AgentVersionRow

    def get_queryset(self) -> QuerySet[AgentVersion]:
        return agent_definitions.versions_of(agent_in(self.get_project(), self.kwargs["agent"]))


class AgentVersionDetail(ApiView):
    """Get a version of an agent with its definition."""

    serializer_class = AgentVersionAnswer

    def get(self, request: Request, **_: Any) -> HttpResponse:
        agent, number = agent_in(self.get_project(), self.kwargs["agent"]), self.kwargs["number"]
        # Larger numbers do not exist, and PostgreSQL refuses them.
        rows = AgentVersion.objects.filter(agent=agent, number=number) if number <= MAX_VERSION else None
        version = rows.first() if rows is not None else None
        if version is None:
            raise NotFound(
                "the agent has no such version, or it was made before versions were stored",
                code="agent_version_not_found",
            )
        return self.etag_response(MaskedJSONRenderer().render(self.get_serializer(version).data).decode())
