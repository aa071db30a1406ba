"""`/api/projects/{project}/agents` and `…/agents/{agent}`: what runs are started with."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from django.http import HttpRequest, HttpResponse

from agentops.projects.names import SLUG_PATTERN
from runs.api.base_views import ApiView
from runs.api.problems import ResourceNotFound
from runs.api.requests.pagination import PAGING, Pages
from runs.api.schema.shared import page_of
from runs.queries.run_columns import AGENT, AGENTS, agents_of


class NoSuchAgent(ResourceNotFound):
    code = "agent_not_found"
    text = "no such agent in this project"


class Agents(ApiView):
    """List the agents of a project by name, without instructions, settings and policies."""

    parameters: ClassVar = {"get": PAGING}
    answers: ClassVar = {"get": page_of(AGENTS)}

    def get(self, request: HttpRequest, **_: Any) -> HttpResponse:
        project = self.get_project()
        pages = Pages.of(request, self.query, "agents", project.pk)
        return pages.answer(lambda span: AGENTS.page(agents_of(project.pk), span))


class AgentDetail(ApiView):
    """Get an agent."""

    answers: ClassVar = {"get": AGENT.schema()}

    def get(self, request: HttpRequest, **_: Any) -> HttpResponse:
        project, slug = self.get_project(), self.kwargs["agent"]
        # What can be no name never reaches the database: Postgres fails on NUL and lone surrogates.
        text = AGENT.one(agents_of(project.pk, slug=slug)) if re.match(SLUG_PATTERN, slug) else None
        if text is None:
            raise NoSuchAgent
        return self.tagged(text)
