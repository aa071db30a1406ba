"""`/api/projects/{project}/agents` and `…/agents/{agent}`: the agents of a project."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.http import HttpResponse
from rest_framework.request import Request

from agentops.accounts.models import Project
from agentops.base.refusals import NotFound
from runs.actions import agent_definitions
from runs.actions.agent_definitions import AgentNotFound
from runs.api.answers import AgentAnswer, AgentRow, AgentVersionAnswer, AgentVersionRow
from runs.api.base_views import ApiView, ListView
from runs.api.requests.queries import MAX_VERSION
from runs.models import Agent, AgentVersion


def agent_in(project: Project, slug: str) -> Agent:
    """Return the agent of the URL. Raises `NotFound`, whose text does not contain the name.

    So the answers for an agent of another project and for an unknown agent are equal, byte for byte.
    """
    try:
        return agent_definitions.find(project, slug)
    except AgentNotFound:
        raise NotFound("no such agent in this project", code="agent_not_found") from None


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
        return self.masked_response(self.get_serializer(agent).data)


class AgentVersions(ListView):
    """List the versions of an agent, newest first, without their definitions. Each change creates a version."""

    serializer_class = AgentVersionRow

    def get_queryset(self) -> QuerySet[AgentVersion]:
        return agent_definitions.versions_of(agent_in(self.get_project(), self.kwargs["agent"]))


class AgentVersionDetail(ApiView):
    """Get a version of an agent with its definition."""

    serializer_class = AgentVersionAnswer

    def get(self, request: Request, **_: Any) -> HttpResponse:
        agent, number = agent_in(self.get_project(), self.kwargs["agent"]), self.kwargs["number"]
        versions = AgentVersion.objects.filter(agent=agent, number=number)
        version = versions.first() if number <= MAX_VERSION else None
        if version is None:
            raise NotFound(
                "the agent has no such version, or it was made before versions were stored",
                code="agent_version_not_found",
            )
        return self.masked_response(self.get_serializer(version).data)
