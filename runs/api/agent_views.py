"""`/api/projects/{project}/agents` and `…/agents/{agent}`: the agents of a project."""

from __future__ import annotations

import re
from typing import Any

from django.db.models import QuerySet
from django.http import HttpResponse
from rest_framework.request import Request

from agentops.projects.models import Project
from agentops.projects.names import SLUG_PATTERN
from runs.api.answers import AgentAnswer, AgentRow
from runs.api.base_views import ApiView, ListView
from runs.api.negotiation import MaskedJSONRenderer
from runs.api.problems import ResourceNotFound
from runs.models import Agent


class NoSuchAgent(ResourceNotFound):
    code = "agent_not_found"
    text = "no such agent in this project"


def agent_in(project: Project, slug: str) -> Agent:
    """Return the agent of the URL. Raises `NoSuchAgent`."""
    # An invalid name never reaches the database: PostgreSQL fails on NUL and lone surrogates.
    agent = Agent.objects.filter(project=project, slug=slug).first() if re.match(SLUG_PATTERN, slug) else None
    if agent is None:
        raise NoSuchAgent
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
