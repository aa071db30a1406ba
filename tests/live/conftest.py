"""The cast of the stream tests: a run, somebody who may read it, and where it is streamed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from django.contrib.auth.models import User

from agentops.projects.models import Project, Role
from runs.models import AgentRun
from tests.crash.rig import OwnRedis
from tests.make import make_agent, make_project, make_run
from tests.web.listeners import Listeners
from tests.web.people import make_person, signed_in
from tests.web.serving import WebThread
from tests.web.sse_client import Follower
from timeline import notify


@dataclass
class Scene:
    """One run on one server, and its reader."""

    web: Any
    listeners: Listeners
    project: Project = field(default_factory=make_project)

    def __post_init__(self) -> None:
        self.run: AgentRun = make_run(make_agent(self.project))
        self.reader: User = make_person(self.project, Role.VIEWER)
        self.cookie = signed_in(self.reader)

    @property
    def url(self) -> str:
        """Of the JSON stream."""
        return f"{self.web.url}/api/projects/{self.project.slug}/agent-runs/{self.run.pk}/events/stream"

    @property
    def page_url(self) -> str:
        """Of the stream that the run's page follows: HTML rows."""
        return f"{self.web.url}/runs/{self.run.pk}/stream"

    def open(self, query: str = "", headers: dict[str, str] | None = None, **options: Any) -> Follower:
        return self.listeners.open(self.url + query, self.cookie | (headers or {}), **options)


@pytest.fixture
def scene(web: WebThread, listeners: Listeners) -> Scene:
    """On a server in this process."""
    return Scene(web, listeners)


@pytest.fixture
def bell(own_redis: OwnRedis, settings: object, monkeypatch: pytest.MonkeyPatch) -> OwnRedis:
    """This process rings at the Redis of the stage, which a test may kill."""
    settings.REDIS_URL = own_redis.url  # type: ignore[attr-defined]
    monkeypatch.setattr(notify, "_current", None)
    return own_redis
