"""A project on a server in the test process."""

from __future__ import annotations

from dataclasses import dataclass, field

from agentops.accounts.models import Project
from tests.support.accounts import with_key
from tests.support.factories import make_project
from tests.support.web.server import WebThread


@dataclass
class Site:
    """A project on a server."""

    web: WebThread
    project: Project = field(default_factory=make_project)

    @property
    def url(self) -> str:
        return self.web.url

    def key(self, *scopes: str) -> str:
        return with_key(self.project, *(scopes or ("read", "write")))["Authorization"].removeprefix("Bearer ")
