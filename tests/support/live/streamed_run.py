"""A run, a person who may read it, and the URLs of its streams."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from django.contrib.auth.models import User

from agentops.accounts.models import Project, Role
from runs.models import AgentRun
from tests.support.accounts import make_person, signed_in
from tests.support.factories import make_agent, make_project, make_run
from tests.support.web.event_stream import Follower
from tests.support.web.stream_clients import Listeners


@dataclass
class StreamedRun:
    """A run on a server, and its reader."""

    web: Any
    listeners: Listeners
    project: Project = field(default_factory=make_project)

    def __post_init__(self) -> None:
        self.run: AgentRun = make_run(make_agent(self.project))
        self.reader: User = make_person(self.project, Role.VIEWER)
        self.cookie = signed_in(self.reader)

    @property
    def url(self) -> str:
        """The URL of the JSON stream."""
        return f"{self.web.url}/api/projects/{self.project.slug}/agent-runs/{self.run.pk}/events/stream"

    @property
    def page_url(self) -> str:
        """The URL of the HTML stream that the run's page follows."""
        return f"{self.web.url}/runs/{self.run.pk}/stream"

    def open(self, query: str = "", headers: dict[str, str] | None = None, **options: Any) -> Follower:
        return self.listeners.open(self.url + query, self.cookie | (headers or {}), **options)
