"""Authentication of runners by a secret from the settings. It is valid only for ingest."""

from __future__ import annotations

from hmac import compare_digest

from django.conf import settings
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request

from agentops.accounts.access import Principal, PrincipalKind
from agentops.accounts.errors import AuthInvalid, ProjectArchived, ProjectNotFound
from agentops.accounts.models import Project, Scope
from agentops.accounts.requests import address_of
from agentops.base.http.lanes import sender_project
from agentops.base.redaction import project_scope
from runs.external.ingest_counts import RUNNER

HEADER = "x-agent-runner-secret"


class RunnerSecretAuthentication(BaseAuthentication):  # type: ignore[misc]
    """Authentication by a secret of AGENT_RUNNER_SECRET, for the project AGENT_RUNNER_PROJECT.

    Several secrets are valid concurrently, so that they can be replaced one after the other. Raises `AuthInvalid`, and
    `ProjectNotFound` if the site has no such project.
    """

    def authenticate(self, request: Request) -> tuple[Principal, Project] | None:
        sent = request.headers.get(HEADER)
        if sent is None:
            return None
        # Compares all of them, so that the time does not reveal which one matches.
        matches = [compare_digest(sent.encode(errors="replace"), one.encode()) for one in settings.AGENT_RUNNER_SECRET]
        if not any(matches):
            raise AuthInvalid("the runner secret is not valid")
        project = Project.objects.filter(slug=settings.AGENT_RUNNER_PROJECT).first()
        if project is None:
            raise ProjectNotFound(f"AGENT_RUNNER_PROJECT names no project: {settings.AGENT_RUNNER_PROJECT}")
        sender_project.set(project.pk)
        ip = address_of(request) or None
        scopes = frozenset({Scope.INGEST})
        return Principal(PrincipalKind.KEY, RUNNER, project_id=project.pk, scopes=scopes, ip=ip), project


def enter_with_secret(project: Project) -> Project:
    """Return the project of a secret, with its redaction rules in scope. Raises `ProjectArchived`, as for keys."""
    if project.archived_at is not None:
        raise ProjectArchived
    project_scope.add(project.pk)
    return project
